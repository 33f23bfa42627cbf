// Role: the options of one generation, shared by chat and complete, and what they become in a request.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/flags.h"
#include "sluice/v1/inference.pb.h"

namespace sluice {

struct SamplingFlags {
  std::optional<std::string> preset;  // unset: the server's default
  std::optional<int> budget;
  int max_tokens = 512;
  // Greedy. A question about a document wants its likeliest answer, and the same question again the same
  // answer: then a difference between two presets comes from the presets.
  float temperature = 0;
  std::optional<float> top_p;
  std::optional<int> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
};

void AddSamplingFlags(CLI::App* app, SamplingFlags* flags);

std::vector<std::string> PresetNames();
void AddBudgetFlag(CLI::App* app, std::optional<int>* budget);

// What is unset stays unset: the server's defaults hold.
void FillRequest(const SamplingFlags& flags, v1::Sampling* sampling, v1::Stopping* stopping,
                 v1::CompressionSpec* compression);

template <class Request>
void FillRequest(const SamplingFlags& flags, Request* request) {
  FillRequest(flags, request->mutable_sampling(), request->mutable_stopping(),
              request->mutable_compression());
}

// A seed is not below 0, which would wrap.
CLI::Validator SeedRange();

}  // namespace sluice
