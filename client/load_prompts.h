// Role: what a load says: made-up prompts of a wanted length, or those of a file. Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sluice/v1/inference.pb.h"

namespace sluice {

// One request, or the turns of one session.
struct Dialogue {
  std::vector<v1::Messages> turns;   // what each adds
  std::optional<int> output_tokens;  // of each turn; unset: those of the load
};

// One message of role "user".
v1::Messages UserMessage(std::string text);

// Short English words, which are one token each in most vocabularies, at random.
std::string RandomWords(int words, std::seed_seq* seed);

// tokens = overhead + per_word * words: what a chat template and a tokenizer make of RandomWords.
struct TokenFit {
  double overhead = 0, per_word = 1;
  int WordsFor(int tokens) const;  // at least 1
};
// Through two measured points. Internal if the longer text did not take more tokens.
absl::StatusOr<TokenFit> FitTokens(int few_words, int few_tokens, int many_words, int many_tokens);

struct SyntheticShape {
  int prompt_tokens = 4096;      // of the first turn, the shared prefix included
  int shared_prefix_tokens = 0;  // < prompt_tokens
  int turns = 1;
  int turn_tokens = 64;  // of each turn after the first
  uint64_t seed = 0;
};
// Dialogue `index` of run `run`. Apart from the shared prefix, no two dialogues begin alike; no two runs do
// at all.
Dialogue SyntheticDialogue(const SyntheticShape& shape, const TokenFit& fit, uint64_t run, uint64_t index);

// A JSON object a line with one of "prompt": text; "messages": [{"role", "content"}], sent as one request;
// "turns": [text, ...], said one after another in a session. "output_tokens" is optional. Errors name the
// line.
absl::StatusOr<std::vector<Dialogue>> ReadDialogues(const std::string& path);

}  // namespace sluice
