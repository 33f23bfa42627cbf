#include "common/text/tokenizer_json_pipeline.h"

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/text/tokenizer_files.h"

namespace sluice {
namespace {

// Sections nest only through Sequence; a deep one is hostile.
constexpr int kMaxDepth = 8;

absl::Status UnknownType(absl::string_view where, absl::string_view type) {
  return absl::UnimplementedError(absl::StrCat(where, ": type \"", type, "\" is not supported"));
}

// Calls visit(step, type) for a section, or for each member of a Sequence, in order.
template <class Visit>
absl::Status ForEachStep(const Json& section, const char* list_key, const std::string& where, int depth,
                         const Visit& visit) {
  if (section.is_null()) return absl::OkStatus();
  if (!section.is_object()) return absl::InvalidArgumentError(absl::StrCat(where, ": expected an object"));
  absl::StatusOr<std::string> type = StringField(section, "type", where);
  if (!type.ok()) return type.status();
  if (*type != "Sequence") return visit(section, *type);
  if (depth >= kMaxDepth) return absl::InvalidArgumentError(absl::StrCat(where, ": nested too deeply"));
  SLUICE_RETURN_IF_ERROR(CheckKeys(section, {"type", list_key}, where));
  const Json& list = FieldOrNull(section, list_key);
  if (!list.is_array())
    return absl::InvalidArgumentError(absl::StrCat(where, ".", list_key, ": expected a list"));
  for (const Json& step : list) SLUICE_RETURN_IF_ERROR(ForEachStep(step, list_key, where, depth + 1, visit));
  return absl::OkStatus();
}

// {"String": "..."} or {"Regex": "..."}.
struct Pattern {
  bool is_regex;
  std::string text;
};
absl::StatusOr<Pattern> ReadPattern(const Json& step, const std::string& where) {
  const Json& pattern = FieldOrNull(step, "pattern");
  SLUICE_RETURN_IF_ERROR(CheckKeys(pattern, {"String", "Regex"}, where + ".pattern"));
  if (pattern.size() != 1)
    return absl::InvalidArgumentError(absl::StrCat(where, ".pattern: expected String or Regex"));
  Pattern out;
  out.is_regex = pattern.contains("Regex");
  SLUICE_ASSIGN_OR_RETURN(out.text,
                          StringField(pattern, out.is_regex ? "Regex" : "String", where + ".pattern"));
  if (out.text.empty()) return absl::InvalidArgumentError(absl::StrCat(where, ".pattern: empty"));
  return out;
}

// A Replace step, whose pattern must be a plain string.
absl::StatusOr<std::pair<std::string, std::string>> ReadReplace(const Json& step, const std::string& where) {
  SLUICE_RETURN_IF_ERROR(CheckKeys(step, {"type", "pattern", "content"}, where));
  SLUICE_ASSIGN_OR_RETURN(Pattern pattern, ReadPattern(step, where));
  if (pattern.is_regex)
    return absl::UnimplementedError(absl::StrCat(where, ": Replace by Regex is not supported"));
  SLUICE_ASSIGN_OR_RETURN(std::string content, StringField(step, "content", where));
  return std::pair(std::move(pattern.text), std::move(content));
}

absl::StatusOr<std::shared_ptr<const Regex>> CompileShared(absl::string_view pattern,
                                                           absl::string_view where) {
  absl::StatusOr<Regex> regex = Regex::Compile(pattern);
  if (!regex.ok())
    return absl::Status(regex.status().code(), absl::StrCat(where, ": ", regex.status().message()));
  return std::make_shared<const Regex>(*std::move(regex));
}

absl::StatusOr<SplitBehavior> ReadBehavior(const Json& step, const std::string& where) {
  static const std::map<std::string, SplitBehavior> kNames = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  SLUICE_ASSIGN_OR_RETURN(std::string name, StringField(step, "behavior", where));
  auto it = kNames.find(name);
  if (it == kNames.end())
    return absl::InvalidArgumentError(absl::StrCat(where, ".behavior: unknown \"", name, "\""));
  return it->second;
}

absl::StatusOr<PreTokenizerStep> ReadSplit(const Json& step, const std::string& where) {
  SLUICE_RETURN_IF_ERROR(CheckKeys(step, {"type", "pattern", "behavior", "invert"}, where));
  PreTokenizerStep out{};
  SLUICE_ASSIGN_OR_RETURN(Pattern pattern, ReadPattern(step, where));
  out.kind = pattern.is_regex ? PreTokenizerStep::kRegex : PreTokenizerStep::kLiteral;
  if (pattern.is_regex) {
    SLUICE_ASSIGN_OR_RETURN(out.regex, CompileShared(pattern.text, where));
  } else {
    out.literal = std::move(pattern.text);
  }
  SLUICE_ASSIGN_OR_RETURN(out.behavior, ReadBehavior(step, where));
  SLUICE_ASSIGN_OR_RETURN(out.invert, BoolField(step, "invert", false, where));
  return out;
}

absl::StatusOr<PreTokenizerStep> ReadByteLevel(const Json& step, const std::string& where) {
  SLUICE_RETURN_IF_ERROR(CheckKeys(step, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, where));
  PreTokenizerStep out{};
  out.kind = PreTokenizerStep::kByteLevel;
  SLUICE_ASSIGN_OR_RETURN(out.add_prefix_space, BoolField(step, "add_prefix_space", true, where));
  SLUICE_ASSIGN_OR_RETURN(bool use_regex, BoolField(step, "use_regex", true, where));
  if (use_regex) {
    SLUICE_ASSIGN_OR_RETURN(out.regex, CompileShared(kGpt2Pattern, where));
  }
  return out;
}

// The keys that pre-tokenizer and decoder share: {replacement, when it is prepended}.
absl::StatusOr<PreTokenizerStep> ReadMetaspace(const Json& step, const std::string& where) {
  SLUICE_RETURN_IF_ERROR(CheckKeys(
      step, {"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"}, where));
  PreTokenizerStep out{};
  out.kind = PreTokenizerStep::kMetaspace;
  SLUICE_ASSIGN_OR_RETURN(out.literal, StringField(step, "replacement", where));
  if (out.literal.empty()) return absl::InvalidArgumentError(absl::StrCat(where, ".replacement: empty"));
  SLUICE_ASSIGN_OR_RETURN(bool prefix, BoolField(step, "add_prefix_space", true, where));
  std::string scheme = prefix ? "always" : "never";
  if (step.contains("prepend_scheme")) {
    SLUICE_ASSIGN_OR_RETURN(scheme, StringField(step, "prepend_scheme", where));
  }
  if (scheme != "always" && scheme != "first" && scheme != "never")
    return absl::InvalidArgumentError(absl::StrCat(where, ".prepend_scheme: unknown \"", scheme, "\""));
  if (!prefix && scheme != "never")
    return absl::InvalidArgumentError(absl::StrCat(where, ": add_prefix_space and prepend_scheme disagree"));
  out.prepend = scheme == "always"  ? PreTokenizerStep::kAlways
                : scheme == "first" ? PreTokenizerStep::kFirst
                                    : PreTokenizerStep::kNever;
  SLUICE_ASSIGN_OR_RETURN(out.split_words, BoolField(step, "split", true, where));
  return out;
}

absl::Status ReadTemplate(const Json& step, const std::string& where, AroundText* around) {
  SLUICE_RETURN_IF_ERROR(CheckKeys(step, {"type", "single", "pair", "special_tokens"}, where));
  const Json& single = FieldOrNull(step, "single");
  const Json& special = FieldOrNull(step, "special_tokens");
  if (!single.is_array() || !special.is_object())
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": expected single (a list) and special_tokens (an object)"));
  bool text_seen = false;
  for (const Json& part : single) {
    if (part.is_object() && part.contains("Sequence")) {
      if (text_seen)
        return absl::UnimplementedError(absl::StrCat(where, ": the text twice is not supported"));
      text_seen = true;
      continue;
    }
    if (!part.is_object() || !part.contains("SpecialToken") || !part["SpecialToken"].is_object())
      return absl::InvalidArgumentError(absl::StrCat(where, ".single: expected Sequence or SpecialToken"));
    SLUICE_ASSIGN_OR_RETURN(std::string name, StringField(part["SpecialToken"], "id", where + ".single"));
    auto entry = special.find(name);
    if (entry == special.end() || !entry->is_object() || !FieldOrNull(*entry, "ids").is_array())
      return absl::InvalidArgumentError(absl::StrCat(where, ".special_tokens: no ids for \"", name, "\""));
    for (const Json& id : (*entry)["ids"]) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > kMaxTokenId)
        return absl::InvalidArgumentError(absl::StrCat(where, ".special_tokens: bad id of \"", name, "\""));
      (text_seen ? around->suffix : around->prefix).push_back(static_cast<int32_t>(id.get<uint64_t>()));
    }
  }
  if (!text_seen)
    return absl::UnimplementedError(absl::StrCat(where, ": a template without the text is not supported"));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Normalizer> ReadNormalizer(const Json& section) {
  const std::string where = "tokenizer.json normalizer";
  std::vector<NormalizerStep> steps;
  SLUICE_RETURN_IF_ERROR(ForEachStep(
      section, "normalizers", where, 0, [&](const Json& step, const std::string& type) -> absl::Status {
        static const std::map<std::string, NormalizerStep::Kind> kForms = {{"NFC", NormalizerStep::kNfc},
                                                                           {"NFD", NormalizerStep::kNfd},
                                                                           {"NFKC", NormalizerStep::kNfkc},
                                                                           {"NFKD", NormalizerStep::kNfkd}};
        if (auto form = kForms.find(type); form != kForms.end()) {
          steps.push_back({form->second, "", ""});
          return CheckKeys(step, {"type"}, where);
        }
        if (type == "Prepend") {
          SLUICE_RETURN_IF_ERROR(CheckKeys(step, {"type", "prepend"}, where));
          SLUICE_ASSIGN_OR_RETURN(std::string prefix, StringField(step, "prepend", where));
          steps.push_back({NormalizerStep::kPrepend, "", std::move(prefix)});
          return absl::OkStatus();
        }
        if (type == "Replace") {
          SLUICE_ASSIGN_OR_RETURN(auto replace, ReadReplace(step, where));
          steps.push_back({NormalizerStep::kReplace, std::move(replace.first), std::move(replace.second)});
          return absl::OkStatus();
        }
        return UnknownType(where, type);
      }));
  return Normalizer(std::move(steps));
}

