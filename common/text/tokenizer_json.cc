// tokenizer.json and tokenizer_config.json of Hugging Face.
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/text/json_fields.h"
#include "common/text/tokenizer_files.h"
#include "common/text/tokenizer_json_pipeline.h"

namespace sluice {
namespace {

// What is known so far.
struct Index {
  absl::flat_hash_map<std::string, int32_t> ids;  // by text
  absl::flat_hash_set<int32_t> added;
};

absl::StatusOr<int32_t> TokenId(const Json& value, absl::string_view where) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(kMaxTokenId))
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": an id must be a whole number from 0 to ", kMaxTokenId));
  return static_cast<int32_t>(value.get<uint64_t>());
}

absl::Status PlaceToken(const std::string& text, int32_t id, absl::string_view where, TokenizerData* data,
                        Index* index) {
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(where, ": token ", id, " is empty"));
  if (static_cast<size_t>(id) >= data->tokens.size()) data->tokens.resize(id + 1);
  if (!data->tokens[id].empty() && data->tokens[id] != text)
    return absl::InvalidArgumentError(absl::StrCat(where, ": id ", id, " belongs to two tokens"));
  auto [it, inserted] = index->ids.emplace(text, id);
  if (it->second != id)
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": token ", id, " has the text of token ", it->second));
  data->tokens[id] = text;
  return absl::OkStatus();
}

absl::Status ReadVocab(const Json& model, TokenizerData* data, Index* index) {
  const Json& vocab = FieldOrNull(model, "vocab");
  if (!vocab.is_object()) return absl::InvalidArgumentError("tokenizer.json model.vocab: expected an object");
  for (const auto& [text, value] : vocab.items()) {
    SLUICE_ASSIGN_OR_RETURN(int32_t id, TokenId(value, "tokenizer.json model.vocab"));
    SLUICE_RETURN_IF_ERROR(PlaceToken(text, id, "tokenizer.json model.vocab", data, index));
  }
  return absl::OkStatus();
}

// ["a", "b"], or "a b" in older files.
absl::Status ReadMerges(const Json& model, const Index& index, TokenizerData* data) {
  const Json& merges = FieldOrNull(model, "merges");
  if (!merges.is_array()) return absl::InvalidArgumentError("tokenizer.json model.merges: expected a list");
  for (const Json& merge : merges) {
    int32_t rank = static_cast<int32_t>(data->merges.size());
    const std::string where = absl::StrCat("tokenizer.json model.merges[", rank, "]");
    std::string left, right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else if (merge.is_string()) {
      std::string pair = merge.get<std::string>();
      size_t space = pair.find(' ');
      if (space == std::string::npos || pair.find(' ', space + 1) != std::string::npos)
        return absl::InvalidArgumentError(absl::StrCat(where, ": expected two tokens"));
      left = pair.substr(0, space);
      right = pair.substr(space + 1);
    } else {
      return absl::InvalidArgumentError(absl::StrCat(where, ": expected two tokens"));
    }
    auto l = index.ids.find(left), r = index.ids.find(right), m = index.ids.find(left + right);
    if (l == index.ids.end() || r == index.ids.end() || m == index.ids.end())
      return absl::InvalidArgumentError(absl::StrCat(where, ": a token is not in the vocabulary"));
    data->merges.push_back({l->second, r->second, m->second, rank});
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const Json& model, TokenizerData* data, Index* index) {
  const std::string where = "tokenizer.json model";
  if (!model.is_object()) return absl::InvalidArgumentError(where + ": expected an object");
  if (!FieldOrNull(model, "type").is_null()) {  // older files leave it out
    SLUICE_ASSIGN_OR_RETURN(std::string type, StringField(model, "type", where));
    if (type != "BPE")
      return absl::UnimplementedError(absl::StrCat(where, ": type \"", type, "\" is not supported"));
  }
  SLUICE_RETURN_IF_ERROR(
      CheckKeys(model,
                {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                 "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"},
                where));
  if (const Json& dropout = FieldOrNull(model, "dropout"); !dropout.is_null() && dropout != 0)
    return absl::UnimplementedError(where + ".dropout is not supported");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const Json& affix = FieldOrNull(model, key); !affix.is_null() && affix != "")
      return absl::UnimplementedError(absl::StrCat(where, ".", key, " is not supported"));
  SLUICE_ASSIGN_OR_RETURN(data->bpe.fuse_unk, BoolField(model, "fuse_unk", false, where));
  SLUICE_ASSIGN_OR_RETURN(data->bpe.byte_fallback, BoolField(model, "byte_fallback", false, where));
  SLUICE_ASSIGN_OR_RETURN(data->bpe.ignore_merges, BoolField(model, "ignore_merges", false, where));
  SLUICE_RETURN_IF_ERROR(ReadVocab(model, data, index));
  SLUICE_RETURN_IF_ERROR(ReadMerges(model, *index, data));
  if (!FieldOrNull(model, "unk_token").is_null()) {
    SLUICE_ASSIGN_OR_RETURN(std::string unk, StringField(model, "unk_token", where));
    auto it = index->ids.find(unk);
    if (it == index->ids.end())
      return absl::InvalidArgumentError(where + ".unk_token is not in the vocabulary");
    data->bpe.unk_id = it->second;
  }
  return absl::OkStatus();
}

