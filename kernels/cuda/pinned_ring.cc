#include "kernels/cuda/pinned_ring.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

namespace sluice {
namespace {

size_t Aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

PinnedRing::~PinnedRing() {
  for (cudaEvent_t event : read_)
    if (event != nullptr) cudaEventDestroy(event);
  if (memory_ != nullptr) cudaFreeHost(memory_);
}

cudaError_t PinnedRing::Start() {
  if (memory_ != nullptr) return cudaSuccess;
  for (cudaEvent_t& event : read_) {
    if (event != nullptr) continue;
    if (cudaError_t e = cudaEventCreateWithFlags(&event, cudaEventDisableTiming); e != cudaSuccess) return e;
  }
  return cudaMallocHost(&memory_, kSegments * kSegmentBytes + kOutBytes);
}

cudaError_t PinnedRing::CopyIn(const void* host, void* device, size_t bytes, cudaStream_t stream) {
  if (cudaError_t e = Start(); e != cudaSuccess) return e;
  for (size_t done = 0; done < bytes;) {
    if (used_ == kSegmentBytes) {
      if (cudaError_t e = cudaEventRecord(read_[segment_], stream); e != cudaSuccess) return e;
      segment_ = (segment_ + 1) % kSegments;
      used_ = 0;
      // An event that was never recorded is complete.
      if (cudaError_t e = cudaEventSynchronize(read_[segment_]); e != cudaSuccess) return e;
    }
    const size_t piece = std::min(bytes - done, kSegmentBytes - used_);
    char* pinned = memory_ + segment_ * kSegmentBytes + used_;
    std::memcpy(pinned, static_cast<const char*>(host) + done, piece);
    if (cudaError_t e =
            cudaMemcpyAsync(static_cast<char*>(device) + done, pinned, piece, cudaMemcpyHostToDevice, stream);
        e != cudaSuccess)
      return e;
    used_ = std::min(kSegmentBytes, used_ + Aligned(piece));
    done += piece;
  }
  return cudaSuccess;
}

cudaError_t PinnedRing::CopyOut(const void* device, void* host, size_t bytes, cudaStream_t stream) {
  if (cudaError_t e = Start(); e != cudaSuccess) return e;
  cudaPointerAttributes attributes;
  if (cudaError_t e = cudaPointerGetAttributes(&attributes, host); e != cudaSuccess) return e;
  const bool locked = attributes.type == cudaMemoryTypeHost;  // Backend::MapHost
  if (locked || Aligned(bytes) > kOutBytes - out_used_)
    return cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream);
  char* pinned = memory_ + kSegments * kSegmentBytes + out_used_;
  out_used_ += Aligned(bytes);
  arrivals_.push_back({pinned, host, bytes});
  return cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, stream);
}

void PinnedRing::Deliver() {
  for (const Arrival& a : arrivals_) std::memcpy(a.host, a.pinned, a.bytes);
  Forget();
}

void PinnedRing::Forget() {
  arrivals_.clear();
  out_used_ = 0;
}

}  // namespace sluice
