// Role: refuses prompts that leave no room in the model's context: by their tokens, and before these are
// made, by their bytes. Threads: pure functions.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "router/served_model.h"

namespace sluice {

// InvalidArgument with reason CONTEXT_LENGTH_EXCEEDED.
absl::Status CheckPromptTokens(const ServedModel& model, size_t tokens);

// The same of text of so many bytes, if it cannot fit whatever its tokens are.
absl::Status CheckPromptBytes(const ServedModel& model, size_t bytes);

}  // namespace sluice
