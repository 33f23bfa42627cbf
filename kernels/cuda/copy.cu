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
};

template <class T>
void Start(const TensorView& src, const TensorView& dst, Rank3 from, Rank3 to, cudaStream_t stream) {
  const int64_t n = from.n[0] * from.n[1] * from.n[2];
  CopyElements<<<CeilDiv(n, 256), 256, 0, stream>>>(
      src.as<T>(), Strides{from.stride[0], from.stride[1], from.stride[2]}, dst.as<T>(),
      Strides{to.stride[0], to.stride[1], to.stride[2]}, from.n[1], from.n[2], n);
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
    for (Rank3* r : {&from, &to}) {
      r->n[2] /= step;
      r->stride[0] /= step;
      r->stride[1] /= step;
    }
    Start<uint4>(src, dst, from, to, stream_);
  } else {
    DTypeSize(src.dtype) == 2 ? Start<uint16_t>(src, dst, from, to, stream_)
                              : Start<uint32_t>(src, dst, from, to, stream_);
  }
  Launched("Copy");
}

}  // namespace sluice
