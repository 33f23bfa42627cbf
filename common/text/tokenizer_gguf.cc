// The tokenizer metadata of GGUF files, as llama.cpp reads it.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/text/tokenizer_files.h"

namespace sluice {
namespace {

enum GgufTokenType { kUnknown = 2, kControl = 3, kUserDefined = 4 };

constexpr char kLlama3Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// How a pre-tokenizer that GGUF knows by name splits.
struct NamedPreTokenizer {
  const char* name;
  bool single_digits;  // digits are cut off one by one first
  const char* pattern;
  bool ignore_merges, nfc, add_bos;
};
constexpr NamedPreTokenizer kPreTokenizers[] = {
    {"gpt-2", false, kGpt2Pattern, false, false, false},
    {"smollm", true, kGpt2Pattern, false, false, false},
    {"qwen2", false, kQwen2Pattern, false, true, false},
    {"llama-bpe", false, kLlama3Pattern, true, false, true},
    {"llama3", false, kLlama3Pattern, true, false, true},
    {"llama-v3", false, kLlama3Pattern, true, false, true},
};

absl::StatusOr<PreTokenizerStep> RegexStep(absl::string_view pattern) {
  SLUICE_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
  PreTokenizerStep step{.kind = PreTokenizerStep::kRegex};
  step.regex = std::make_shared<const Regex>(std::move(regex));
  return step;
}

absl::Status ReadByteLevel(const TokenizerParts& parts, TokenizerData* data, bool* add_bos) {
  const NamedPreTokenizer* named =
      std::find_if(std::begin(kPreTokenizers), std::end(kPreTokenizers),
                   [&](const NamedPreTokenizer& p) { return parts.pre == p.name; });
  if (named == std::end(kPreTokenizers))
    return absl::UnimplementedError(absl::StrCat("tokenizer.ggml.pre: \"", parts.pre, "\" is not supported"));
  std::vector<PreTokenizerStep> steps;
  if (named->single_digits) steps.push_back({.kind = PreTokenizerStep::kDigits, .individual_digits = true});
  SLUICE_ASSIGN_OR_RETURN(PreTokenizerStep split, RegexStep(named->pattern));
  steps.push_back(std::move(split));
  steps.push_back(
      {.kind = PreTokenizerStep::kByteLevel, .add_prefix_space = parts.add_space_prefix.value_or(false)});
  data->pre_tokenizer = PreTokenizer(std::move(steps));
  if (named->nfc) data->normalizer = Normalizer({{NormalizerStep::kNfc, "", ""}});
  data->bpe = {.byte_level = true, .ignore_merges = named->ignore_merges};
  data->decoder.byte_level = true;
  *add_bos = named->add_bos;

  absl::flat_hash_map<absl::string_view, int32_t> ids;
  for (size_t id = 0; id < data->tokens.size(); ++id) ids.emplace(data->tokens[id], static_cast<int32_t>(id));
  for (const std::string& merge : parts.merges) {
    int32_t rank = static_cast<int32_t>(data->merges.size());
    // The space that separates is not the first character: a token is never empty.
    size_t space = merge.find(' ', 1);
    std::string joined = space == std::string::npos ? "" : merge.substr(0, space) + merge.substr(space + 1);
    auto l = ids.find(absl::string_view(merge).substr(0, space)), m = ids.find(joined);
    auto r = space == std::string::npos ? ids.end() : ids.find(absl::string_view(merge).substr(space + 1));
    if (l == ids.end() || r == ids.end() || m == ids.end())
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.ggml.merges[", rank, "]: expected two tokens of the vocabulary"));
    data->merges.push_back({l->second, r->second, m->second, rank});
  }
  return absl::OkStatus();
}

// SentencePiece BPE: any two neighbours whose joined text is a token may merge, the best score first. Written
// as merges: each way to cut a token in two tokens, ranked by the token's score.
absl::Status ReadSentencePiece(const TokenizerParts& parts, TokenizerData* data, bool* add_bos) {
  const std::vector<std::string>& tokens = data->tokens;
  if (parts.scores.size() != tokens.size())
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.scores: ", parts.scores.size(),
                                                   " scores for ", tokens.size(), " tokens"));
  for (float score : parts.scores)
    if (score != score) return absl::InvalidArgumentError("tokenizer.ggml.scores: not a number");
  std::vector<float> best_first = parts.scores;
  std::sort(best_first.begin(), best_first.end(), std::greater<float>());
  best_first.erase(std::unique(best_first.begin(), best_first.end()), best_first.end());
  absl::flat_hash_map<absl::string_view, int32_t> ids;
  for (size_t id = 0; id < tokens.size(); ++id) ids.emplace(tokens[id], static_cast<int32_t>(id));
  for (size_t id = 0; id < tokens.size(); ++id) {
    absl::string_view token = tokens[id];
    if (token.size() > kMaxTokenBytes) continue;  // refused later
    int32_t rank = static_cast<int32_t>(
        std::lower_bound(best_first.begin(), best_first.end(), parts.scores[id], std::greater<float>()) -
        best_first.begin());
    for (size_t cut = 1; cut < token.size(); ++cut) {
      auto l = ids.find(token.substr(0, cut)), r = ids.find(token.substr(cut));
      if (l != ids.end() && r != ids.end())
        data->merges.push_back({l->second, r->second, static_cast<int32_t>(id), rank});
    }
  }
  data->bpe = {.byte_fallback = true, .fuse_unk = false, .unk_id = parts.unk_id};
  std::vector<NormalizerStep> steps;
  bool prefix = parts.add_space_prefix.value_or(true);
  if (prefix) steps.push_back({NormalizerStep::kPrepend, "", "\u2581"});
  steps.push_back({NormalizerStep::kReplace, " ", "\u2581"});
  data->normalizer = Normalizer(std::move(steps));
  data->decoder = {
      .byte_fallback = true, .replacements = {{"\u2581", " "}}, .strip_leading_spaces = prefix ? 1 : 0};
  *add_bos = true;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerData> ReadTokenizerParts(TokenizerParts parts) {
  if (parts.tokens.size() > static_cast<size_t>(kMaxTokenId) + 1)
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.tokens: more than ", kMaxTokenId + 1));
  if (!parts.token_types.empty() && parts.token_types.size() != parts.tokens.size())
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.token_type: ", parts.token_types.size(),
                                                   " types for ", parts.tokens.size(), " tokens"));
  for (auto id : {parts.bos_id, parts.eos_id, parts.eot_id, parts.unk_id})
    if (id && (*id < 0 || static_cast<size_t>(*id) >= parts.tokens.size()))
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.ggml: special token id ", *id, " is not in the vocabulary"));
  TokenizerData data;
  data.tokens = std::move(parts.tokens);
  for (size_t id = 0; id < parts.token_types.size(); ++id) {
    int32_t type = parts.token_types[id];
    if (type != kUnknown && type != kControl && type != kUserDefined) continue;
    data.added.push_back(
        {.id = static_cast<int32_t>(id), .content = data.tokens[id], .special = type != kUserDefined});
  }
  bool add_bos = false;
  if (parts.model == "gpt2") {
    SLUICE_RETURN_IF_ERROR(ReadByteLevel(parts, &data, &add_bos));
  } else if (parts.model == "llama") {
    SLUICE_RETURN_IF_ERROR(ReadSentencePiece(parts, &data, &add_bos));
  } else {
    return absl::UnimplementedError(
        absl::StrCat("tokenizer.ggml.model: \"", parts.model, "\" is not supported"));
  }
  data.bos_id = parts.bos_id;
  data.eos_id = parts.eos_id;
  for (auto id : {parts.eos_id, parts.eot_id})
    if (id && std::find(data.eos_ids.begin(), data.eos_ids.end(), *id) == data.eos_ids.end())
      data.eos_ids.push_back(*id);
  if (parts.add_bos.value_or(add_bos)) {
    if (!parts.bos_id) return absl::InvalidArgumentError("tokenizer.ggml.add_bos_token without bos_token_id");
    data.prefix = {*parts.bos_id};
  }
  if (parts.add_eos.value_or(false)) {
    if (!parts.eos_id) return absl::InvalidArgumentError("tokenizer.ggml.add_eos_token without eos_token_id");
    data.suffix = {*parts.eos_id};
  }
  data.chat_template = std::move(parts.chat_template);
  return data;
}

}  // namespace sluice
