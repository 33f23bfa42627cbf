#include <algorithm>
#include <climits>

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
  int window, share, d;  // share: query heads that are summed
  const void* k;
  int64_t k_head, k_row;
  const float* lse;
  int64_t lse_head;
  float* scores;
  int64_t scores_head;
  const int32_t* positions;  // null: no sliding window
  int64_t positions_head;
  int sliding_window;
  int first_query;   // row of query 0
  int n;             // rows that are scored
  int rows_of_head;  // rows of scores that share a KV head
  bool raw, round, accumulate;

  __device__ int KvHead(int row) const { return row / rows_of_head; }
  // Column c is query c / share and head c % share of those of a row of scores.
  __device__ const float* Query(int row, int column) const {
    return q + column / share * q_row + (row * share + column % share) * d;
  }
  __device__ float Lse(int row, int column) const {
    return lse[(row * share + column % share) * lse_head + column / share];
  }
  // Keys up to this row are seen by the column's query,
  __device__ int Newest(int column) const { return first_query + column / share; }
  // and those at positions past this one.
  __device__ int Oldest(int row, int column) const {
    return positions[KvHead(row) * positions_head + Newest(column)] - sliding_window;
  }
  __device__ float Rounded(float x) const { return round ? __bfloat162float(__float2bfloat16_rn(x)) : x; }
  __device__ void Put(float* score, float sum, bool adds) const {
    *score = adds || accumulate ? *score + sum : sum;
  }
};

// grid (some, rows of scores). kGeneral: some query does not see some key, or terms are raw or rounded. A
// warp takes 16 keys, the A of the product, from global memory into fragments, and goes over all columns, 128
// at a time, while its next keys are on their way. Reads K once for every 128 columns; one thread adds up a
// key's score.
template <int kDim, bool kGeneral>
__global__ __launch_bounds__(kWarps* kWarp) void ScoreKeys(const __grid_constant__ WindowArgs a) {
  constexpr int kBlocks = kDim / 32, kStride = kDim + 32;  // padded: lanes of a fragment meet no bank twice
  extern __shared__ __align__(16) char memory[];
  Bf16* q = reinterpret_cast<Bf16*>(memory);
  __shared__ float lse[kColumns];
  __shared__ int oldest[kColumns], newest[kColumns];
  const int row = blockIdx.y, head = a.KvHead(row), lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp,
            g = lane / 4, t = lane % 4;
  const Bf16* k = static_cast<const Bf16*>(a.k) + head * a.k_head;
  const int32_t* positions = a.positions == nullptr ? nullptr : a.positions + head * a.positions_head;
  float* scores = a.scores + row * a.scores_head;
  const float scale = kLog2E / sqrtf(static_cast<float>(kDim));
  const int columns = a.window * a.share;

  for (int first = 0; first < columns; first += kColumns) {
    const int n = min(kColumns, columns - first), tiles = static_cast<int>(CeilDiv(n, 8));
    __syncthreads();
    for (int i = threadIdx.x; i < tiles * 8 * kDim / 2; i += kWarps * kWarp) {
      const int column = i / (kDim / 2), c = i % (kDim / 2) * 2;
      const float* x = a.Query(row, first + min(column, n - 1));
      *reinterpret_cast<uint32_t*>(q + column * kStride + c) = column < n ? PackBf16(x[c], x[c + 1]) : 0;
    }
    for (int i = threadIdx.x; i < tiles * 8; i += kWarps * kWarp) {
      // A column that does not exist weighs exp(-inf).
      lse[i] = i < n && !a.raw ? a.Lse(row, first + i) * kLog2E : -kMinusInfinity;
      if (kGeneral) {
        newest[i] = a.Newest(first + min(i, n - 1));
        oldest[i] = positions != nullptr ? a.Oldest(row, first + min(i, n - 1)) : INT_MIN;
      }
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
        const int key = min(key0 + 8 * half + g, a.n - 1);
        const Bf16* from = k + key * a.k_row + 8 * t;
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) keys.x[b][half] = *reinterpret_cast<const uint4*>(from + 32 * b);
        keys.position[half] = kGeneral && positions != nullptr ? positions[key] : 0;
      }
      return keys;
    };
    const int step = gridDim.x * kWarps * 16;
    int key0 = (blockIdx.x * kWarps + warp) * 16;
    for (Keys keys = load(key0), next; key0 < a.n; key0 += step, keys = next) {
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
          const float weight = kGeneral && a.raw ? s[j] : Exp2(s[j] * scale - lse[column]);
          const bool seen = !kGeneral || (key0 + 8 * (j / 2) + g <= newest[column] &&
                                          keys.position[j / 2] > oldest[column]);
          if (seen) sum[j / 2] += kGeneral ? a.Rounded(weight) : weight;
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[half] += __shfl_xor_sync(kAllLanes, sum[half], 1);
        sum[half] += __shfl_xor_sync(kAllLanes, sum[half], 2);
        const int key = key0 + 8 * half + g;
        if (t == 0 && key < a.n) a.Put(scores + key, sum[half], first > 0);
      }
    }
  }
}

