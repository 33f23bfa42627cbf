#include "kernels/cuda/nccl_link.h"

#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "kernels/cuda/nccl.h"

namespace sluice {
namespace {

class NcclLink final : public GpuLink {
 public:
  NcclLink(const Nccl* nccl, std::vector<int> devices)
      : nccl_(*nccl), devices_(std::move(devices)), ranks_(devices_.size()) {}
  ~NcclLink() override { Break(); }

  absl::Status Connect() {
    std::vector<ncclComm_t> comms(ranks_.size());
    SLUICE_RETURN_IF_ERROR(nccl_.Status(
        "ncclCommInitAll", nccl_.init_all(comms.data(), static_cast<int>(comms.size()), devices_.data())));
    for (size_t i = 0; i < comms.size(); ++i) {
      MutexLock lock(&ranks_[i].mu);
      ranks_[i].comm = comms[i];
    }
    return absl::OkStatus();
  }

  absl::Status Sum(int rank, float* x, int64_t n, cudaStream_t stream) override {
    Rank& self = ranks_[rank];
    MutexLock lock(&self.mu);
    if (self.comm == nullptr) return absl::AbortedError("another rank of the model failed");
    return nccl_.Status("ncclAllReduce", nccl_.all_reduce(x, x, n, ncclFloat32, ncclSum, self.comm, stream));
  }

  int generation() const override { return generation_; }

  void Break() override {
    std::vector<ncclComm_t> broken;
    for (Rank& rank : ranks_) {
      MutexLock lock(&rank.mu);
      if (rank.comm != nullptr) broken.push_back(std::exchange(rank.comm, nullptr));
    }
    if (broken.empty()) return;
    // An abort stops the kernels of its rank at once, and returns when no recording holds the communicator:
    // no rank may wait for another's.
    MutexLock lock(&mu_);
    ForgetAborts();
    for (ncclComm_t comm : broken) {
      auto over = std::make_unique<std::atomic<bool>>(false);
      aborts_.push_back({std::move(over), {}});
      aborts_.back().thread = NamedThread("nccl-abort", [this, comm, over = aborts_.back().over.get()] {
        nccl_.abort(comm);
        *over = true;
      });
    }
  }

  absl::Status Mend() override {
    {
      MutexLock lock(&mu_);
      ForgetAborts();
      if (aborts_.size() > kMostAborts * ranks_.size())
        return absl::UnavailableError(
            absl::StrCat(aborts_.size(),
                         " broken communicators do not end: the GPUs of this model need a "
                         "restart of the process"));
    }
    SLUICE_RETURN_IF_ERROR(Connect());
    ++generation_;
    return absl::OkStatus();
  }

 private:
  struct Rank {
    Mutex mu;
    ncclComm_t comm ABSL_GUARDED_BY(mu) = nullptr;  // null: broken
  };
  // Of one communicator.
  struct Abort {
    std::unique_ptr<std::atomic<bool>> over;
    NamedThread thread;
  };
  static constexpr size_t kMostAborts = 8;  // under way, of a rank
  void ForgetAborts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::erase_if(aborts_, [](const Abort& abort) { return abort.over->load(); });
  }

  const Nccl& nccl_;
  const std::vector<int> devices_;
  std::vector<Rank> ranks_;
  std::atomic<int> generation_{0};
  Mutex mu_;
  std::vector<Abort> aborts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::shared_ptr<GpuLink>> NewNcclLink(const std::vector<int>& devices) {
  SLUICE_ASSIGN_OR_RETURN(const Nccl* nccl, Nccl::Load());
  auto link = std::make_shared<NcclLink>(nccl, devices);
  SLUICE_RETURN_IF_ERROR(link->Connect());
  return std::shared_ptr<GpuLink>(std::move(link));
}

}  // namespace sluice
