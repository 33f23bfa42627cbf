#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/views.h"

namespace sluice {
namespace {

// grid (n / 256, heads), one thread an output: windows of neighbours overlap in L1.
template <bool kMaximum>
__global__ void PoolWindows(const float* scores, int64_t stride, int64_t n, int width, float* out,
                            int64_t out_stride) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= n) return;
  const float* x = scores + blockIdx.y * stride;
  const int64_t begin = max(i - width / 2, int64_t{0}), end = min(i + width / 2 + 1, n);
  float y = kMaximum ? kMinusInfinity : 0;
  for (int64_t j = begin; j < end; ++j) y = kMaximum ? fmaxf(y, x[j]) : y + x[j];
  out[blockIdx.y * out_stride + i] = kMaximum ? y : y / static_cast<float>(width);
}

// As PoolWindows, over the chunk that holds the output: all rows of a chunk add in the same order.
__global__ void PoolChunks(const float* scores, int64_t stride, int64_t n, int width, float* out,
                           int64_t out_stride) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= n) return;
  const float* x = scores + blockIdx.y * stride;
  const int64_t begin = i / width * width, end = min(begin + width, n);
  float sum = 0;
  for (int64_t j = begin; j < end; ++j) sum += x[j];
  out[blockIdx.y * out_stride + i] = sum / static_cast<float>(end - begin);
}

// weights[d] = exp(-d / reach), d < n.
__global__ void FadingWeights(float reach, int n, float* weights) {
  const int d = blockIdx.x * blockDim.x + threadIdx.x;
  if (d < n) weights[d] = static_cast<float>(exp(-static_cast<double>(d) / reach));
}

// As PoolWindows: the best of every row in reach, faded by its distance. Any reach.
__global__ void Fade(const float* scores, int64_t stride, int64_t n, const float* after, int n_after,
                     const float* before, int n_before, float* out, int64_t out_stride) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= n) return;
  const float* x = scores + blockIdx.y * stride;
  const int left = static_cast<int>(min(int64_t{n_after}, i + 1));
  const int right = static_cast<int>(min(int64_t{n_before}, n - i));
  float y = kMinusInfinity;
#pragma unroll 4
  for (int d = 0; d < left; ++d) y = fmaxf(y, x[i - d] * after[d]);
#pragma unroll 4
  for (int d = 1; d < right; ++d) y = fmaxf(y, x[i + d] * before[d]);
  out[blockIdx.y * out_stride + i] = y;
}

constexpr int kFadeRows = 1024;  // outputs of a block
constexpr int kFadeThreads = 512;
constexpr int kMostHalo = 10240;  // rows that a block reads beyond its own: what fits into shared memory

// best[i] = the best of distances [0, width) towards smaller (step -1) or greater rows, faded. The window
// doubles until two of them, overlapping, cover the reach: a maximum does not mind what it sees twice.
struct FadingWindow {
  float *best, *next;
  int step, distances;
  float* weights;  // of every widening; by one warp
  int width = 1, widenings = 0;

  __device__ void Weigh(float reach) {
    const int lane = threadIdx.x % kWarp, before = 1 << min(lane, 30);
    if (before < distances)
      weights[lane] = static_cast<float>(exp(-static_cast<double>(min(before, distances - before)) / reach));
  }

  __device__ bool done() const { return width == distances; }
  // All threads of a block, which meet afterwards.
  __device__ void Widen(int n) {
    if (done()) return;
    const int by = min(width, distances - width);
    const float weight = weights[widenings++];
    for (int i = threadIdx.x; i < n; i += kFadeThreads) {
      const int j = i + step * by;
      next[i] = j >= 0 && j < n ? fmaxf(best[i], best[j] * weight) : best[i];
    }
    float* old = best;
    best = next;
    next = old;
    width += by;
  }
};

