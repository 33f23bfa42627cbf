// Role: hands out fixed-size pieces of one device buffer: KV pages, or chunks of bounds. Counts what is
// where. Threads: any (the decode loop grows sequences while the transfer loop reserves for new ones).
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/base/strong_id.h"
#include "kernels/backend.h"

namespace sluice {

class PagePool {
 public:
  // As many pages of `page_bytes` as the buffer holds. `name` says in errors what is short: "kv pages".
  PagePool(const char* name, Buffer memory, size_t page_bytes);

  // All or nothing. ResourceExhausted says how many are needed and free.
  absl::StatusOr<std::vector<PageId>> Take(int n);
  // Pages that Take() handed out and nobody gave back yet.
  void Give(absl::Span<const PageId> pages);

  void* data() const { return memory_.data(); }
  size_t page_bytes() const { return page_bytes_; }
  int total_pages() const { return total_; }
  int free_pages() const;

 private:
  const char* const name_;
  const Buffer memory_;
  const size_t page_bytes_;
  const int total_;
  mutable Mutex mu_;
  std::vector<PageId> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
