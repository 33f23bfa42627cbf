// Role: attention of one query group over any rows, in f32 on ordinary cores: for the head sizes, dtypes and
// groups that the tensor core kernels do not take, and the simple code beside them. Threads: a whole block of
// kPlainThreads calls together.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"

namespace sluice {

constexpr int kPlainThreads = 128;
constexpr int kPlainRows = 64;  // rows of a step of the online softmax

// Shared memory of one call.
__host__ __device__ inline int64_t PlainSharedFloats(int group, int d) {
  return int64_t{2} * group * d + group * (kPlainRows + 3);
}

template <class T>
struct KvRow {
  const T* k;  // null: not seen
  const T* v;
};

// out[g * d + c] of group x d queries in shared.q(); rows(i) -> KvRow<T> for i < n, at least one of them
// seen. lse(g, value) is told each head's log-sum-exp.
struct PlainShared {
  float *q, *o, *s, *max, *sum, *shrink;
  __device__ PlainShared(float* memory, int group, int d)
      : q(memory),
        o(q + group * d),
        s(o + group * d),
        max(s + group * kPlainRows),
        sum(max + group),
        shrink(sum + group) {}
};

template <class T, class Rows, class Out, class Lse>
__device__ void AttendPlain(const PlainShared& s, int group, int d, int n, Rows rows, Out* out, Lse lse) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const float scale = 1 / sqrtf(static_cast<float>(d));
  for (int i = threadIdx.x; i < group * d; i += kPlainThreads) s.o[i] = 0;
  for (int g = threadIdx.x; g < group; g += kPlainThreads) {
    s.max[g] = kMinusInfinity;
    s.sum[g] = 0;
  }
  for (int base = 0; base < n; base += kPlainRows) {
    __syncthreads();
    for (int i = threadIdx.x; i < group * kPlainRows; i += kPlainThreads) {
      const int g = i / kPlainRows, row = base + i % kPlainRows;
      const T* k = row < n ? rows(row).k : nullptr;
      float dot = 0;
      if (k != nullptr)
        for (int c = 0; c < d; ++c) dot += s.q[g * d + c] * ToFloat(k[c]);
      s.s[i] = k != nullptr ? dot * scale : kMinusInfinity;
    }
    __syncthreads();
    for (int g = warp; g < group; g += kPlainThreads / kWarp) {
      float* p = s.s + g * kPlainRows;
      const float old = s.max[g], now = fmaxf(old, WarpMax(fmaxf(p[lane], p[lane + kWarp])));
      __syncwarp();
      if (now == kMinusInfinity) {  // nothing seen so far
        p[lane] = p[lane + kWarp] = 0;
        if (lane == 0) s.shrink[g] = 1;
        continue;
      }
      const float a = expf(p[lane] - now), b = expf(p[lane + kWarp] - now), sum = WarpSum(a + b);
      p[lane] = a;
      p[lane + kWarp] = b;
      if (lane == 0) {
        s.shrink[g] = expf(old - now);
        s.sum[g] = s.sum[g] * s.shrink[g] + sum;
        s.max[g] = now;
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < group * d; i += kPlainThreads) {
      const int g = i / d, c = i % d;
      float y = s.o[i] * s.shrink[g];
      for (int j = 0; j < kPlainRows; ++j)
        if (const float p = s.s[g * kPlainRows + j]; p != 0) y += p * ToFloat(rows(base + j).v[c]);
      s.o[i] = y;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < group * d; i += kPlainThreads) out[i] = FromFloat<Out>(s.o[i] / s.sum[i / d]);
  for (int g = threadIdx.x; g < group; g += kPlainThreads) lse(g, s.max[g] + logf(s.sum[g]));
}

}  // namespace sluice
