#include "kernels/cuda/chosen_attention.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/decode_tile.cuh"
#include "kernels/cuda/hsa_attend.cuh"
#include "kernels/cuda/shared_memory.cuh"

namespace sluice {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// grid (blocks, heads, batch). A warp takes steps of 16 rows, keys straight into fragments.
template <int kDim, int kTiles>
__global__ __launch_bounds__(kThreads) void ScoreSteps(const __grid_constant__ ChosenArgs a) {
  __shared__ uint4 q[kQueryFragments<kDim, kTiles>];
  const int head = blockIdx.y, entry = blockIdx.z, slot = a.cache.slots[entry];
  const int len = a.cache.Length(slot, head);
  SLUICE_DEVICE_CHECK(len > 0 && len <= a.room);
  SplitQueries<kDim, kTiles>(a.q + entry * a.q_stride + head * a.group * kDim, a.group, q);
  __syncthreads();
  const int32_t* page_ids = a.cache.page_table.At(slot, head);
  const float scale = kLog2E / sqrtf(static_cast<float>(kDim));
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll 1
  for (int at = (blockIdx.x * kWarps + threadIdx.x / kWarp) * kStep; at < len;
       at += gridDim.x * kWarps * kStep) {
    KeyStep<kDim> k;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Bf16* row = a.cache.K<Bf16>(PlaceOf(page_ids, min(at + 8 * half + g, len - 1))) + 8 * t;
#pragma unroll
      for (int b = 0; b < kDim / 32; ++b) k.x[b][half] = LoadStream(row + 32 * b);
    }
    float s[kTiles][4];
    ScoreStep<kDim, kTiles>(k, q, s);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int of_group = 8 * i + 2 * t + c % 2, row = at + g + c / 2 * 8;
        if (of_group < a.group && row < len) a.Scores(entry, head, of_group)[row] = s[i][c] * scale;
      }
    }
  }
}

// The same on ordinary cores: a warp takes a row.
template <class T>
__global__ __launch_bounds__(kThreads) void ScorePlainRows(const __grid_constant__ ChosenArgs a) {
  extern __shared__ float q[];  // [group, d]
  const int head = blockIdx.y, entry = blockIdx.z, d = a.cache.d, slot = a.cache.slots[entry];
  const int len = a.cache.Length(slot, head);
  SLUICE_DEVICE_CHECK(len > 0 && len <= a.room);
  const float* from = a.q + entry * a.q_stride + head * a.group * d;
  for (int i = threadIdx.x; i < a.group * d; i += kThreads) q[i] = from[i];
  __syncthreads();
  const float scale = kLog2E / sqrtf(static_cast<float>(d));
  const int lane = threadIdx.x % kWarp;
  for (int row = blockIdx.x * kWarps + threadIdx.x / kWarp; row < len; row += gridDim.x * kWarps) {
    const T* k = a.cache.K<T>(a.cache.Place(slot, head, row));
    for (int g = 0; g < a.group; ++g) {
      float dot = 0;
      for (int c = lane; c < d; c += kWarp) dot += q[g * d + c] * ToFloat(k[c]);
      dot = WarpSum(dot);
      if (lane == 0) a.Scores(entry, head, g)[row] = dot * scale;
    }
  }
}

template <int kDim, int kTiles>
void StartSteps(const ChosenArgs& a, dim3 grid, cudaStream_t stream) {
  ScoreSteps<kDim, kTiles><<<grid, kThreads, 0, stream>>>(a);
}
template <class T>
void StartPlain(const ChosenArgs& a, dim3 grid, cudaStream_t stream) {
  auto kernel = ScorePlainRows<T>;
  AllowSharedMemory(kernel);
  kernel<<<grid, kThreads, a.group * a.cache.d * sizeof(float), stream>>>(a);
}

void QueueExactScores(const ChosenArgs& a, int n_sms, cudaStream_t stream) {
  const dim3 grid(a.ScoreBlocks(n_sms), a.cache.heads, a.batch);
  const int d = a.cache.d;
  if (a.dtype == DType::kBF16 && (d == 64 || d == 128) && a.group <= 16) {
    if (a.group <= 8) {
      d == 64 ? StartSteps<64, 1>(a, grid, stream) : StartSteps<128, 1>(a, grid, stream);
    } else {
      d == 64 ? StartSteps<64, 2>(a, grid, stream) : StartSteps<128, 2>(a, grid, stream);
    }
  } else {
    a.dtype == DType::kBF16 ? StartPlain<Bf16>(a, grid, stream) : StartPlain<float>(a, grid, stream);
  }
}

}  // namespace

void CudaOps::TopKAttention(TensorView q, const PagedKv& cache, bool per_group, TensorView out) {
  AttendChosen(per_group ? ChosenMethod::kTopKOfGroup : ChosenMethod::kTopK, q, cache, out, QueueExactScores);
}

}  // namespace sluice
