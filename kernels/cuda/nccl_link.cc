#include "kernels/cuda/nccl_link.h"

#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/nccl.h"
#include "kernels/rendezvous.h"

namespace sluice {
namespace {

// The first prompt of a process loads libraries meanwhile.
constexpr absl::Duration kPatience = absl::Seconds(30);

// A rank's communicator.
class Communicator {
 public:
  Communicator(const Nccl* nccl, ncclComm_t comm) : nccl_(*nccl), comm_(comm) {}

  absl::Status Sum(float* x, int64_t n, cudaStream_t stream) {
    MutexLock lock(&mu_);
    if (comm_ == nullptr) return absl::AbortedError("another rank of the model failed");
    return nccl_.Status("ncclAllReduce", nccl_.all_reduce(x, x, n, ncclFloat32, ncclSum, comm_, stream));
  }

  // Waits for a call under way, then stops its kernels at once, and returns when no recording holds the
  // communicator.
  void Abort() {
    ncclComm_t comm = nullptr;
    {
      MutexLock lock(&mu_);
      comm = std::exchange(comm_, nullptr);
    }
    if (comm != nullptr) nccl_.abort(comm);
  }

 private:
  const Nccl& nccl_;
  Mutex mu_;
  ncclComm_t comm_ ABSL_GUARDED_BY(mu_);
};

class NcclLink final : public GpuLink {
 public:
  NcclLink(const Nccl* nccl, std::vector<int> devices)
      : nccl_(*nccl),
        devices_(std::move(devices)),
        meeting_(static_cast<int>(devices_.size()), kPatience),
        communicators_(devices_.size()) {}
  ~NcclLink() override { Break(); }

  absl::Status Connect() {
    std::vector<ncclComm_t> comms(devices_.size());
    SLUICE_RETURN_IF_ERROR(nccl_.Status(
        "ncclCommInitAll", nccl_.init_all(comms.data(), static_cast<int>(comms.size()), devices_.data())));
    MutexLock lock(&mu_);
    for (size_t i = 0; i < comms.size(); ++i)
      communicators_[i] = std::make_shared<Communicator>(&nccl_, comms[i]);
    return absl::OkStatus();
  }

  absl::Status Sum(int rank, float* x, int64_t n, cudaStream_t stream) override {
    std::shared_ptr<Communicator> communicator;
    {
      MutexLock lock(&mu_);
      communicator = communicators_[rank];
    }
    if (communicator == nullptr) return absl::AbortedError("another rank of the model failed");
    cudaStreamCaptureStatus recording = cudaStreamCaptureStatusNone;
    SLUICE_RETURN_IF_ERROR(CudaStatus(cudaStreamIsCapturing(stream, &recording), "cudaStreamIsCapturing"));
    if (recording != cudaStreamCaptureStatusNone) return communicator->Sum(x, n, stream);
    return Launch([&] { return communicator->Sum(x, n, stream); });
  }

  absl::Status Launch(const std::function<absl::Status()>& launch) override {
    absl::Status status = meeting_.Launch(launch);
    if (!status.ok()) Break();  // sums that were launched wait for those that were not
    return status;
  }

  absl::StatusOr<bool> Agree(bool yes) override { return meeting_.Agree(yes); }

  int generation() const override { return generation_; }

  void Break() override {
    meeting_.Break();
    // No abort may wait for another rank's: a rank that is kept out of the driver comes out of its launch
    // when the others' kernels have stopped.
    MutexLock lock(&mu_);
    ForgetAborts();
    for (std::shared_ptr<Communicator>& broken : communicators_) {
      if (broken == nullptr) continue;
      auto over = std::make_unique<std::atomic<bool>>(false);
      aborts_.push_back({std::move(over), {}});
      aborts_.back().thread =
          NamedThread("nccl-abort", [communicator = std::move(broken), over = aborts_.back().over.get()] {
            communicator->Abort();
            *over = true;
          });
    }
  }

  absl::Status Mend() override {
    {
      MutexLock lock(&mu_);
      ForgetAborts();
      if (aborts_.size() > kMostAborts * devices_.size())
        return absl::UnavailableError(
            absl::StrCat(aborts_.size(),
                         " broken communicators do not end: the GPUs of this model need a "
                         "restart of the process"));
    }
    SLUICE_RETURN_IF_ERROR(Connect());
    meeting_.Mend();
    ++generation_;
    return absl::OkStatus();
  }

 private:
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
  Rendezvous meeting_;
  std::atomic<int> generation_{0};
  Mutex mu_;
  std::vector<std::shared_ptr<Communicator>> communicators_ ABSL_GUARDED_BY(mu_);  // by rank; null: broken
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
