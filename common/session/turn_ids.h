// Role: a turn's token ids as a database holds them. Why it exists: a prompt repeats all turns before it, so
// a session of n turns stored whole would take n² ids; here a prompt counts what it shares with the parent
// turn's ids and keeps the rest. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

// Little-endian int32.
std::string EncodeIds(absl::Span<const int32_t> ids);
std::vector<int32_t> DecodeIds(absl::string_view blob);

// Ids at the beginning of `prompt` that are the first ones of `before`.
int64_t SharedIds(absl::Span<const int32_t> before, absl::Span<const int32_t> prompt);

struct StoredPrompt {
  int64_t shared = 0;  // SharedIds
  std::string rest;    // the ids after them, encoded
};
// before: the parent turn's prompt and emitted ids; empty for a first turn.
StoredPrompt StorePrompt(absl::Span<const int32_t> before, absl::Span<const int32_t> prompt);
// DataLoss: `before` has fewer ids than are shared.
absl::StatusOr<std::vector<int32_t>> RestorePrompt(absl::Span<const int32_t> before, int64_t shared,
                                                   absl::string_view rest);

}  // namespace sluice
