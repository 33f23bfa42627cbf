// Role: text to token ids and token ids to bytes, with the same ids as Hugging Face's tokenizers.
// Why: the router tokenises once; prompts, sessions and caches are compared by these ids.
// Threads: immutable after construction; every method from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/text/added_tokens.h"
#include "common/text/bpe.h"
#include "common/text/marked_text.h"
#include "common/text/normalizer.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/token_decoder.h"

namespace sluice {

// What a GGUF file says about its tokenizer (metadata keys tokenizer.*); the reader of the file fills it.
struct TokenizerParts {
  std::string model;                // tokenizer.ggml.model: "gpt2" or "llama"
  std::string pre;                  // tokenizer.ggml.pre, "" if absent (gpt2 only)
  std::vector<std::string> tokens;  // as in the file: byte alphabet for gpt2, "▁" and "<0xXX>" for llama
  std::vector<float> scores;        // llama only
  std::vector<int32_t>
      token_types;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; may be empty
  std::vector<std::string> merges;  // gpt2 only: "left right", best first
  std::optional<int32_t> bos_id, eos_id, eot_id, unk_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix;  // absent: the model kind's default
  std::string chat_template;
};

// Everything a tokenizer is made of, from either kind of file.
struct TokenizerData {
  std::vector<std::string> tokens;  // by id, as written in the vocabulary; "" = no such token
  std::vector<AddedToken> added;
  std::vector<BpeMerge> merges;
  BpeOptions bpe;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  TokenDecoder decoder;
  std::vector<int32_t> prefix, suffix;  // what add_special puts around a text
  std::optional<int32_t> bos_id, eos_id;
  std::vector<int32_t> eos_ids;
  std::string chat_template;
};

struct EncodeOptions {
  bool parse_special = false;  // text that looks like a control token becomes that token
  bool add_special = false;    // BOS and EOS as the tokenizer's own rule says
};

class Tokenizer {
 public:
  // tokenizer_config_json may be empty. InvalidArgument: the file is broken; Unimplemented: it asks for
  // something that would change ids and is not supported. Both name the place.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(absl::string_view tokenizer_json,
                                                             absl::string_view tokenizer_config_json);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromParts(TokenizerParts parts);

  // InvalidArgument names the first byte that is not UTF-8.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, EncodeOptions options = {}) const;
  // One text made of segments: words and merges cross the borders as if there were none, but a control token
  // is recognised only where it lies in template text entirely.
  absl::StatusOr<std::vector<int32_t>> EncodeSegments(absl::Span<const TextSegment> segments) const;

  // Bytes of one token, not always whole code points; empty for ids without a token. Control tokens give
  // their text. The first token of a whole text may have other bytes (SentencePiece's leading space).
  absl::string_view TokenBytes(int32_t id) const;
  absl::string_view FirstTokenBytes(int32_t id) const;
  // How many spaces fall off the front of a whole decoded text.
  int strip_leading_spaces() const { return data_.decoder.strip_leading_spaces; }
  // Decodes a whole text; bytes that are not UTF-8 become U+FFFD.
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special = true) const;

  // No text of so many bytes has fewer tokens. 0 where a token may stand for text of any length.
  size_t LeastTokens(size_t bytes) const { return most_bytes_ == 0 ? 0 : bytes / most_bytes_; }

  int vocab_size() const { return static_cast<int>(data_.tokens.size()); }
  bool IsSpecial(int32_t id) const;
  bool IsByteToken(int32_t id) const;  // a <0xXX> of byte fallback
  // Ids of all control tokens, ascending.
  const std::vector<int32_t>& special_ids() const { return special_ids_; }
  std::optional<int32_t> IdOf(absl::string_view token_text) const;  // as written in the vocabulary

  std::optional<int32_t> bos_id() const { return data_.bos_id; }
  const std::vector<int32_t>& eos_ids() const { return data_.eos_ids; }  // what the tokenizer's files name
  // Texts for the chat template; "" if there is no such token.
  std::string bos_token() const { return data_.bos_id ? data_.tokens[*data_.bos_id] : ""; }
  std::string eos_token() const { return data_.eos_id ? data_.tokens[*data_.eos_id] : ""; }
  const std::string& chat_template() const { return data_.chat_template; }  // "" if the files have none

  // 16 hex digits over everything that decides ids and bytes.
  const std::string& hash() const { return hash_; }

 private:
  explicit Tokenizer(TokenizerData data);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Build(TokenizerData data);
  absl::StatusOr<std::vector<int32_t>> EncodeMarked(const MarkedText& text, EncodeOptions options) const;
  absl::Status EncodePlain(absl::string_view text, bool at_start, std::vector<int32_t>* ids) const;

  const TokenizerData data_;
  const Bpe bpe_;
  AddedTokenMatcher raw_matcher_, normalized_matcher_;
  std::vector<std::string> bytes_;        // by id
  std::vector<std::string> first_bytes_;  // by id; empty vector: the same as bytes_
  std::vector<bool> special_, byte_token_;
  std::vector<int32_t> special_ids_;
  size_t most_bytes_ = 0;                                  // of the text of one token; 0: no bound
  absl::flat_hash_map<absl::string_view, int32_t> id_of_;  // views into data_.tokens
  std::string hash_;
};

}  // namespace sluice
