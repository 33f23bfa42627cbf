#include "common/text/tokenizer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "common/text/byte_alphabet.h"
#include "common/text/detokenizer.h"
#include "common/text/stable_hash.h"
#include "common/text/tokenizer_files.h"
#include "common/text/unicode.h"

namespace sluice {
namespace {

// The tokens as BPE matches them.
std::vector<std::string> Pieces(const TokenizerData& data) {
  if (!data.bpe.byte_level) return data.tokens;
  std::vector<std::string> pieces;
  pieces.reserve(data.tokens.size());
  for (const std::string& token : data.tokens) pieces.push_back(BytesOfAlphabetText(token).value_or(""));
  return pieces;
}

// -1 unless `token` is <0xXX>.
int FallbackByte(absl::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  int value = 0;
  for (char c : token.substr(3, 2)) {
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                       : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

std::string DecodedText(const TokenDecoder& decoder, const std::string& token, bool first) {
  if (decoder.byte_level) return BytesOfAlphabetText(token).value_or(token);
  std::string text = token;
  for (const auto& [from, to] : decoder.replacements) text = absl::StrReplaceAll(text, {{from, to}});
  if (!decoder.metaspace.empty())
    text = absl::StrReplaceAll(text,
                               {{decoder.metaspace, first && decoder.metaspace_first_vanishes ? "" : " "}});
  if (int byte = decoder.byte_fallback ? FallbackByte(text) : -1; byte >= 0)
    text.assign(1, static_cast<char>(byte));
  return text;
}

std::string Hash(const TokenizerData& data) {
  StableHash hash;
  hash.Add(static_cast<int64_t>(data.tokens.size()));
  for (const std::string& token : data.tokens) hash.Add(token);
  for (const AddedToken& t : data.added) {
    hash.Add(t.id);
    hash.Add(t.content);
    hash.Add(t.special | t.normalized << 1 | t.lstrip << 2 | t.rstrip << 3);
  }
  for (const BpeMerge& m : data.merges) {
    hash.Add(m.left);
    hash.Add(m.right);
    hash.Add(m.rank);
  }
  const BpeOptions& bpe = data.bpe;
  hash.Add(bpe.byte_level | bpe.byte_fallback << 1 | bpe.fuse_unk << 2 | bpe.ignore_merges << 3);
  hash.Add(bpe.unk_id.value_or(-1));
  for (const NormalizerStep& step : data.normalizer.steps()) {
    hash.Add(step.kind);
    hash.Add(step.from);
    hash.Add(step.to);
  }
  for (const PreTokenizerStep& step : data.pre_tokenizer.steps()) hash.Add(step.Describe());
  const TokenDecoder& decoder = data.decoder;
  hash.Add(decoder.byte_level | decoder.byte_fallback << 1 | decoder.metaspace_first_vanishes << 2);
  hash.Add(decoder.strip_leading_spaces);
  hash.Add(decoder.metaspace);
  for (const auto& [from, to] : decoder.replacements) {
    hash.Add(from);
    hash.Add(to);
  }
  for (int32_t id : data.prefix) hash.Add(id);
  hash.Add(-1);
  for (int32_t id : data.suffix) hash.Add(id);
  hash.Add(data.bos_id.value_or(-1));
  for (int32_t id : data.eos_ids) hash.Add(id);
  return hash.Hex();
}

// Bytes that a text may have for each byte of what tokens are matched against; 0: no bound.
size_t MostShrinking(const TokenizerData& data) {
  size_t most = 1;
  for (const NormalizerStep& step : data.normalizer.steps()) {
    switch (step.kind) {
      case NormalizerStep::kPrepend:
        break;
      case NormalizerStep::kNfc:
      case NormalizerStep::kNfd:
        most *= 4;  // at most 3.5: U+1FBE U+0308 U+0301, seven bytes, become the two of U+0390
        break;
      case NormalizerStep::kReplace:
        if (step.to.size() < step.from.size()) return 0;
        break;
      default:
        return 0;
    }
  }
  for (const PreTokenizerStep& step : data.pre_tokenizer.steps())
    if (step.behavior == SplitBehavior::kRemoved) return 0;
  for (const AddedToken& token : data.added)
    if (token.lstrip || token.rstrip) return 0;
  // Else unknown characters may vanish, or be one token together.
  std::vector<bool> known(256);
  for (const std::string& piece : Pieces(data))
    if (piece.size() == 1) known[static_cast<unsigned char>(piece[0])] = true;
  const bool all = std::find(known.begin(), known.end(), false) == known.end();
  return data.bpe.byte_level && all ? most : 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(absl::string_view tokenizer_json,
                                                               absl::string_view tokenizer_config_json) {
  SLUICE_ASSIGN_OR_RETURN(TokenizerData data, ReadTokenizerJson(tokenizer_json, tokenizer_config_json));
  return Build(std::move(data));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromParts(TokenizerParts parts) {
  SLUICE_ASSIGN_OR_RETURN(TokenizerData data, ReadTokenizerParts(std::move(parts)));
  return Build(std::move(data));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Build(TokenizerData data) {
  if (data.tokens.empty()) return absl::InvalidArgumentError("tokenizer: the vocabulary is empty");
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    if (data.tokens[id].size() > kMaxTokenBytes)
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer: token ", id, " is longer than ", kMaxTokenBytes, " bytes"));
    if (FirstInvalidUtf8(data.tokens[id]))
      return absl::InvalidArgumentError(absl::StrCat("tokenizer: token ", id, " is not UTF-8"));
  }
  auto check = [&](int32_t id, absl::string_view what) {
    if (id >= 0 && id < static_cast<int32_t>(data.tokens.size()) && !data.tokens[id].empty())
      return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer: ", what, " ", id, " is not in the vocabulary"));
  };
  for (int32_t id : data.prefix) SLUICE_RETURN_IF_ERROR(check(id, "prefix token"));
  for (int32_t id : data.suffix) SLUICE_RETURN_IF_ERROR(check(id, "suffix token"));
  for (int32_t id : data.eos_ids) SLUICE_RETURN_IF_ERROR(check(id, "end token"));
  if (data.bos_id) SLUICE_RETURN_IF_ERROR(check(*data.bos_id, "bos token"));
  if (data.eos_id) SLUICE_RETURN_IF_ERROR(check(*data.eos_id, "eos token"));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(data)));
}

Tokenizer::Tokenizer(TokenizerData data)
    : data_(std::move(data)), bpe_(Pieces(data_), data_.merges, data_.bpe), hash_(Hash(data_)) {
  std::vector<std::string> raw, normalized;
  special_.resize(data_.tokens.size());
  for (const AddedToken& token : data_.added) {
    raw.push_back(token.normalized ? "" : token.content);
    normalized.push_back(token.normalized ? data_.normalizer.Apply(MarkedText(token.content)).text() : "");
    special_[token.id] = special_[token.id] || token.special;
  }
  raw_matcher_ = AddedTokenMatcher(data_.added, raw);
  normalized_matcher_ = AddedTokenMatcher(data_.added, normalized);
  // Hugging Face decodes a token that is looked for after normalisation to its normalised text.
  std::vector<std::string> texts = data_.tokens;
  for (size_t i = 0; i < data_.added.size(); ++i)
    if (!normalized[i].empty()) texts[data_.added[i].id] = normalized[i];
  byte_token_.resize(data_.tokens.size());
  for (size_t id = 0; id < data_.tokens.size(); ++id) {
    const std::string& token = data_.tokens[id];
    bytes_.push_back(DecodedText(data_.decoder, texts[id], false));
    if (data_.decoder.metaspace_first_vanishes)
      first_bytes_.push_back(DecodedText(data_.decoder, texts[id], true));
    byte_token_[id] = data_.decoder.byte_fallback && FallbackByte(token) >= 0;
    if (special_[id]) special_ids_.push_back(static_cast<int32_t>(id));
    if (!token.empty()) id_of_.emplace(token, static_cast<int32_t>(id));
  }
  for (const std::string& bytes : bytes_) most_bytes_ = std::max(most_bytes_, bytes.size());
  for (const AddedToken& token : data_.added) most_bytes_ = std::max(most_bytes_, token.content.size());
  most_bytes_ *= MostShrinking(data_);
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view text, EncodeOptions options) const {
  return EncodeMarked(MarkedText(text), options);
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodeSegments(absl::Span<const TextSegment> segments) const {
  MarkedText text;
  for (const TextSegment& segment : segments) text.Append(segment.text, segment.from_content);
  return EncodeMarked(text, {.parse_special = true});
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodeMarked(const MarkedText& text,
                                                             EncodeOptions options) const {
  if (auto bad = FirstInvalidUtf8(text.text()))
    return absl::InvalidArgumentError(absl::StrCat("text is not UTF-8 at byte ", *bad));
  std::vector<int32_t> ids;
  if (options.add_special) ids = data_.prefix;
  for (const auto& raw : raw_matcher_.Split(text, options.parse_special)) {
    if (raw.id >= 0) {
      ids.push_back(raw.id);
      continue;
    }
    MarkedText normal = data_.normalizer.Apply(text.Slice(raw.begin, raw.end));
    for (const auto& piece : normalized_matcher_.Split(normal, options.parse_special)) {
      if (piece.id >= 0) {
        ids.push_back(piece.id);
        continue;
      }
      absl::string_view words = absl::string_view(normal.text()).substr(piece.begin, piece.end - piece.begin);
      SLUICE_RETURN_IF_ERROR(EncodePlain(words, raw.begin == 0 && piece.begin == 0, &ids));
    }
  }
  if (options.add_special) ids.insert(ids.end(), data_.suffix.begin(), data_.suffix.end());
  return ids;
}

absl::Status Tokenizer::EncodePlain(absl::string_view text, bool at_start, std::vector<int32_t>* ids) const {
  PreTokenizer::Words words;
  SLUICE_RETURN_IF_ERROR(data_.pre_tokenizer.Split(text, at_start, &words));
  for (absl::string_view word : words.words) bpe_.Encode(word, ids);
  return absl::OkStatus();
}

absl::string_view Tokenizer::TokenBytes(int32_t id) const {
  return id >= 0 && id < vocab_size() ? absl::string_view(bytes_[id]) : "";
}

absl::string_view Tokenizer::FirstTokenBytes(int32_t id) const {
  return id >= 0 && id < vocab_size() && !first_bytes_.empty() ? absl::string_view(first_bytes_[id])
                                                               : TokenBytes(id);
}

std::string Tokenizer::Decode(absl::Span<const int32_t> ids, bool skip_special) const {
  Detokenizer detokenizer(this, {.skip_special = skip_special});
  std::string text;
  for (int32_t id : ids) text += detokenizer.Push(id);
  return text += detokenizer.Flush();
}

bool Tokenizer::IsSpecial(int32_t id) const { return id >= 0 && id < vocab_size() && special_[id]; }
bool Tokenizer::IsByteToken(int32_t id) const { return id >= 0 && id < vocab_size() && byte_token_[id]; }

std::optional<int32_t> Tokenizer::IdOf(absl::string_view token_text) const {
  auto it = id_of_.find(token_text);
  return it == id_of_.end() ? std::nullopt : std::optional<int32_t>(it->second);
}

}  // namespace sluice
