#include "kernels/cuda/cuda_backend.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/nccl_link.h"
#include "kernels/cuda/round.h"
#include "kernels/cuda/row_matrix.h"

namespace sluice {
namespace {

#define SLUICE_CUDA_RETURN_IF_ERROR(call) SLUICE_RETURN_IF_ERROR(CudaStatus(call, #call))

// A GPU's memory. What is given back stays here and serves the next taker: cudaMalloc and cudaFree stop the
// whole GPU, and a prefill pass takes and gives memory in every layer. Threads: any.
class DeviceHeap : public std::enable_shared_from_this<DeviceHeap> {
 public:
  static absl::StatusOr<std::shared_ptr<DeviceHeap>> Create(int device) {
    auto heap = std::shared_ptr<DeviceHeap>(new DeviceHeap(device));
    SLUICE_CUDA_RETURN_IF_ERROR(cudaSetDevice(device));
    SLUICE_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&heap->stream_, cudaStreamNonBlocking));
    SLUICE_CUDA_RETURN_IF_ERROR(cudaDeviceGetDefaultMemPool(&heap->pool_, device));
    uint64_t keep = UINT64_MAX;
    SLUICE_CUDA_RETURN_IF_ERROR(cudaMemPoolSetAttribute(heap->pool_, cudaMemPoolAttrReleaseThreshold, &keep));
    return heap;
  }
  ~DeviceHeap() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  absl::StatusOr<Buffer> Allocate(size_t bytes) {
    void* data = nullptr;
    cudaError_t error = cudaSetDevice(device_);
    if (error == cudaSuccess) error = cudaMallocAsync(&data, std::max<size_t>(bytes, 1), stream_);
    // Any stream may use it from here on.
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
    if (error != cudaSuccess) {
      cudaGetLastError();
      return CudaStatus(error, absl::StrCat("device memory, ", bytes, " bytes"));
    }
    return Buffer(data, bytes, [heap = shared_from_this()](void* p) {
      cudaSetDevice(heap->device_);
      cudaFreeAsync(p, heap->stream_);
    });
  }

  // Lets ops of another GPU into what is and will be allocated.
  absl::Status Admit(int peer) {
    cudaMemAccessDesc access = {};
    access.location = {cudaMemLocationTypeDevice, peer};
    access.flags = cudaMemAccessFlagsProtReadWrite;
    return CudaStatus(cudaMemPoolSetAccess(pool_, &access, 1), "cudaMemPoolSetAccess");
  }

  // Held here, used by nobody.
  size_t idle_bytes() const {
    uint64_t reserved = 0, used = 0;
    cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved);
    cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemCurrent, &used);
    return reserved - used;
  }

 private:
  explicit DeviceHeap(int device) : device_(device) {}
  const int device_;
  cudaStream_t stream_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
};

// Memory that other processes map: whole allocations, each of its own pages, apart from the heap. What is
// given back stays here as well: cudaFree waits for the whole GPU, and a receive of NCCL whose peer has died
// ends only when the thread that frees goes on to abort it. Threads: any.
class ExposedMemory : public std::enable_shared_from_this<ExposedMemory> {
 public:
  explicit ExposedMemory(int device) : device_(device) {}
  ~ExposedMemory() {
    cudaSetDevice(device_);
    for (const auto& [bytes, data] : idle_) cudaFree(data);
  }

  absl::StatusOr<Buffer> Allocate(size_t bytes) {
    constexpr size_t kPage = size_t{2} << 20;
    const size_t pages = (bytes + kPage - 1) / kPage * kPage;
    void* data = nullptr;
    {
      MutexLock lock(&mu_);
      if (auto same = idle_.find(pages); same != idle_.end()) data = idle_.extract(same).mapped();
    }
    if (data == nullptr) {
      cudaError_t error = cudaSetDevice(device_);
      if (error == cudaSuccess) error = cudaMalloc(&data, pages);
      if (error != cudaSuccess) {
        cudaGetLastError();
        return CudaStatus(error, absl::StrCat("device memory, ", bytes, " bytes"));
      }
    }
    return Buffer(data, bytes, [self = shared_from_this(), pages](void* p) {
      MutexLock lock(&self->mu_);
      self->idle_.emplace(pages, p);
    });
  }

