// Role: the bounded queue by which loops and RPC threads talk. Any thread may push or pop.
#pragma once

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace sluice {

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False when full or closed; the caller turns that into RESOURCE_EXHAUSTED or UNAVAILABLE.
  bool TryPush(T item) {
    {
      MutexLock lock(&mu_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    ready_.NotifyOne();
    return true;
  }

  // Waits up to `timeout` for one item; takes everything there is.
  std::vector<T> PopAll(absl::Duration timeout) {
    MutexLock lock(&mu_);
    if (items_.empty() && !closed_) ready_.WaitFor(&mu_, timeout);
    std::vector<T> out(std::make_move_iterator(items_.begin()), std::make_move_iterator(items_.end()));
    items_.clear();
    return out;
  }

  void Close() {
    {
      MutexLock lock(&mu_);
      closed_ = true;
    }
    ready_.NotifyAll();
  }

  size_t size() const {
    MutexLock lock(&mu_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable Mutex mu_;
  CondVar ready_;
  std::deque<T> items_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice
