#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/op_checks.h"
#include "kernels/views.h"

namespace sluice {
namespace {

constexpr int kWarps = 8;
constexpr int kColumns = 128;  // queries x heads of the group that shared memory holds at once
constexpr float kLog2E = 1.4426950408889634f;

struct WindowArgs {
  const float* q;
  int64_t q_row;
  int window, group, d;
  const void* k;
  int64_t k_head, k_row;
  const float* lse;
  int64_t lse_head;
  float* scores;
  int64_t scores_head;
  const int32_t* positions;  // null: no sliding window
  int64_t positions_head;
  int sliding_window;
  int prefix;

  // Column c is query c / group and head c % group of the KV head.
  __device__ const float* Query(int head, int column) const {
    return q + column / group * q_row + (head * group + column % group) * d;
  }
  __device__ float Lse(int head, int column) const {
    return lse[(head * group + column % group) * lse_head + column / group];
  }
  // Keys at positions past this are seen by the column's query.
  __device__ int Oldest(int head, int column) const {
    return positions[head * positions_head + prefix + column / group] - sliding_window;
  }
};

// grid (some, heads). A warp takes 16 keys, the A of the product, from global memory into fragments, and goes
// over all columns, 128 at a time, while its next keys are on their way. Reads K once for every 128 columns;
// one thread adds up a key's score.
template <int kDim>
__global__ __launch_bounds__(kWarps* kWarp) void ScoreKeys(const __grid_constant__ WindowArgs a) {
  constexpr int kBlocks = kDim / 32, kStride = kDim + 32;  // padded: lanes of a fragment meet no bank twice
  extern __shared__ __align__(16) char memory[];
  Bf16* q = reinterpret_cast<Bf16*>(memory);
  __shared__ float lse[kColumns];
  __shared__ int oldest[kColumns];
  const int head = blockIdx.y, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4,
            t = lane % 4;
  const Bf16* k = static_cast<const Bf16*>(a.k) + head * a.k_head;
  const int32_t* positions = a.positions == nullptr ? nullptr : a.positions + head * a.positions_head;
  float* scores = a.scores + head * a.scores_head;
  const float scale = kLog2E / sqrtf(static_cast<float>(kDim));
  const int columns = a.window * a.group;

  for (int first = 0; first < columns; first += kColumns) {
    const int n = min(kColumns, columns - first), tiles = static_cast<int>(CeilDiv(n, 8));
    __syncthreads();
    for (int i = threadIdx.x; i < tiles * 8 * kDim / 2; i += kWarps * kWarp) {
      const int column = i / (kDim / 2), c = i % (kDim / 2) * 2;
      const float* x = a.Query(head, first + min(column, n - 1));
      *reinterpret_cast<uint32_t*>(q + column * kStride + c) = column < n ? PackBf16(x[c], x[c + 1]) : 0;
    }
    for (int i = threadIdx.x; i < tiles * 8; i += kWarps * kWarp) {
      // A column that does not exist weighs exp(-inf).
      lse[i] = i < n ? a.Lse(head, first + i) * kLog2E : -kMinusInfinity;
      oldest[i] = i < n && positions != nullptr ? a.Oldest(head, first + i) : 0;
    }
    __syncthreads();
    struct Keys {
      uint4 x[kBlocks][2];
      int position[2];
    };
    auto load = [&](int key0) {
      Keys keys;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = min(key0 + 8 * half + g, a.prefix - 1);
        const Bf16* row = k + key * a.k_row + 8 * t;
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) keys.x[b][half] = *reinterpret_cast<const uint4*>(row + 32 * b);
        keys.position[half] = positions == nullptr ? 0 : positions[key];
      }
      return keys;
    };
    const int step = gridDim.x * kWarps * 16;
    int key0 = (blockIdx.x * kWarps + warp) * 16;
    for (Keys keys = load(key0), next; key0 < a.prefix; key0 += step, keys = next) {
      next = load(key0 + step);
      float sum[2] = {0, 0};
      for (int tile = 0; tile < tiles; ++tile) {
        float s[4] = {};
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          const uint4 x = *reinterpret_cast<const uint4*>(q + (tile * 8 + g) * kStride + 32 * b + 8 * t);
          MmaBf16(s, keys.x[b][0].x, keys.x[b][1].x, keys.x[b][0].y, keys.x[b][1].y, x.x, x.y);
          MmaBf16(s, keys.x[b][0].z, keys.x[b][1].z, keys.x[b][0].w, keys.x[b][1].w, x.z, x.w);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int column = tile * 8 + 2 * t + j % 2;
          const float p = Exp2(s[j] * scale - lse[column]);
          if (positions == nullptr || keys.position[j / 2] > oldest[column]) sum[j / 2] += p;
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[half] += __shfl_xor_sync(kAllLanes, sum[half], 1);
        sum[half] += __shfl_xor_sync(kAllLanes, sum[half], 2);
        const int key = key0 + 8 * half + g;
        if (t == 0 && key < a.prefix) scores[key] = first == 0 ? sum[half] : scores[key] + sum[half];
      }
    }
  }
}

