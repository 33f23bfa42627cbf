// Role: requests as the router's and their gates, for tests of what resolves them. Threads: any.
#pragma once

#include <string>

#include "common/compression/compression_spec.h"
#include "gtest/gtest.h"

namespace sluice {

inline GateContext LongPrompt() {
  GateContext context;
  context.prompt_tokens = context.turn_tokens = 16384;
  context.max_tokens = 512;
  context.context = 32768;
  context.head_dim = 128;
  context.n_layers = 32;
  context.n_kv_heads = 8;
  context.tsp_layer = 15;
  return context;
}

inline CompressionSpec Named(const char* preset) {
  CompressionSpec spec;
  spec.preset = preset;
  return spec;
}

inline ResolvedGates Resolve(const CompressionSpec& spec, const GateContext& context = LongPrompt(),
                             const ResolvedGates* previous = nullptr) {
  auto gates = ResolveGates(spec, context, previous);
  EXPECT_TRUE(gates.ok()) << gates.status();
  return gates.ok() ? *gates : ResolvedGates{};
}

inline std::string Refusal(const CompressionSpec& spec, const GateContext& context = LongPrompt()) {
  const auto gates = ResolveGates(spec, context, nullptr);
  EXPECT_EQ(gates.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(gates.status().message());
}

}  // namespace sluice