// grid (n / kFadeRows, heads). n_after, n_before: distances with a weight, 0 among them.
__global__ __launch_bounds__(kFadeThreads) void FadeTile(const float* scores, int64_t stride, int64_t n,
                                                         float after, int n_after, float before, int n_before,
                                                         float* out, int64_t out_stride) {
  extern __shared__ float memory[];
  __shared__ float weights[2][kWarp];
  const int rows = n_after - 1 + kFadeRows + n_before - 1;
  const int64_t first = blockIdx.x * int64_t{kFadeRows} - (n_after - 1);
  const float* x = scores + blockIdx.y * stride;
  FadingWindow behind = {memory, memory + rows, -1, n_after, weights[0]};
  FadingWindow ahead = {memory + 2 * rows, memory + 3 * rows, 1, n_before, weights[1]};
  if (threadIdx.x < kWarp) behind.Weigh(after);
  if (threadIdx.x / kWarp == 1) ahead.Weigh(before);
  for (int i = threadIdx.x; i < rows; i += kFadeThreads)
    behind.best[i] = ahead.best[i] = first + i >= 0 && first + i < n ? x[first + i] : kMinusInfinity;
  __syncthreads();
  while (!behind.done() || !ahead.done()) {
    behind.Widen(rows);
    ahead.Widen(rows);
    __syncthreads();
  }
  for (int i = threadIdx.x; i < kFadeRows; i += kFadeThreads)
    if (const int64_t row = blockIdx.x * int64_t{kFadeRows} + i; row < n)
      out[blockIdx.y * out_stride + row] = fmaxf(behind.best[n_after - 1 + i], ahead.best[n_after - 1 + i]);
}

}  // namespace

void CudaOps::Pool(TensorView scores, const Pooling& pooling, TensorView out) {
  const int64_t heads = scores.shape[0], n = scores.shape[1];
  SLUICE_CHECK(Is(scores, DType::kF32, {heads, n}) && Is(out, DType::kF32, {heads, n}));
  if (n == 0) return;
  Begin();
  const dim3 grid(CeilDiv(n, 256), heads);
  if (pooling.kind == Pooling::kFading) {
    SLUICE_CHECK(pooling.after > 0 && pooling.before > 0);
    // No row is further away than n - 1.
    auto weights_of = [n](float reach) {
      return static_cast<int>(32.0 * reach < n - 1 ? 32.0 * reach : n - 1) + 1;
    };
    const int n_after = weights_of(pooling.after), n_before = weights_of(pooling.before);
    if (const int halo = n_after + n_before - 2; halo <= kMostHalo) {
      const int bytes = 4 * (halo + kFadeRows) * static_cast<int>(sizeof(float));
      AllowSharedMemory(FadeTile);
      FadeTile<<<dim3(CeilDiv(n, kFadeRows), heads), kFadeThreads, bytes, stream_>>>(
          scores.as<float>(), scores.stride[0], n, pooling.after, n_after, pooling.before, n_before,
          out.as<float>(), out.stride[0]);
      Launched("Pool");
      return;
    }
    float* after = reinterpret_cast<float*>(Reserve((n_after + n_before) * sizeof(float)));
    if (after == nullptr) return;
    float* before = after + n_after;
    FadingWeights<<<CeilDiv(n_after, 256), 256, 0, stream_>>>(pooling.after, n_after, after);
    FadingWeights<<<CeilDiv(n_before, 256), 256, 0, stream_>>>(pooling.before, n_before, before);
    Fade<<<grid, 256, 0, stream_>>>(scores.as<float>(), scores.stride[0], n, after, n_after, before, n_before,
                                    out.as<float>(), out.stride[0]);
  } else {
    const bool chunks = pooling.kind == Pooling::kChunk;
    SLUICE_CHECK(pooling.kernel >= 1 && (chunks || pooling.kernel % 2 == 1));
    auto kernel = chunks                          ? &PoolChunks
                  : pooling.kind == Pooling::kMax ? &PoolWindows<true>
                                                  : &PoolWindows<false>;
    kernel<<<grid, 256, 0, stream_>>>(scores.as<float>(), scores.stride[0], n, pooling.kernel,
                                      out.as<float>(), out.stride[0]);
  }
  Launched("Pool");
}

}  // namespace sluice
