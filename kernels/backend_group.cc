#include "kernels/backend_group.h"

#include <immintrin.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace sluice {
namespace {

std::vector<std::unique_ptr<Backend>> Only(std::unique_ptr<Backend> backend) {
  std::vector<std::unique_ptr<Backend>> ranks;
  ranks.push_back(std::move(backend));
  return ranks;
}

// Returns when `value` is not `seen` any more. Spins before it parks: decode steps follow each other closely.
template <class T>
void WaitWhile(const std::atomic<T>& value, T seen) {
  constexpr int kSpins = 2000;  // pauses: about 50 us
  for (int i = 0; i < kSpins; ++i) {
    if (value.load() != seen) return;
    _mm_pause();
  }
  value.wait(seen);
}

}  // namespace

BackendGroup::BackendGroup(std::unique_ptr<Backend> only) : BackendGroup(Only(std::move(only)), nullptr) {}

BackendGroup::BackendGroup(std::vector<std::unique_ptr<Backend>> ranks, std::shared_ptr<RankLink> link)
    : ranks_(std::move(ranks)), link_(std::move(link)) {
  SLUICE_CHECK(!ranks_.empty() && (link_ != nullptr) == (ranks_.size() > 1));
  for (int rank = 1; rank < size(); ++rank)
    threads_.emplace_back("rank-" + std::to_string(rank), [this, rank] { RankLoop(rank); });
}

BackendGroup::~BackendGroup() {
  stop_ = true;
  ++run_;
  run_.notify_all();
  threads_.clear();
}

std::string BackendGroup::description() const {
  if (size() == 1) return rank(0)->description();
  return absl::StrCat(size(), " ranks: ", absl::StrJoin(ranks_, "; ", [](std::string* out, const auto& rank) {
                        out->append(rank->description());
                      }));
}

absl::Duration BackendGroup::waiting() const {
  absl::Duration longest;
  for (const auto& rank : ranks_) longest = std::max(longest, rank->waiting());
  return longest;
}

absl::Status BackendGroup::Run(const std::function<absl::Status(int rank)>& call) {
  if (link_ == nullptr) return call(0);
  if (broken_) SLUICE_RETURN_IF_ERROR(link_->Mend());
  broken_ = false;
  call_ = &call;
  busy_ = size() - 1;
  ++run_;
  run_.notify_all();
  RunRank(0);
  for (int busy = busy_; busy > 0; busy = busy_) WaitWhile(busy_, busy);
  MutexLock lock(&mu_);
  broken_ = !first_error_.ok();
  if (broken_) ++errors_;
  return std::exchange(first_error_, absl::OkStatus());
}

void BackendGroup::RunRank(int rank) {
  absl::Status status = (*call_)(rank);
  if (status.ok()) return;
  {
    MutexLock lock(&mu_);
    if (first_error_.ok()) first_error_ = std::move(status);
  }
  link_->Break();
}

void BackendGroup::RankLoop(int rank) {
  for (uint32_t seen = 0;;) {
    WaitWhile(run_, seen);
    if (stop_) return;
    ++seen;
    RunRank(rank);
    busy_.fetch_sub(1);
    busy_.notify_one();
  }
}

}  // namespace sluice
