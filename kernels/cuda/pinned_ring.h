// Role: page-locked host memory between pageable memory and a stream. Copies in go through a ring of
// segments; copies out wait in a buffer until the stream is synchronised. Why: a small copy from or to
// pageable memory would stop the stream, and a copy in must leave its source free on return. Threads: those
// of its queue.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

namespace sluice {

class PinnedRing {
 public:
  PinnedRing() = default;
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  // `host` may be reused on return.
  cudaError_t CopyIn(const void* host, void* device, size_t bytes, cudaStream_t stream);
  // `host` holds the bytes after Deliver().
  cudaError_t CopyOut(const void* device, void* host, size_t bytes, cudaStream_t stream);
  // The stream has been synchronised: hands out what was copied.
  void Deliver();
  // The stream has been synchronised: nobody waits for what was copied.
  void Forget();

 private:
  static constexpr size_t kSegments = 4, kSegmentBytes = size_t{1} << 20, kOutBytes = size_t{8} << 20;
  struct Arrival {
    const void* pinned;
    void* host;
    size_t bytes;
  };
  cudaError_t Start();

  char* memory_ = nullptr;  // the segments, then the buffer of copies out
  cudaEvent_t read_[kSegments] = {};
  size_t segment_ = 0, used_ = 0, out_used_ = 0;
  std::vector<Arrival> arrivals_;
};

}  // namespace sluice
