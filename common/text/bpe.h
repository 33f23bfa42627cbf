// Role: byte-pair encoding of one word: symbols, then merges by rank until none is left.
// Why: byte-level (GPT-2) and character-level with byte fallback (SentencePiece) differ only in the first
// symbols. Threads: immutable after Create; Encode from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

struct BpeMerge {
  int32_t left, right, merged;  // token ids
  int32_t rank;                 // lower merges first; among equal ranks the leftmost pair
};

struct BpeOptions {
  bool byte_level = false;     // symbols are bytes, else code points
  bool byte_fallback = false;  // a code point that is no token becomes its <0xXX> tokens
  bool fuse_unk = false;       // a run of unknown code points is one unk
  bool ignore_merges = false;  // a word that is a token is that token
  std::optional<int32_t> unk_id =
      {};  // without it an unknown symbol vanishes, as in Hugging Face's tokenizers
};

class Bpe {
 public:
  // pieces[id]: the token as it is matched against text (bytes if byte_level), empty = never matched.
  // Ids in merges are within pieces. A later merge of the same pair replaces an earlier one.
  Bpe(const std::vector<std::string>& pieces, const std::vector<BpeMerge>& merges, BpeOptions options);

  // Appends the ids of `word`: O(n log n).
  void Encode(absl::string_view word, std::vector<int32_t>* ids) const;

 private:
  struct Target {
    int32_t rank, merged;
  };
  void FirstSymbols(absl::string_view word, std::vector<int32_t>* ids) const;
  const Target* Find(int32_t left, int32_t right) const;
  void MergeShort(std::vector<int32_t>* ids) const;
  void MergeLong(std::vector<int32_t>* ids) const;

  const BpeOptions options_;
  absl::flat_hash_map<std::string, int32_t> id_of_piece_;
  std::array<int32_t, 256> byte_ids_;  // of the byte itself, or of <0xXX>; -1 = none
  absl::flat_hash_map<uint64_t, Target> merges_;
};

}  // namespace sluice
