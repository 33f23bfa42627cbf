#include "decode_server/generation.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {

absl::Status GenerationTable::Add(std::shared_ptr<Generation> generation) {
  MutexLock lock(&mu_);
  if (static_cast<int>(generations_.size()) >= capacity_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "decode holds ", capacity_, " requests, its limit; raise --max-requests or add a decode server"));
  }
  HandoffKey key = generation->key;
  if (!generations_.emplace(key, std::move(generation)).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("handoff ", key.id, " attempt ", key.attempt, " is registered"));
  }
  return absl::OkStatus();
}

std::shared_ptr<Generation> GenerationTable::Find(const HandoffKey& key) const {
  MutexLock lock(&mu_);
  auto found = generations_.find(key);
  return found == generations_.end() ? nullptr : found->second;
}

void GenerationTable::Remove(const HandoffKey& key) {
  MutexLock lock(&mu_);
  generations_.erase(key);
}

int GenerationTable::size() const {
  MutexLock lock(&mu_);
  return static_cast<int>(generations_.size());
}

}  // namespace sluice
