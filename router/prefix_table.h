// Role: which prefill workers have computed the beginning of a prompt, so that the next session over the same
// text goes where it is remembered. Why it exists: a worker's prefix tree is its own; a router that routes by
// it needs a small, bounded memory of what it sent where. It only guides: a wrong entry costs a computation.
// Threads: one owner.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

inline constexpr int kPrefixBlock = 256;  // tokens

// One hash for each whole block, of it and of all before it. `partition`: who shares prefixes; two partitions
// share none.
std::vector<uint64_t> PrefixHashes(absl::string_view partition, absl::Span<const int32_t> ids);

class PrefixTable {
 public:
  // most: blocks remembered; beyond, the ones not seen for longest go.
  explicit PrefixTable(size_t most = 1 << 16) : most_(most) {}

  // This worker has computed all of it.
  void Remember(absl::Span<const uint64_t> prefix, const std::string& incarnation);
  // Tokens of the prefix that each worker has, by incarnation; who has none is not there.
  std::map<std::string, int64_t> Holders(absl::Span<const uint64_t> prefix) const;
  // It holds nothing any more.
  void Forget(const std::string& incarnation);

  size_t blocks() const { return blocks_.size(); }

 private:
  struct Block {
    std::vector<uint32_t> workers;  // the last one first
    std::list<uint64_t>::iterator age;
  };

  const size_t most_;
  uint32_t next_worker_ = 0;
  // A worker that is forgotten and comes back gets another number: old entries name nobody.
  std::map<std::string, uint32_t> numbers_;  // by incarnation
  std::map<uint32_t, std::string> incarnations_;
  std::list<uint64_t> by_age_;  // the last one first
  std::unordered_map<uint64_t, Block> blocks_;
};

}  // namespace sluice
