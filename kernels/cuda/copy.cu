#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/views.h"

namespace sluice {
namespace {

struct Strides {
  int64_t s0, s1, s2;  // in units of T
};

// One thread an element. T: the element, or 16 bytes of a row.
template <class T>
__global__ void CopyElements(const T* from, Strides in, T* to, Strides out, int64_t n1, int64_t n2,
                             int64_t n) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= n) return;
  const int64_t c = i % n2, row = i / n2, b = row % n1, a = row / n1;
  to[a * out.s0 + b * out.s1 + c * out.s2] = from[a * in.s0 + b * in.s1 + c * in.s2];
}

// Copies of one shape between views of the same strides.
constexpr int kCopiesOfALaunch = 128;
struct Ends {
  const uint4* from[kCopiesOfALaunch];
  uint4* to[kCopiesOfALaunch];
};

// grid (n / 256, copies).
__global__ void CopyPieces(const __grid_constant__ Ends ends, Strides in, Strides out, int n1, int n2,
                           int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int c = i % n2, row = i / n2, b = row % n1, a = row / n1;
  ends.to[blockIdx.y][a * out.s0 + b * out.s1 + c * out.s2] =
      ends.from[blockIdx.y][a * in.s0 + b * in.s1 + c * in.s2];
}

// Both views as [n0, n1, n2], leading dimensions of 1 added.
struct Rank3 {
  int64_t n[3];
  int64_t stride[3];
  explicit Rank3(const TensorView& view) {
    const int added = 3 - view.rank;
    for (int d = 0; d < 3; ++d) {
      n[d] = d < added ? 1 : view.shape[d - added];
      stride[d] = d < added ? 0 : view.stride[d - added];
    }
  }
  // Whether rows can be moved in pieces of `step` elements, 16 bytes.
  bool InSteps(const void* data, int64_t step) const {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride[2] == 1 && n[2] % step == 0 &&
           stride[0] % step == 0 && stride[1] % step == 0;
  }
  Rank3 Steps(int64_t step) const {
    Rank3 r = *this;
    r.n[2] /= step;
    r.stride[0] /= step;
    r.stride[1] /= step;
    return r;
  }
  Strides strides() const { return {stride[0], stride[1], stride[2]}; }
};

template <class T>
void Start(const TensorView& src, const TensorView& dst, Rank3 from, Rank3 to, cudaStream_t stream) {
  const int64_t n = from.n[0] * from.n[1] * from.n[2];
  CopyElements<<<CeilDiv(n, 256), 256, 0, stream>>>(src.as<T>(), from.strides(), dst.as<T>(), to.strides(),
                                                    from.n[1], from.n[2], n);
}

}  // namespace

void CudaOps::CopyIn(const void* host, TensorView dst) {
  SLUICE_CHECK(IsContiguous(dst));
  Begin();
  Keep(queue_->ring.CopyIn(host, dst.data, Bytes(dst), stream_), "CopyIn");
}

void CudaOps::CopyOut(TensorView src, void* host) {
  SLUICE_CHECK(IsContiguous(src));
  Begin();
  if (Bytes(src) > 0) Keep(queue_->ring.CopyOut(src.data, host, Bytes(src), stream_), "CopyOut");
}

void CudaOps::Copy(TensorView src, TensorView dst) {
  SLUICE_CHECK(src.rank == dst.rank && src.rank <= 3 && src.dtype == dst.dtype && src.shape == dst.shape);
  if (Bytes(src) == 0) return;
  Begin();
  if (IsContiguous(src) && IsContiguous(dst)) {
    Keep(cudaMemcpyAsync(dst.data, src.data, Bytes(src), cudaMemcpyDefault, stream_), "Copy");
    return;
  }
  Rank3 from(src), to(dst);
  const int64_t step = 16 / static_cast<int64_t>(DTypeSize(src.dtype));
  if (from.InSteps(src.data, step) && to.InSteps(dst.data, step)) {
    Start<uint4>(src, dst, from.Steps(step), to.Steps(step), stream_);
  } else {
    DTypeSize(src.dtype) == 2 ? Start<uint16_t>(src, dst, from, to, stream_)
                              : Start<uint32_t>(src, dst, from, to, stream_);
  }
  Launched("Copy");
}

void CudaOps::CopyEach(absl::Span<const CopyArgs> copies) {
  if (copies.empty()) return;
  const TensorView &src = copies[0].from, &dst = copies[0].to;
  const int64_t step = 16 / static_cast<int64_t>(DTypeSize(src.dtype));
  const Rank3 from(src), to(dst);
  const int64_t n = from.n[0] * from.n[1] * (from.n[2] / step);
  bool alike = n > 0 && n <= INT32_MAX;
  for (const CopyArgs& copy : copies) {
    SLUICE_CHECK(copy.from.rank == copy.to.rank && copy.from.rank <= 3 && copy.from.dtype == copy.to.dtype &&
                 copy.from.shape == copy.to.shape);
    alike = alike && copy.from.dtype == src.dtype && copy.from.shape == src.shape &&
            copy.from.stride == src.stride && copy.to.stride == dst.stride &&
            from.InSteps(copy.from.data, step) && to.InSteps(copy.to.data, step);
  }
  if (!alike) {
    Ops::CopyEach(copies);
    return;
  }
  Begin();
  for (size_t first = 0; first < copies.size(); first += kCopiesOfALaunch) {
    const auto some = copies.subspan(first, kCopiesOfALaunch);
    Ends ends;
    for (size_t i = 0; i < some.size(); ++i) {
      ends.from[i] = some[i].from.as<uint4>();
      ends.to[i] = some[i].to.as<uint4>();
    }
    CopyPieces<<<dim3(CeilDiv(n, 256), some.size()), 256, 0, stream_>>>(
        ends, from.Steps(step).strides(), to.Steps(step).strides(), static_cast<int>(from.n[1]),
        static_cast<int>(from.n[2] / step), static_cast<int>(n));
  }
  Launched("CopyEach");
}

}  // namespace sluice