 private:
  const int device_;
  Mutex mu_;
  std::multimap<size_t, void*> idle_ ABSL_GUARDED_BY(mu_);  // by size
};

// The way of weights to the device: f32 rows are read straight into page-locked memory, copied, and rounded
// on the GPU, one half while the other is read. One matrix at a time.
class LoadLane {
 public:
  static absl::StatusOr<std::unique_ptr<LoadLane>> Create(int device) {
    auto lane = std::unique_ptr<LoadLane>(new LoadLane());
    SLUICE_CUDA_RETURN_IF_ERROR(cudaSetDevice(device));
    SLUICE_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&lane->stream_, cudaStreamNonBlocking));
    for (Half& half : lane->halves_) {
      SLUICE_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&half.done, cudaEventDisableTiming));
      SLUICE_RETURN_IF_ERROR(half.Reserve(kHalfBytes));
    }
    return lane;
  }
  ~LoadLane() {
    for (Half& half : halves_) {
      if (half.done != nullptr) cudaEventDestroy(half.done);
      half.Release();
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  absl::Status Load(int64_t rows, int64_t cols, const Backend::ReadRows& read, void* out) {
    absl::Status status = Pump(rows, cols, read, out);
    absl::Status end = CudaStatus(cudaStreamSynchronize(stream_), "load weights");
    return status.ok() ? end : status;
  }

 private:
  static constexpr size_t kHalfBytes = size_t{8} << 20;
  struct Half {
    float* pinned = nullptr;
    float* device = nullptr;
    size_t bytes = 0;
    cudaEvent_t done = nullptr;  // the GPU has read both

    absl::Status Reserve(size_t n) {
      if (n <= bytes) return absl::OkStatus();
      Release();
      SLUICE_CUDA_RETURN_IF_ERROR(cudaMallocHost(&pinned, n));
      SLUICE_CUDA_RETURN_IF_ERROR(cudaMalloc(&device, n));
      bytes = n;
      return absl::OkStatus();
    }
    void Release() {
      if (pinned != nullptr) cudaFreeHost(pinned);
      if (device != nullptr) cudaFree(device);
      pinned = device = nullptr;
      bytes = 0;
    }
  };
  LoadLane() = default;

  absl::Status Pump(int64_t rows, int64_t cols, const Backend::ReadRows& read, void* out) {
    const int64_t row_bytes = cols * static_cast<int64_t>(sizeof(float)), stride = RowMatrix::StrideOf(cols);
    const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(kHalfBytes) / row_bytes);
    for (int64_t begin = 0, i = 0; begin < rows; begin += step, ++i) {
      Half& half = halves_[i % 2];
      const int64_t end = std::min(begin + step, rows);
      SLUICE_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(half.done));
      SLUICE_RETURN_IF_ERROR(half.Reserve((end - begin) * row_bytes));
      SLUICE_RETURN_IF_ERROR(read(begin, end, half.pinned));
      SLUICE_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(half.device, half.pinned, (end - begin) * row_bytes,
                                                  cudaMemcpyHostToDevice, stream_));
      RoundToBf16Rows(half.device, cols, end - begin, cols, static_cast<uint16_t*>(out) + begin * stride,
                      stride, stream_);
      SLUICE_CUDA_RETURN_IF_ERROR(cudaGetLastError());
      SLUICE_CUDA_RETURN_IF_ERROR(cudaEventRecord(half.done, stream_));
    }
    return absl::OkStatus();
  }

  cudaStream_t stream_ = nullptr;
  Half halves_[2];
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(CudaDevice device, std::string name, std::shared_ptr<DeviceHeap> heap)
      : device_(std::move(device)), name_(std::move(name)), heap_(std::move(heap)) {}

  std::string description() const override {
    return absl::StrCat("cuda:", device_.index, ", ", name_, ", ", device_.n_sms, " multiprocessors, ",
                        CudnnAttention::Name());
  }
  DeviceMemory memory() const override {
    DeviceMemory memory;
    if (cudaSetDevice(device_.index) == cudaSuccess)
      cudaMemGetInfo(&memory.available_bytes, &memory.total_bytes);
    memory.available_bytes += heap_->idle_bytes();
    return memory;
  }
  absl::StatusOr<Buffer> Allocate(size_t bytes) override { return heap_->Allocate(bytes); }
  absl::StatusOr<Buffer> AllocateExposed(size_t bytes) override { return exposed_->Allocate(bytes); }
  bool is_gpu() const override { return true; }
  void Enter() override { cudaSetDevice(device_.index); }
  absl::Status Drain() override {
    const DeviceWaits::Wait wait(device_.waits.get());
    Enter();
    return CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  absl::StatusOr<Buffer> MapHost(void* data, size_t bytes) override {
    SLUICE_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_.index));
    const cudaError_t mapped =
        cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    // UCX registers what it allocates with the GPU, where it knows of one.
    const bool by_its_owner = mapped == cudaErrorHostMemoryAlreadyRegistered;
    if (by_its_owner) cudaGetLastError();
    if (!by_its_owner) SLUICE_RETURN_IF_ERROR(CudaStatus(mapped, "cudaHostRegister"));
    Buffer mapping(data, bytes, [device = device_.index, by_its_owner](void* p) {
      if (by_its_owner) return;
      cudaSetDevice(device);
      cudaHostUnregister(p);
    });
    void* seen = nullptr;
    SLUICE_CUDA_RETURN_IF_ERROR(cudaHostGetDevicePointer(&seen, data, 0));
    if (seen != data)
      return absl::UnimplementedError("this machine's GPU sees host memory at other addresses than the CPU");
    return mapping;
  }

  absl::StatusOr<std::unique_ptr<Matrix>> PackMatrix(int64_t rows, int64_t cols,
                                                     const ReadRows& read) override {
    SLUICE_CHECK(rows > 0 && cols > 0);
    SLUICE_ASSIGN_OR_RETURN(Buffer memory, Allocate(rows * RowMatrix::StrideOf(cols) * sizeof(uint16_t)));
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<LoadLane> lane, TakeLane());
    SLUICE_RETURN_IF_ERROR(lane->Load(rows, cols, read, memory.data()));
    {
      MutexLock lock(&mu_);
      lanes_.push_back(std::move(lane));
    }
    return std::unique_ptr<Matrix>(std::make_unique<RowMatrix>(rows, cols, std::move(memory)));
  }

  std::unique_ptr<Ops> NewOps() override { return std::make_unique<CudaOps>(device_); }
  DType product_input() const override { return DType::kBF16; }
  int64_t rows_at_once() const override { return 4096; }
  absl::Duration waiting() const override { return device_.waits->Longest(); }

  int index() const { return device_.index; }
  DeviceHeap& heap() { return *heap_; }

 private:
  absl::StatusOr<std::unique_ptr<LoadLane>> TakeLane() {
    SLUICE_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_.index));
    {
      MutexLock lock(&mu_);
      if (!lanes_.empty()) {
        std::unique_ptr<LoadLane> lane = std::move(lanes_.back());
        lanes_.pop_back();
        return lane;
      }
    }
    return LoadLane::Create(device_.index);
  }

  const CudaDevice device_;
  const std::string name_;
  const std::shared_ptr<DeviceHeap> heap_;
  const std::shared_ptr<ExposedMemory> exposed_ = std::make_shared<ExposedMemory>(device_.index);
  Mutex mu_;
  std::vector<std::unique_ptr<LoadLane>> lanes_ ABSL_GUARDED_BY(mu_);  // as many as load at once
};

}  // namespace

