// Role: results that are remembered for a while, bounded in age and number: the oldest goes first.
// Threads: one loop.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/time/time.h"

namespace sluice {

template <class Value>
class RecentMap {
 public:
  RecentMap(absl::Duration ttl, size_t max_entries) : ttl_(ttl), max_entries_(max_entries) {}

  // Valid until the next Put or Expire.
  const Value* Find(const std::string& key) const {
    auto it = entries_.find(key);
    return it == entries_.end() ? nullptr : &it->second.value;
  }

  void Put(const std::string& key, Value value, absl::Time now) {
    uint64_t stamp = ++stamp_;
    entries_.insert_or_assign(key, Entry{std::move(value), stamp});
    order_.push_back({key, stamp, now});
    while (entries_.size() > max_entries_) DropOldest();
  }

  void Expire(absl::Time now) {
    while (!order_.empty() && order_.front().at + ttl_ <= now) DropOldest();
  }

  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Value value;
    uint64_t stamp;
  };
  struct Age {
    std::string key;
    uint64_t stamp;
    absl::Time at;
  };

  // A key that was put again has a younger stamp further back: its old age is skipped.
  void DropOldest() {
    auto it = entries_.find(order_.front().key);
    if (it != entries_.end() && it->second.stamp == order_.front().stamp) entries_.erase(it);
    order_.pop_front();
  }

  const absl::Duration ttl_;
  const size_t max_entries_;
  uint64_t stamp_ = 0;
  std::unordered_map<std::string, Entry> entries_;
  std::deque<Age> order_;
};

}  // namespace sluice