// grid (keys / 128, heads), one thread a key: any head size and dtype.
template <class T>
__global__ void ScoreKeysPlain(const __grid_constant__ WindowArgs a) {
  const int key = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y;
  if (key >= a.prefix) return;
  const T* k = static_cast<const T*>(a.k) + head * a.k_head + key * a.k_row;
  const float scale = 1 / sqrtf(static_cast<float>(a.d));
  float sum = 0;
  for (int column = 0; column < a.window * a.group; ++column) {
    if (a.positions != nullptr && a.positions[head * a.positions_head + key] <= a.Oldest(head, column))
      continue;
    const float* q = a.Query(head, column);
    float dot = 0;
    for (int c = 0; c < a.d; ++c) dot += ToFloat(FromFloat<T>(q[c])) * ToFloat(k[c]);
    sum += expf(dot * scale - a.Lse(head, column));
  }
  a.scores[head * a.scores_head + key] = sum;
}

template <int kDim>
void Start(const WindowArgs& a, int64_t kv_heads, int n_sms, cudaStream_t stream) {
  constexpr int kBytes = kColumns * (kDim + 32) * sizeof(Bf16);
  const int64_t blocks = CeilDiv(2 * n_sms, kv_heads);
  const dim3 grid(std::min(CeilDiv(a.prefix, kWarps * 16), blocks), kv_heads);
  ScoreKeys<kDim><<<grid, kWarps * kWarp, kBytes, stream>>>(a);
}

}  // namespace

void CudaOps::WindowScores(const WindowScoresArgs& args) {
  CheckWindowScores(args);
  const int64_t window = args.q.shape[0], q_heads = args.q.shape[1], d = args.q.shape[2];
  const int64_t kv_heads = args.k.shape[0], prefix = args.k.shape[1] - window;
  if (prefix == 0) return;
  Begin();
  const bool slides = args.sliding_window > 0;
  const WindowArgs a = {args.q.as<float>(),
                        args.q.stride[0],
                        static_cast<int>(window),
                        static_cast<int>(q_heads / kv_heads),
                        static_cast<int>(d),
                        args.k.data,
                        args.k.stride[0],
                        args.k.stride[1],
                        args.lse.as<float>(),
                        args.lse.stride[0],
                        args.scores.as<float>(),
                        args.scores.stride[0],
                        slides ? args.positions.as<int32_t>() : nullptr,
                        slides ? args.positions.stride[0] : 0,
                        args.sliding_window,
                        static_cast<int>(prefix)};
  const dim3 plain(CeilDiv(prefix, 128), kv_heads);
  if (args.k.dtype == DType::kF32) {
    ScoreKeysPlain<float><<<plain, 128, 0, stream_>>>(a);
  } else if (d == 128) {
    Start<128>(a, kv_heads, device_.n_sms, stream_);
  } else if (d == 64) {
    Start<64>(a, kv_heads, device_.n_sms, stream_);
  } else {
    ScoreKeysPlain<Bf16><<<plain, 128, 0, stream_>>>(a);
  }
  Launched("WindowScores");
}

}  // namespace sluice
