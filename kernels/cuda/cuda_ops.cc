#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/linear.h"

namespace sluice {

CudaOps::CudaOps(const CudaDevice& device) : device_(device), linear_(new Linear(device.cublas)) {
  Begin();
  Keep(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
}

CudaOps::~CudaOps() {
  cudaSetDevice(device_.index);
  cudaStreamSynchronize(stream_);
  cudaFree(scratch_.data);
  cudaFree(counters_.data);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void CudaOps::Begin() { Keep(cudaSetDevice(device_.index), "cudaSetDevice"); }

void CudaOps::Keep(cudaError_t error, absl::string_view call) {
  if (error != cudaSuccess && error_.ok()) error_ = CudaStatus(error, call);
}

char* CudaOps::Grow(Memory* memory, size_t bytes, bool zeroed) {
  if (bytes <= memory->bytes && memory->data != nullptr) return memory->data;
  constexpr size_t kStep = size_t{1} << 20;
  bytes = (std::max(bytes, memory->bytes + memory->bytes / 2) + kStep - 1) / kStep * kStep;
  if (bytes == 0) bytes = kStep;
  // Ordered with the stream: what is queued still has the old memory.
  if (memory->data != nullptr) Keep(cudaFreeAsync(memory->data, stream_), "cudaFreeAsync");
  *memory = Memory();
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
  Begin();
  Keep(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  ring_.Deliver();
  return std::exchange(error_, absl::OkStatus());
}

}  // namespace sluice
