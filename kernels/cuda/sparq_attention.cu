#include "common/base/status.h"
#include "kernels/cuda/chosen_attention.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/decode_tile.cuh"
#include "kernels/cuda/line_scores.cuh"
#include "kernels/cuda/shared_memory.cuh"

namespace sluice {
namespace {

struct SparqQuery {
  float* q;          // [group, d]
  float* magnitude;  // [d]: sums over the group of |q|
  float* scale;      // [group]: scores are multiplied by it, log2 e among it
  int* channels;     // [d]: the chosen first
  static size_t bytes(int group, int d) { return (group * (d + 1) + 2 * d) * sizeof(float); }
  __device__ SparqQuery(float* memory, int group, int d)
      : q(memory),
        magnitude(q + group * d),
        scale(magnitude + d),
        channels(reinterpret_cast<int*>(scale + group)) {}
};

// grid (blocks, heads, batch). A block chooses the channels, then takes runs of 64 rows and reads these
// channels of their keys, which lie transposed, once for up to 8 heads.
template <class T>
__global__ __launch_bounds__(kLineThreads) void ScoreRows(const __grid_constant__ ChosenArgs a) {
  extern __shared__ float memory[];
  __shared__ LineSums sums;
  __shared__ float scores[kLineHeads][kLineValues];
  const int head = blockIdx.y, entry = blockIdx.z, d = a.cache.d, slot = a.cache.slots[entry];
  const HsaSettings settings = a.cache.Hsa(slot);
  const int len = a.cache.Length(slot, head), k1 = settings.channels;
  SLUICE_DEVICE_CHECK(settings.page == 1 && k1 >= 1 && k1 <= d && len > 0 && len <= a.room);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const SparqQuery s(memory, a.group, d);

  const float* from = a.q + entry * a.q_stride + head * a.group * d;
  for (int c = threadIdx.x; c < d; c += kLineThreads) {
    float magnitude = 0;
    for (int g = 0; g < a.group; ++g) {
      const float x = from[g * d + c];
      s.q[g * d + c] = x;
      magnitude += fabsf(x);
    }
    s.magnitude[c] = magnitude;
  }
  __syncthreads();
  for (int c = threadIdx.x; c < d; c += kLineThreads) {
    int rank = 0;
    for (int x = 0; x < d; ++x)
      rank += s.magnitude[x] > s.magnitude[c] || (s.magnitude[x] == s.magnitude[c] && x < c);
    if (rank < k1) s.channels[rank] = c;
  }
  __syncthreads();
  for (int g = warp; g < a.group; g += kLineWarps) {
    float all = 0, kept = 0;
    for (int c = lane; c < d; c += kWarp) all += fabsf(s.q[g * d + c]);
    for (int i = lane; i < k1; i += kWarp) kept += fabsf(s.q[g * d + s.channels[i]]);
    all = WarpSum(all);
    kept = WarpSum(kept);
    if (lane == 0) s.scale[g] = kept > 0 ? kLog2E * rsqrtf(d * kept / all) : 0;
  }
  __syncthreads();

  for (int run = blockIdx.x; run * kLineValues < len; run += gridDim.x) {
    const T* line = a.cache.BoundsLine<T>(slot, head, 1, run, 0, false) + 2 * lane;
    float total = 0;  // of the row of this thread
    for (int first = 0; first < a.group; first += kLineHeads) {
      const int n_heads = min(kLineHeads, a.group - first);
      float2 own[kLineHeads] = {};
#pragma unroll 4
      for (int j = warp; j < k1; j += kLineWarps) {
        const int c = s.channels[j];
        const float2 k = LoadPair(line + c * kLineValues);
#pragma unroll
        for (int i = 0; i < kLineHeads; ++i) {
          if (i >= n_heads) break;
          const float x = s.q[(first + i) * d + c];
          own[i].x += x * k.x;
          own[i].y += x * k.y;
        }
      }
      SumOverWarps(own, n_heads, sums, [&](int i, int value, float sum) {
        const float score = sum * s.scale[first + i];
        scores[i][value] = score;
        a.Scores(entry, head, first + i)[run * kLineValues + value] = score;
      });
      __syncthreads();
      if (threadIdx.x < kLineValues)
        for (int i = 0; i < n_heads; ++i) total += scores[i][threadIdx.x];
    }
    if (threadIdx.x < kLineValues) a.Scores(entry, head, a.group)[run * kLineValues + threadIdx.x] = total;
  }
}

template <class T>
void Start(const ChosenArgs& a, int n_sms, cudaStream_t stream) {
  auto kernel = ScoreRows<T>;
  AllowSharedMemory(kernel);
  kernel<<<dim3(a.ScoreBlocks(n_sms), a.cache.heads, a.batch), kLineThreads,
           SparqQuery::bytes(a.group, a.cache.d), stream>>>(a);
}

void QueueScoreRows(const ChosenArgs& a, int n_sms, cudaStream_t stream) {
  a.dtype == DType::kBF16 ? Start<Bf16>(a, n_sms, stream) : Start<float>(a, n_sms, stream);
}

}  // namespace

void CudaOps::SparqAttention(TensorView q, const PagedKv& cache, bool mean_value, TensorView out) {
  SLUICE_CHECK(!mean_value || !cache.value_sums.empty());
  AttendChosen(mean_value ? ChosenMethod::kSparqWithMean : ChosenMethod::kSparq, q, cache, out,
               QueueScoreRows);
}

}  // namespace sluice
