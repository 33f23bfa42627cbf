// Role: what the kernels of prefill attention are told of the sequences of a call. Threads: by value.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/device.cuh"

namespace sluice {

struct AttentionSequence {
  const float* q;
  int64_t q_row;
  const void *k, *v;
  int64_t k_head, k_row, v_head, v_row;
  void* out;
  bool out_is_bf16;
  int64_t out_row;
  float* lse;  // null: not asked for
  int64_t lse_head;
  const int32_t* positions;  // null: no sliding window
  int64_t positions_head;
  int sliding_window;
  int n, len, window;
  int kv_heads, group, d;

  AttentionSequence() = default;
  explicit AttentionSequence(const AttentionArgs& a)
      : q(a.q.as<float>()),
        q_row(a.q.stride[0]),
        k(a.k.data),
        v(a.v.data),
        k_head(a.k.stride[0]),
        k_row(a.k.stride[1]),
        v_head(a.v.stride[0]),
        v_row(a.v.stride[1]),
        out(a.out.data),
        out_is_bf16(a.out.dtype == DType::kBF16),
        out_row(a.out.stride[0]),
        lse(a.lse.as<float>()),
        lse_head(a.lse.empty() ? 0 : a.lse.stride[0]),
        positions(a.sliding_window > 0 ? a.positions.as<int32_t>() : nullptr),
        positions_head(a.sliding_window > 0 ? a.positions.stride[0] : 0),
        sliding_window(a.sliding_window),
        n(static_cast<int>(a.q.shape[0])),
        len(static_cast<int>(a.k.shape[1])),
        window(a.lse.empty() ? 0 : static_cast<int>(a.lse.shape[1])),
        kv_heads(static_cast<int>(a.k.shape[0])),
        group(static_cast<int>(a.q.shape[1] / a.k.shape[0])),
        d(static_cast<int>(a.q.shape[2])) {}

  // Values x and y of a query's output, from column c on.
  __device__ void Put(int query, int c, float x, float y) const {
    const int64_t at = query * out_row + c;
    if (out_is_bf16) {
      *reinterpret_cast<uint32_t*>(static_cast<Bf16*>(out) + at) = PackBf16(x, y);
    } else {
      static_cast<float*>(out)[at] = x;
      static_cast<float*>(out)[at + 1] = y;
    }
  }
  // Key row of a query: it sees rows up to this one.
  __device__ int OwnRow(int query) const { return len - n + query; }
};

// Sequences that one launch takes, by value.
constexpr int kSequencesOfALaunch = 16;
struct AttentionBatch {
  AttentionSequence sequences[kSequencesOfALaunch];
  int first_block[kSequencesOfALaunch + 1];  // grid blocks before each sequence
  int n;

  __device__ int SequenceOf(int block) const {
    int i = 0;
    while (i + 1 < n && block >= first_block[i + 1]) ++i;
    return i;
  }
};

// One query of one KV head a block, for what the tensor core kernel does not take.
void PlainAttention(const AttentionSequence& sequence, DType dtype, cudaStream_t stream);

}  // namespace sluice