absl::StatusOr<int> CountCudaDevices() {
  int n = 0;
  if (cudaError_t error = cudaGetDeviceCount(&n); error != cudaSuccess) {
    cudaGetLastError();
    return absl::FailedPreconditionError(absl::StrCat("no GPU: ", cudaGetErrorString(error)));
  }
  if (n == 0) return absl::FailedPreconditionError("no GPU: the driver shows none");
  return n;
}

absl::StatusOr<std::string> CudaPciAddress(int device) {
  char address[32] = {};
  SLUICE_CUDA_RETURN_IF_ERROR(cudaDeviceGetPCIBusId(address, sizeof(address), device));
  return address;
}

namespace {

absl::StatusOr<std::unique_ptr<CudaBackend>> Open(int index, std::shared_ptr<GpuLink> link, int rank) {
  SLUICE_ASSIGN_OR_RETURN(const int n, CountCudaDevices());
  if (index < 0 || index >= n)
    return absl::FailedPreconditionError(absl::StrCat("cuda:", index, ": this machine has ", n, " GPUs"));
  cudaDeviceProp properties;
  SLUICE_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, index));
  if (properties.major != 9 || properties.minor != 0)
    return absl::FailedPreconditionError(
        absl::StrCat("cuda:", index, " is a ", properties.name, " of compute capability ", properties.major,
                     ".", properties.minor, "; kernels are compiled for 9.0 (H100, H200)"));
  CudaDevice device;
  device.index = index;
  device.n_sms = properties.multiProcessorCount;
  SLUICE_ASSIGN_OR_RETURN(device.cublas, CublasLt::Load());
  device.queues = std::make_shared<CudaQueuePool>();
  device.waits = std::make_shared<DeviceWaits>();
  device.link = std::move(link);
  device.rank = rank;
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<DeviceHeap> heap, DeviceHeap::Create(index));
  return std::make_unique<CudaBackend>(device, properties.name, std::move(heap));
}

