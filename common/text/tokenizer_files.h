// Role: the two kinds of files as TokenizerData. Inside common/text only. Pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/text/tokenizer.h"

namespace sluice {

// Ids beyond this are refused: no vocabulary is so large, and a hostile file must not size our tables.
inline constexpr int64_t kMaxTokenId = (1 << 20) - 1;
inline constexpr size_t kMaxTokenBytes = 1024;

absl::StatusOr<TokenizerData> ReadTokenizerJson(absl::string_view tokenizer_json,
                                                absl::string_view config_json);
absl::StatusOr<TokenizerData> ReadTokenizerParts(TokenizerParts parts);

}  // namespace sluice