absl::StatusOr<PreTokenizer> ReadPreTokenizer(const Json& section) {
  const std::string where = "tokenizer.json pre_tokenizer";
  std::vector<PreTokenizerStep> steps;
  SLUICE_RETURN_IF_ERROR(ForEachStep(
      section, "pretokenizers", where, 0, [&](const Json& step, const std::string& type) -> absl::Status {
        // ByteLevel turns text into bytes; what follows would see its alphabet.
        if (!steps.empty() && steps.back().kind == PreTokenizerStep::kByteLevel)
          return absl::UnimplementedError(
              absl::StrCat(where, ": ", type, " after ByteLevel is not supported"));
        absl::StatusOr<PreTokenizerStep> read = UnknownType(where, type);
        if (type == "Split") {
          read = ReadSplit(step, where);
        } else if (type == "ByteLevel") {
          read = ReadByteLevel(step, where);
        } else if (type == "Metaspace") {
          read = ReadMetaspace(step, where);
        } else if (type == "Digits") {
          SLUICE_RETURN_IF_ERROR(CheckKeys(step, {"type", "individual_digits"}, where));
          read = PreTokenizerStep{.kind = PreTokenizerStep::kDigits};
          SLUICE_ASSIGN_OR_RETURN(read->individual_digits,
                                  BoolField(step, "individual_digits", false, where));
        }
        if (read.ok()) steps.push_back(*std::move(read));
        return read.status();
      }));
  return PreTokenizer(std::move(steps));
}

