#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/nccl_link.h"
#include "kernels/views.h"

namespace sluice {

CudaQueue::CudaQueue(std::shared_ptr<const CublasLt> cublas) : linear(new Linear(std::move(cublas))) {}

CudaQueue::~CudaQueue() {
  cudaFree(scratch.data);
  cudaFree(counters.data);
  if (mark != nullptr) cudaEventDestroy(mark);
  if (stream != nullptr) cudaStreamDestroy(stream);
}

std::unique_ptr<CudaQueue> CudaQueuePool::Take() {
  MutexLock lock(&mu_);
  if (idle_.empty()) return nullptr;
  std::unique_ptr<CudaQueue> queue = std::move(idle_.back());
  idle_.pop_back();
  return queue;
}

void CudaQueuePool::Give(std::unique_ptr<CudaQueue> queue) {
  MutexLock lock(&mu_);
  idle_.push_back(std::move(queue));
}

CudaOps::CudaOps(const CudaDevice& device) : device_(device), queue_(device.queues->Take()) {
  Begin();
  if (queue_ == nullptr) {
    queue_ = std::make_unique<CudaQueue>(device_.cublas);
    Keep(cudaStreamCreateWithFlags(&queue_->stream, cudaStreamNonBlocking), "cudaStreamCreate");
    Keep(cudaEventCreateWithFlags(&queue_->mark, cudaEventDisableTiming), "cudaEventCreate");
  }
  stream_ = queue_->stream;
}

CudaOps::~CudaOps() {
  cudaSetDevice(device_.index);
  const bool usable = cudaStreamSynchronize(stream_) == cudaSuccess && stream_ != nullptr;
  queue_->ring.Forget();
  ForgetGraphs();
  if (usable) device_.queues->Give(std::move(queue_));
}

void CudaOps::Begin() { Keep(cudaSetDevice(device_.index), "cudaSetDevice"); }

void CudaOps::Keep(cudaError_t error, absl::string_view call) {
  if (error != cudaSuccess && error_.ok()) error_ = CudaStatus(error, call);
}

char* CudaOps::Grow(CudaQueue::Memory* memory, size_t bytes, bool zeroed) {
  if (bytes <= memory->bytes && memory->data != nullptr) return memory->data;
  constexpr size_t kStep = size_t{1} << 20;
  bytes = (std::max(bytes, memory->bytes + memory->bytes / 2) + kStep - 1) / kStep * kStep;
  if (bytes == 0) bytes = kStep;
  ++queue_->generation;
  // Ordered with the stream: what is queued still has the old memory.
  if (memory->data != nullptr) Keep(cudaFreeAsync(memory->data, stream_), "cudaFreeAsync");
  *memory = CudaQueue::Memory();
  void* data = nullptr;
  if (cudaError_t e = cudaMallocAsync(&data, bytes, stream_); e != cudaSuccess) {
    Keep(e, "scratch memory");
    cudaGetLastError();
    return nullptr;
  }
  if (zeroed) Keep(cudaMemsetAsync(data, 0, bytes, stream_), "cudaMemsetAsync");
  *memory = {static_cast<char*>(data), bytes};
  return memory->data;
}

absl::Status CudaOps::Sync() {
  const DeviceWaits::Wait wait(device_.waits.get());
  Begin();
  Keep(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  queue_->ring.Deliver();
  return std::exchange(error_, absl::OkStatus());
}

void CudaOps::Mark() {
  Begin();
  Keep(cudaEventRecord(queue_->mark, stream_), "cudaEventRecord");
}

absl::Status CudaOps::Await() {
  const DeviceWaits::Wait wait(device_.waits.get());
  Begin();
  Keep(cudaEventSynchronize(queue_->mark), "cudaEventSynchronize");
  return std::exchange(error_, absl::OkStatus());
}

absl::Status CudaOps::Replay(const std::vector<int>& key, const std::function<absl::Status()>& enqueue) {
  const DeviceWaits::Wait wait(device_.waits.get());  // a launch waits where the queue is full
  Begin();
  if (device_.link != nullptr && link_generation_ != device_.link->generation()) {
    Keep(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");  // one may be running
    ForgetGraphs();
    link_generation_ = device_.link->generation();
  }
  Graph* graph = GraphOf(key);
  bool recordable = graph->generation == queue_->generation;
  // Ranks meet once around a recorded step and at every sum of one that is not: all must take the same way.
  if (device_.link != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(recordable, device_.link->Agree(recordable));
  }
  if (!recordable) {
    SLUICE_RETURN_IF_ERROR(enqueue());
    if (graph->exec != nullptr) cudaGraphExecDestroy(std::exchange(graph->exec, nullptr));
    graph->generation = queue_->generation;
    return absl::OkStatus();
  }
  if (graph->exec == nullptr) SLUICE_RETURN_IF_ERROR(Record(graph, enqueue));
  if (graph->exec == nullptr) return absl::OkStatus();  // Sync says why
  const auto launch = [&] { return CudaStatus(cudaGraphLaunch(graph->exec, stream_), "cudaGraphLaunch"); };
  return device_.link == nullptr ? launch() : device_.link->Launch(launch);
}

absl::Status CudaOps::Record(Graph* graph, const std::function<absl::Status()>& enqueue) {
  cudaGraph_t recorded = nullptr;
  Keep(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  absl::Status status = enqueue();
  Keep(cudaStreamEndCapture(stream_, &recorded), "cudaStreamEndCapture");
  if (recorded == nullptr) return status;
  if (status.ok()) Keep(cudaGraphInstantiate(&graph->exec, recorded, 0), "cudaGraphInstantiate");
  if (graph->exec != nullptr) Keep(cudaGraphUpload(graph->exec, stream_), "cudaGraphUpload");
  cudaGraphDestroy(recorded);
  return status;
}

void CudaOps::ForgetGraphs() {
  for (auto& [key, graph] : graphs_)
    if (graph.exec != nullptr) cudaGraphExecDestroy(graph.exec);
  graphs_.clear();
}

void CudaOps::AllReduce(TensorView x) {
  SLUICE_CHECK(x.dtype == DType::kF32 && IsContiguous(x));
  if (device_.link == nullptr) return;
  const DeviceWaits::Wait wait(device_.waits.get());  // for the other ranks
  Begin();
  absl::Status status =
      device_.link->Sum(device_.rank, x.as<float>(), static_cast<int64_t>(Bytes(x) / sizeof(float)), stream_);
  if (error_.ok()) error_ = std::move(status);
}

CudaOps::Graph* CudaOps::GraphOf(const std::vector<int>& key) {
  if (graphs_.size() >= kMaxGraphs && !graphs_.contains(key)) {
    const auto oldest = std::min_element(graphs_.begin(), graphs_.end(), [](const auto& a, const auto& b) {
      return a.second.used < b.second.used;
    });
    if (oldest->second.exec != nullptr) {
      Keep(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");  // it may be running
      cudaGraphExecDestroy(oldest->second.exec);
    }
    graphs_.erase(oldest);
  }
  Graph* graph = &graphs_[key];
  graph->used = ++clock_;
  return graph;
}

}  // namespace sluice
