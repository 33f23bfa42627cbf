#include "common/model/gguf_tokenizer.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

std::vector<std::string> Copy(const std::vector<absl::string_view>& texts) {
  return std::vector<std::string>(texts.begin(), texts.end());
}

absl::StatusOr<std::optional<int32_t>> Id(const GgufFile& file, absl::string_view key) {
  if (!file.Has(key)) return std::optional<int32_t>();
  SLUICE_ASSIGN_OR_RETURN(int64_t id, file.GetInt(key));
  if (id < 0 || id > INT32_MAX)
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", key, ": ", id, " is no token id"));
  return std::optional<int32_t>(static_cast<int32_t>(id));
}

absl::StatusOr<std::optional<bool>> Flag(const GgufFile& file, absl::string_view key) {
  if (!file.Has(key)) return std::optional<bool>();
  SLUICE_ASSIGN_OR_RETURN(bool value, file.GetBool(key));
  return std::optional<bool>(value);
}

absl::StatusOr<std::string> Text(const GgufFile& file, absl::string_view key) {
  if (!file.Has(key)) return std::string();
  SLUICE_ASSIGN_OR_RETURN(absl::string_view value, file.GetString(key));
  return std::string(value);
}

}  // namespace

absl::StatusOr<TokenizerParts> TokenizerPartsFromGguf(const GgufFile& file) {
  TokenizerParts parts;
  if (!file.Has("tokenizer.ggml.model") || !file.Has("tokenizer.ggml.tokens"))
    return absl::InvalidArgumentError(absl::StrCat(
        file.path(), ": tokenizer.ggml.model, tokenizer.ggml.tokens: missing; the file has no tokenizer"));
  SLUICE_ASSIGN_OR_RETURN(parts.model, Text(file, "tokenizer.ggml.model"));
  SLUICE_ASSIGN_OR_RETURN(parts.pre, Text(file, "tokenizer.ggml.pre"));
  SLUICE_ASSIGN_OR_RETURN(std::vector<absl::string_view> tokens, file.GetStrings("tokenizer.ggml.tokens"));
  parts.tokens = Copy(tokens);
  if (file.Has("tokenizer.ggml.scores")) {
    SLUICE_ASSIGN_OR_RETURN(parts.scores, file.GetFloats("tokenizer.ggml.scores"));
  }
  if (file.Has("tokenizer.ggml.token_type")) {
    SLUICE_ASSIGN_OR_RETURN(std::vector<int64_t> types, file.GetInts("tokenizer.ggml.token_type"));
    parts.token_types.assign(types.begin(), types.end());
  }
  if (file.Has("tokenizer.ggml.merges")) {
    SLUICE_ASSIGN_OR_RETURN(std::vector<absl::string_view> merges, file.GetStrings("tokenizer.ggml.merges"));
    parts.merges = Copy(merges);
  }
  SLUICE_ASSIGN_OR_RETURN(parts.bos_id, Id(file, "tokenizer.ggml.bos_token_id"));
  SLUICE_ASSIGN_OR_RETURN(parts.eos_id, Id(file, "tokenizer.ggml.eos_token_id"));
  SLUICE_ASSIGN_OR_RETURN(parts.eot_id, Id(file, "tokenizer.ggml.eot_token_id"));
  SLUICE_ASSIGN_OR_RETURN(parts.unk_id, Id(file, "tokenizer.ggml.unknown_token_id"));
  SLUICE_ASSIGN_OR_RETURN(parts.add_bos, Flag(file, "tokenizer.ggml.add_bos_token"));
  SLUICE_ASSIGN_OR_RETURN(parts.add_eos, Flag(file, "tokenizer.ggml.add_eos_token"));
  SLUICE_ASSIGN_OR_RETURN(parts.add_space_prefix, Flag(file, "tokenizer.ggml.add_space_prefix"));
  SLUICE_ASSIGN_OR_RETURN(parts.chat_template, Text(file, "tokenizer.chat_template"));
  return parts;
}

}  // namespace sluice
