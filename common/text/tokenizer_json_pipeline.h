// Role: the sections of tokenizer.json around the model: normalizer, pre_tokenizer, post_processor, decoder.
// Why: here most files differ; what would change ids and is not known is refused by name. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/json_fields.h"
#include "common/text/normalizer.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/token_decoder.h"

namespace sluice {

// Each takes its section, null allowed except for the decoder.
absl::StatusOr<Normalizer> ReadNormalizer(const Json& section);
absl::StatusOr<PreTokenizer> ReadPreTokenizer(const Json& section);
absl::StatusOr<TokenDecoder> ReadDecoder(const Json& section);

// Ids before and after a text.
struct AroundText {
  std::vector<int32_t> prefix, suffix;
};
absl::StatusOr<AroundText> ReadPostProcessor(const Json& section);

}  // namespace sluice
