#include "kernels/cuda/chosen_attention.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/line_scores.cuh"
#include "kernels/cuda/shared_memory.cuh"

namespace sluice {
namespace {

// grid (blocks, heads, batch). A block takes runs of 64 pages and reads their bounds once for up to 8 heads:
// the largest score that a page could have has of each channel the bound on the side of the query.
template <class T>
__global__ __launch_bounds__(kLineThreads) void ScorePages(const __grid_constant__ ChosenArgs a) {
  extern __shared__ float q[];  // [group, d]
  __shared__ LineSums sums;
  const int head = blockIdx.y, entry = blockIdx.z, d = a.cache.d, slot = a.cache.slots[entry];
  const int len = a.cache.Length(slot, head), page = a.cache.Hsa(slot).page;
  SLUICE_DEVICE_CHECK(page > 1 && len > 0 && len <= a.room);
  const int n_pages = (len + page - 1) / page, n_runs = (n_pages + kLineValues - 1) / kLineValues;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const float* from = a.q + entry * a.q_stride + head * a.group * d;
  for (int i = threadIdx.x; i < a.group * d; i += kLineThreads) q[i] = from[i];
  __syncthreads();
  for (int run = blockIdx.x; run < n_runs; run += gridDim.x) {
    const T* low = a.cache.BoundsLine<T>(slot, head, page, run, 0, false) + 2 * lane;
    const T* high = a.cache.BoundsLine<T>(slot, head, page, run, 0, true) + 2 * lane;
    for (int first = 0; first < a.group; first += kLineHeads) {
      const int n_heads = min(kLineHeads, a.group - first);
      float2 own[kLineHeads] = {};
#pragma unroll 4
      for (int c = warp; c < d; c += kLineWarps) {
        const float2 least = LoadPair(low + c * kLineValues), most = LoadPair(high + c * kLineValues);
#pragma unroll
        for (int i = 0; i < kLineHeads; ++i) {
          if (i >= n_heads) break;
          const float x = q[(first + i) * d + c];
          own[i].x += x * (x > 0 ? most.x : least.x);
          own[i].y += x * (x > 0 ? most.y : least.y);
        }
      }
      SumOverWarps(own, n_heads, sums, [&](int i, int value, float sum) {
        a.Scores(entry, head, first + i)[run * kLineValues + value] = sum;
      });
    }
  }
}

template <class T>
void Start(const ChosenArgs& a, int n_sms, cudaStream_t stream) {
  auto kernel = ScorePages<T>;
  AllowSharedMemory(kernel);
  kernel<<<dim3(a.ScoreBlocks(n_sms), a.cache.heads, a.batch), kLineThreads,
           a.group * a.cache.d * sizeof(float), stream>>>(a);
}

void QueueScorePages(const ChosenArgs& a, int n_sms, cudaStream_t stream) {
  a.dtype == DType::kBF16 ? Start<Bf16>(a, n_sms, stream) : Start<float>(a, n_sms, stream);
}

}  // namespace

void CudaOps::QuestAttention(TensorView q, const PagedKv& cache, TensorView out) {
  AttendChosen(ChosenMethod::kQuest, q, cache, out, QueueScorePages);
}

}  // namespace sluice
