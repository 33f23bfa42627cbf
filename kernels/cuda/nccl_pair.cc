#include "kernels/cuda/nccl_pair.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/nccl.h"

namespace sluice {
namespace {

#define SLUICE_CUDA_RETURN_IF_ERROR(call) SLUICE_RETURN_IF_ERROR(CudaStatus(call, #call))

class Pair final : public NcclPair {
 public:
  Pair(const Nccl* nccl, int device, int rank) : nccl_(*nccl), device_(device), rank_(rank) {}
  ~Pair() override {
    Abort();
    aborter_.Join();
    for (const Operation& op : queue_) events_.push_back(op.event);
    for (cudaEvent_t event : events_)
      if (event != nullptr) cudaEventDestroy(event);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  absl::Status Join(const ncclUniqueId& id) {
    int least = 0, greatest = 0;
    SLUICE_CUDA_RETURN_IF_ERROR(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    SLUICE_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, least));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = kMaxCtas;
    const ncclResult_t begun = nccl_.init_rank(&comm_, 2, id, rank_, &config);
    return begun == ncclInProgress ? absl::OkStatus() : nccl_.Status("ncclCommInitRankConfig", begun);
  }

  int64_t Send(const void* data, size_t bytes) override { return Add(true, const_cast<void*>(data), bytes); }
  int64_t Receive(void* data, size_t bytes) override { return Add(false, data, bytes); }

  // At most one operation is being launched; those launched end in order.
  bool Progress() override {
    if (queue_.empty() || !status_.ok() || aborting_) return false;  // an abort ends kernels half done
    bool moved = false;
    while (Ready() && begun_ < queue_.size()) {
      Operation& op = queue_[begun_];
      if (!op.launching) {
        op.launching = true;
        Keep("send or receive", op.send
                                    ? nccl_.send(op.data, op.bytes, ncclInt8, 1 - rank_, comm_, stream_)
                                    : nccl_.receive(op.data, op.bytes, ncclInt8, 1 - rank_, comm_, stream_));
        continue;  // it may be under way still
      }
      Record(&op);
      ++begun_;
      moved = true;
    }
    while (status_.ok() && begun_ > 0) {
      const cudaError_t ended = cudaEventQuery(queue_.front().event);
      if (ended == cudaErrorNotReady) break;
      if (ended != cudaSuccess) {
        status_ = CudaStatus(ended, "cudaEventQuery");
        break;
      }
      ended_[queue_.front().id] = State::kDone;
      events_.push_back(queue_.front().event);
      queue_.pop_front();
      --begun_;
      moved = true;
    }
    return moved;
  }

  State Poll(int64_t operation) override {
    if (auto it = ended_.find(operation); it != ended_.end()) {
      const State state = it->second;
      ended_.erase(it);
      return state;
    }
    const bool queued = !queue_.empty() && operation >= queue_.front().id && operation <= queue_.back().id;
    return queued && status_.ok() && !aborting_ ? State::kPending : State::kFailed;
  }

  absl::Status status() const override { return status_; }

  void Abort() override {
    if (std::exchange(aborting_, true)) return;
    aborter_ = NamedThread("nccl-abort", [this] {
      cudaSetDevice(device_);
      if (comm_ != nullptr) nccl_.abort(comm_);
      if (stream_ != nullptr) cudaStreamSynchronize(stream_);
      aborted_ = true;
    });
  }
  bool aborted() const override { return aborted_; }

 private:
  // Multiprocessors that a transfer may take from the model's kernels.
  static constexpr int kMaxCtas = 32;
  struct Operation {
    int64_t id;
    bool send;
    void* data;
    size_t bytes;
    bool launching = false;
    cudaEvent_t event = nullptr;
  };

  int64_t Add(bool send, void* data, size_t bytes) {
    queue_.push_back({++last_id_, send, data, bytes});
    return last_id_;
  }
  void Keep(absl::string_view call, ncclResult_t result) {
    if (result != ncclInProgress && status_.ok()) status_ = nccl_.Status(call, result);
  }
  // The communicator has nothing under way that it must finish before the next call.
  bool Ready() {
    if (!status_.ok() || aborting_) return false;
    ncclResult_t state = ncclSuccess;
    Keep("ncclCommGetAsyncError", nccl_.get_async_error(comm_, &state));
    Keep("NCCL", state);
    return status_.ok() && state == ncclSuccess;
  }
  void Record(Operation* op) {
    cudaError_t error = cudaSuccess;
    if (events_.empty()) {
      error = cudaEventCreateWithFlags(&op->event, cudaEventDisableTiming);
    } else {
      op->event = events_.back();
      events_.pop_back();
    }
    if (error == cudaSuccess) error = cudaEventRecord(op->event, stream_);
    if (error != cudaSuccess) status_ = CudaStatus(error, "cudaEventRecord");
  }

  const Nccl& nccl_;
  const int device_, rank_;
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
  std::deque<Operation> queue_;
  size_t begun_ = 0;  // of queue_: launched, with their events
  std::vector<cudaEvent_t> events_;
  std::map<int64_t, State> ended_;
  int64_t last_id_ = 0;
  absl::Status status_;
  bool aborting_ = false;
  std::atomic<bool> aborted_{false};
  NamedThread aborter_;
};

}  // namespace

absl::StatusOr<std::string> NcclVersion() {
  SLUICE_ASSIGN_OR_RETURN(const Nccl* nccl, Nccl::Load());
  int version = 0;
  SLUICE_RETURN_IF_ERROR(nccl->Status("ncclGetVersion", nccl->get_version(&version)));
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusOr<std::string> NewNcclId() {
  SLUICE_ASSIGN_OR_RETURN(const Nccl* nccl, Nccl::Load());
  ncclUniqueId id;
  SLUICE_RETURN_IF_ERROR(nccl->Status("ncclGetUniqueId", nccl->get_unique_id(&id)));
  return std::string(id.internal, sizeof(id.internal));
}

absl::StatusOr<std::string> NcclDeviceName() {
  int device = 0;
  cudaDeviceProp properties;
  SLUICE_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  SLUICE_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, device));
  std::string name = "GPU-";
  for (char c : properties.uuid.bytes)
    absl::StrAppend(&name, absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
  return name;
}

absl::StatusOr<std::unique_ptr<NcclPair>> JoinNcclPair(absl::string_view id, int rank) {
  SLUICE_ASSIGN_OR_RETURN(const Nccl* nccl, Nccl::Load());
  ncclUniqueId unique;
  if (id.size() != sizeof(unique.internal))
    return absl::InvalidArgumentError("nccl: an id of another length");
  std::memcpy(unique.internal, id.data(), id.size());
  int device = 0;
  SLUICE_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  auto pair = std::make_unique<Pair>(nccl, device, rank);
  SLUICE_RETURN_IF_ERROR(pair->Join(unique));
  return std::unique_ptr<NcclPair>(std::move(pair));
}

}  // namespace sluice