absl::Status ReadAddedToken(const Json& entry, int32_t id, const std::string& where, TokenizerData* data,
                            Index* index) {
  SLUICE_RETURN_IF_ERROR(CheckKeys(
      entry, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special", "__type"}, where));
  AddedToken token;
  token.id = id;
  SLUICE_ASSIGN_OR_RETURN(token.content, StringField(entry, "content", where));
  SLUICE_ASSIGN_OR_RETURN(token.special, BoolField(entry, "special", false, where));
  SLUICE_ASSIGN_OR_RETURN(token.normalized, BoolField(entry, "normalized", !token.special, where));
  SLUICE_ASSIGN_OR_RETURN(token.lstrip, BoolField(entry, "lstrip", false, where));
  SLUICE_ASSIGN_OR_RETURN(token.rstrip, BoolField(entry, "rstrip", false, where));
  SLUICE_ASSIGN_OR_RETURN(bool single_word, BoolField(entry, "single_word", false, where));
  if (single_word) return absl::UnimplementedError(absl::StrCat(where, ": single_word is not supported"));
  SLUICE_RETURN_IF_ERROR(PlaceToken(token.content, id, where, data, index));
  if (index->added.insert(id).second) data->added.push_back(std::move(token));
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const Json& list, TokenizerData* data, Index* index) {
  if (list.is_null()) return absl::OkStatus();
  if (!list.is_array()) return absl::InvalidArgumentError("tokenizer.json added_tokens: expected a list");
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = absl::StrCat("tokenizer.json added_tokens[", i, "]");
    if (!list[i].is_object()) return absl::InvalidArgumentError(where + ": expected an object");
    SLUICE_ASSIGN_OR_RETURN(int32_t id, TokenId(FieldOrNull(list[i], "id"), where));
    SLUICE_RETURN_IF_ERROR(ReadAddedToken(list[i], id, where, data, index));
  }
  return absl::OkStatus();
}

// A token named in tokenizer_config.json: "text" or {"content": "text"}; null: none.
absl::StatusOr<std::optional<int32_t>> NamedToken(const Json& value, const std::string& where,
                                                  TokenizerData* data, Index* index) {
  if (value.is_null()) return std::nullopt;
  const Json& text = value.is_object() ? FieldOrNull(value, "content") : value;
  if (!text.is_string()) return absl::InvalidArgumentError(where + ": expected a string");
  auto it = index->ids.find(text.get<std::string>());
  if (it == index->ids.end()) return absl::InvalidArgumentError(where + " is not in the vocabulary");
  // A token of the vocabulary that the config names is a control token even if tokenizer.json does not add
  // it.
  int32_t id = it->second;
  if (index->added.insert(id).second)
    data->added.push_back({.id = id, .content = it->first, .special = true});
  return id;
}

absl::Status ReadConfig(const Json& config, TokenizerData* data, Index* index) {
  const std::string where = "tokenizer_config.json ";
  if (const Json& decoder = FieldOrNull(config, "added_tokens_decoder"); decoder.is_object()) {
    for (const auto& [key, entry] : decoder.items()) {
      const std::string place = absl::StrCat(where, "added_tokens_decoder[\"", key, "\"]");
      SLUICE_ASSIGN_OR_RETURN(int32_t id, TokenId(Json::parse(key, nullptr, false), place));
      SLUICE_RETURN_IF_ERROR(ReadAddedToken(entry, id, place, data, index));
    }
  }
  SLUICE_ASSIGN_OR_RETURN(data->bos_id,
                          NamedToken(FieldOrNull(config, "bos_token"), where + "bos_token", data, index));
  SLUICE_ASSIGN_OR_RETURN(data->eos_id,
                          NamedToken(FieldOrNull(config, "eos_token"), where + "eos_token", data, index));
  if (data->eos_id) data->eos_ids = {*data->eos_id};
  const Json& chat = FieldOrNull(config, "chat_template");
  if (chat.is_string()) {
    data->chat_template = chat.get<std::string>();
  } else if (chat.is_array()) {  // several by name
    for (const Json& named : chat)
      if (named.is_object() && FieldOrNull(named, "name") == "default" &&
          FieldOrNull(named, "template").is_string())
        data->chat_template = named["template"].get<std::string>();
  } else if (!chat.is_null()) {
    return absl::InvalidArgumentError(where + "chat_template: expected a string or a list");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerData> ReadTokenizerJson(absl::string_view tokenizer_json,
                                                absl::string_view config_json) {
  SLUICE_ASSIGN_OR_RETURN(Json root, ParseJsonObject(tokenizer_json, "tokenizer.json"));
  // truncation and padding are left aside, as Transformers does: callers decide on lengths.
  SLUICE_RETURN_IF_ERROR(CheckKeys(root,
                                   {"version", "truncation", "padding", "added_tokens", "normalizer",
                                    "pre_tokenizer", "post_processor", "decoder", "model"},
                                   "tokenizer.json"));
  TokenizerData data;
  Index index;
  SLUICE_RETURN_IF_ERROR(ReadModel(FieldOrNull(root, "model"), &data, &index));
  SLUICE_RETURN_IF_ERROR(ReadAddedTokens(FieldOrNull(root, "added_tokens"), &data, &index));
  SLUICE_ASSIGN_OR_RETURN(data.normalizer, ReadNormalizer(FieldOrNull(root, "normalizer")));
  SLUICE_ASSIGN_OR_RETURN(data.pre_tokenizer, ReadPreTokenizer(FieldOrNull(root, "pre_tokenizer")));
  data.bpe.byte_level = data.pre_tokenizer.byte_level();
  SLUICE_ASSIGN_OR_RETURN(data.decoder, ReadDecoder(FieldOrNull(root, "decoder")));
  SLUICE_ASSIGN_OR_RETURN(AroundText around, ReadPostProcessor(FieldOrNull(root, "post_processor")));
  data.prefix = std::move(around.prefix);
  data.suffix = std::move(around.suffix);
  if (!config_json.empty()) {
    SLUICE_ASSIGN_OR_RETURN(Json config, ParseJsonObject(config_json, "tokenizer_config.json"));
    SLUICE_RETURN_IF_ERROR(ReadConfig(config, &data, &index));
  }
  return data;
}

}  // namespace sluice
