#include "router/prefix_table.h"

#include <algorithm>

#include "absl/hash/hash.h"

namespace sluice {
namespace {

constexpr size_t kWorkersOfABlock = 4;

}  // namespace

std::vector<uint64_t> PrefixHashes(absl::string_view partition, absl::Span<const int32_t> ids) {
  std::vector<uint64_t> hashes;
  uint64_t hash = absl::Hash<absl::string_view>()(partition);
  for (size_t end = kPrefixBlock; end <= ids.size(); end += kPrefixBlock) {
    hash = absl::Hash<std::pair<uint64_t, absl::Span<const int32_t>>>()(
        {hash, ids.subspan(end - kPrefixBlock, kPrefixBlock)});
    hashes.push_back(hash);
  }
  return hashes;
}

void PrefixTable::Remember(absl::Span<const uint64_t> prefix, const std::string& incarnation) {
  auto [number, is_new] = numbers_.try_emplace(incarnation, next_worker_);
  if (is_new) incarnations_[next_worker_++] = incarnation;
  const uint32_t worker = number->second;
  // From the end, so that the beginning is the youngest: a prefix is of use from its beginning on.
  for (auto hash = prefix.rbegin(); hash != prefix.rend(); ++hash) {
    auto [found, added] = blocks_.try_emplace(*hash);
    Block& block = found->second;
    if (added) {
      block.age = by_age_.insert(by_age_.begin(), *hash);
    } else {
      by_age_.splice(by_age_.begin(), by_age_, block.age);
    }
    std::vector<uint32_t>& workers = block.workers;
    workers.erase(std::remove(workers.begin(), workers.end(), worker), workers.end());
    workers.insert(workers.begin(), worker);
    if (workers.size() > kWorkersOfABlock) workers.pop_back();
  }
  while (blocks_.size() > most_) {
    blocks_.erase(by_age_.back());
    by_age_.pop_back();
  }
}

std::map<std::string, int64_t> PrefixTable::Holders(absl::Span<const uint64_t> prefix) const {
  std::map<std::string, int64_t> holders;
  for (size_t i = 0; i < prefix.size(); ++i) {
    auto found = blocks_.find(prefix[i]);
    if (found == blocks_.end()) break;
    for (uint32_t worker : found->second.workers) {
      auto named = incarnations_.find(worker);
      if (named == incarnations_.end()) continue;
      // Only what begins at the beginning.
      int64_t& tokens = holders[named->second];
      if (tokens == static_cast<int64_t>(i) * kPrefixBlock) tokens += kPrefixBlock;
    }
  }
  std::erase_if(holders, [](const auto& holder) { return holder.second == 0; });
  return holders;
}

void PrefixTable::Forget(const std::string& incarnation) {
  auto found = numbers_.find(incarnation);
  if (found == numbers_.end()) return;
  incarnations_.erase(found->second);
  numbers_.erase(found);
}

}  // namespace sluice