// grid (keys / 128, rows of scores), one thread a key: any head size and dtype.
template <class T>
__global__ void ScoreKeysPlain(const __grid_constant__ WindowArgs a) {
  const int key = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y, head = a.KvHead(row);
  if (key >= a.n) return;
  const T* k = static_cast<const T*>(a.k) + head * a.k_head + key * a.k_row;
  const float scale = 1 / sqrtf(static_cast<float>(a.d));
  float sum = 0;
  for (int column = 0; column < a.window * a.share; ++column) {
    if (key > a.Newest(column)) continue;
    if (a.positions != nullptr && a.positions[head * a.positions_head + key] <= a.Oldest(row, column))
      continue;
    const float* q = a.Query(row, column);
    float dot = 0;
    for (int c = 0; c < a.d; ++c) dot += ToFloat(FromFloat<T>(q[c])) * ToFloat(k[c]);
    sum += a.Rounded(a.raw ? dot : expf(dot * scale - a.Lse(row, column)));
  }
  a.Put(a.scores + row * a.scores_head + key, sum, false);
}

template <int kDim>
void Start(const WindowArgs& a, int64_t rows, int n_sms, cudaStream_t stream) {
  constexpr int kBytes = kColumns * (kDim + 32) * sizeof(Bf16);
  const int64_t blocks = CeilDiv(2 * n_sms, rows);
  const dim3 grid(std::min(CeilDiv(a.n, kWarps * 16), blocks), rows);
  const bool general = a.positions != nullptr || a.n - 1 > a.first_query || a.raw || a.round;
  auto kernel = general ? &ScoreKeys<kDim, true> : &ScoreKeys<kDim, false>;
  kernel<<<grid, kWarps * kWarp, kBytes, stream>>>(a);
}

}  // namespace

void CudaOps::WindowScores(const WindowScoresArgs& args) {
  CheckWindowScores(args);
  const int64_t window = args.q.shape[0], q_heads = args.q.shape[1], d = args.q.shape[2];
  const int64_t rows = args.scores.shape[0], n = args.scores.shape[1];
  if (n == 0) return;
  Begin();
  const bool slides = args.sliding_window > 0;
  const WindowArgs a = {args.q.as<float>(),
                        args.q.stride[0],
                        static_cast<int>(window),
                        static_cast<int>(q_heads / rows),
                        static_cast<int>(d),
                        args.k.data,
                        args.k.stride[0],
                        args.k.stride[1],
                        args.raw ? nullptr : args.lse.as<float>(),
                        args.raw ? 0 : args.lse.stride[0],
                        args.scores.as<float>(),
                        args.scores.stride[0],
                        slides ? args.positions.as<int32_t>() : nullptr,
                        slides ? args.positions.stride[0] : 0,
                        args.sliding_window,
                        static_cast<int>(args.k.shape[1] - window),
                        static_cast<int>(n),
                        static_cast<int>(rows / args.k.shape[0]),
                        args.raw,
                        args.round_weights,
                        args.accumulate};
  const dim3 plain(CeilDiv(n, 128), rows);
  if (args.k.dtype == DType::kF32) {
    ScoreKeysPlain<float><<<plain, 128, 0, stream_>>>(a);
  } else if (d == 128) {
    Start<128>(a, rows, device_.n_sms, stream_);
  } else if (d == 64) {
    Start<64>(a, rows, device_.n_sms, stream_);
  } else {
    ScoreKeysPlain<Bf16><<<plain, 128, 0, stream_>>>(a);
  }
  Launched("WindowScores");
}

}  // namespace sluice
