#include "common/kvcache/page_pool.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {

PagePool::PagePool(const char* name, Buffer memory, size_t page_bytes)
    : name_(name),
      memory_(std::move(memory)),
      page_bytes_(page_bytes),
      total_(static_cast<int>(memory_.bytes() / page_bytes)) {
  free_.reserve(total_);
  for (int i = total_ - 1; i >= 0; --i) free_.push_back(PageId(i));
}

absl::StatusOr<std::vector<PageId>> PagePool::Take(int n) {
  SLUICE_CHECK(n >= 0);
  MutexLock lock(&mu_);
  if (static_cast<size_t>(n) > free_.size()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name_, ": need ", n, ", free ", free_.size(), " of ", total_));
  }
  std::vector<PageId> pages(free_.end() - n, free_.end());
  free_.resize(free_.size() - n);
  return pages;
}

void PagePool::Give(absl::Span<const PageId> pages) {
  MutexLock lock(&mu_);
  SLUICE_CHECK(free_.size() + pages.size() <= static_cast<size_t>(total_));
  free_.insert(free_.end(), pages.begin(), pages.end());
}

int PagePool::free_pages() const {
  MutexLock lock(&mu_);
  return static_cast<int>(free_.size());
}

}  // namespace sluice