absl::StatusOr<AroundText> ReadPostProcessor(const Json& section) {
  const std::string where = "tokenizer.json post_processor";
  AroundText around;
  bool seen = false;
  SLUICE_RETURN_IF_ERROR(ForEachStep(
      section, "processors", where, 0, [&](const Json& step, const std::string& type) -> absl::Status {
        if (type == "ByteLevel") return absl::OkStatus();  // moves offsets only
        if (type != "TemplateProcessing") return UnknownType(where, type);
        if (seen) return absl::UnimplementedError(absl::StrCat(where, ": two templates are not supported"));
        seen = true;
        return ReadTemplate(step, where, &around);
      }));
  return around;
}

absl::StatusOr<TokenDecoder> ReadDecoder(const Json& section) {
  const std::string where = "tokenizer.json decoder";
  if (section.is_null()) return absl::UnimplementedError(absl::StrCat(where, ": none is not supported"));
  TokenDecoder decoder;
  bool fused = false;
  SLUICE_RETURN_IF_ERROR(ForEachStep(
      section, "decoders", where, 0, [&](const Json& step, const std::string& type) -> absl::Status {
        auto misplaced = [&] {
          return absl::UnimplementedError(absl::StrCat(where, ": ", type, " at this place is not supported"));
        };
        if (decoder.byte_level) return misplaced();
        if (type == "ByteLevel") {
          if (decoder.byte_fallback || fused || !decoder.metaspace.empty()) return misplaced();
          decoder.byte_level = true;
        } else if (type == "Replace") {
          if (decoder.byte_fallback || fused) return misplaced();
          SLUICE_ASSIGN_OR_RETURN(auto replace, ReadReplace(step, where));
          decoder.replacements.push_back(std::move(replace));
        } else if (type == "Metaspace") {
          if (fused || !decoder.metaspace.empty()) return misplaced();
          SLUICE_ASSIGN_OR_RETURN(PreTokenizerStep space, ReadMetaspace(step, where));
          decoder.metaspace = space.literal;
          decoder.metaspace_first_vanishes = space.prepend != PreTokenizerStep::kNever;
        } else if (type == "ByteFallback") {
          if (fused) return misplaced();
          decoder.byte_fallback = true;
        } else if (type == "Fuse") {
          fused = true;
        } else if (type == "Strip") {
          SLUICE_RETURN_IF_ERROR(CheckKeys(step, {"type", "content", "start", "stop"}, where));
          SLUICE_ASSIGN_OR_RETURN(std::string content, StringField(step, "content", where));
          SLUICE_ASSIGN_OR_RETURN(int64_t start, IntField(step, "start", where));
          SLUICE_ASSIGN_OR_RETURN(int64_t stop, IntField(step, "stop", where));
          if (!fused || content != " " || stop != 0 || start < 0 || start > 16) return misplaced();
          decoder.strip_leading_spaces += static_cast<int>(start);
        } else {
          return UnknownType(where, type);
        }
        return absl::OkStatus();
      }));
  return decoder;
}

}  // namespace sluice