// Both kinds of memory: the heap's, and what is allocated outside of it.
absl::Status OpenMemory(CudaBackend* of, CudaBackend* to) {
  const int owner = of->index(), reader = to->index();
  int reaches = 0;
  SLUICE_CUDA_RETURN_IF_ERROR(cudaDeviceCanAccessPeer(&reaches, reader, owner));
  if (reaches == 0)
    return absl::FailedPreconditionError(
        absl::StrCat("cuda:", reader, " cannot reach the memory of cuda:", owner,
                     ": the GPUs of one model need NVLink or PCIe peer access"));
  SLUICE_CUDA_RETURN_IF_ERROR(cudaSetDevice(reader));
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(owner, 0);
  cudaGetLastError();
  if (enabled != cudaErrorPeerAccessAlreadyEnabled)
    SLUICE_RETURN_IF_ERROR(CudaStatus(enabled, "cudaDeviceEnablePeerAccess"));
  return of->heap().Admit(reader);
}

}  // namespace

void PrepareForRanks() {
  // A library's kernels come with it: loaded at its first launch, a kernel waits for the GPU, where a sum may
  // wait.
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  // A communicator comes up with all its connections: else the first sum of a size waits inside NCCL for the
  // other ranks' calls, and nobody could break it.
  setenv("NCCL_RUNTIME_CONNECT", "0", /*overwrite=*/0);
}

absl::StatusOr<std::unique_ptr<Backend>> NewCudaBackend(int index) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<CudaBackend> backend, Open(index, nullptr, 0));
  return std::unique_ptr<Backend>(std::move(backend));
}

absl::StatusOr<std::unique_ptr<BackendGroup>> NewCudaGroup(int first, int ranks) {
  SLUICE_ASSIGN_OR_RETURN(const int n, CountCudaDevices());
  if (first < 0 || first > n - ranks)
    return absl::FailedPreconditionError(
        absl::StrCat(ranks, " GPUs from cuda:", first, " on: this machine has ", n, " GPUs"));
  std::vector<int> devices(ranks);
  std::iota(devices.begin(), devices.end(), first);
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<GpuLink> link, NewNcclLink(devices));
  std::vector<std::unique_ptr<CudaBackend>> opened;
  for (int rank = 0; rank < ranks; ++rank) {
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<CudaBackend> backend, Open(devices[rank], link, rank));
    opened.push_back(std::move(backend));
  }
  for (auto& of : opened)
    for (auto& to : opened)
      if (of != to) SLUICE_RETURN_IF_ERROR(OpenMemory(of.get(), to.get()));
  std::vector<std::unique_ptr<Backend>> backends(std::make_move_iterator(opened.begin()),
                                                 std::make_move_iterator(opened.end()));
  return std::make_unique<BackendGroup>(std::move(backends), link);
}

}  // namespace sluice
