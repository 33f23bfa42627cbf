// Role: the tokenizer's part of a GGUF file, as the tokenizer wants it. Pure function.
#pragma once

#include "absl/status/statusor.h"
#include "common/text/tokenizer.h"
#include "common/weights/gguf.h"

namespace sluice {

// InvalidArgument names the key that is missing or of the wrong kind.
absl::StatusOr<TokenizerParts> TokenizerPartsFromGguf(const GgufFile& file);

}  // namespace sluice
