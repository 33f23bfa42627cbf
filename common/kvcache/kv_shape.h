// Role: the shape of a model's KV cache: all that pages, slabs and gates need to know of a model.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/tensor_view.h"

namespace sluice {

struct KvShape {
  int n_layers = 0;
  int n_q_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kBF16;  // kF32 only in tests

  int group() const { return n_q_heads / n_kv_heads; }
  // One row of one KV head: its K or its V.
  size_t row_bytes() const { return static_cast<size_t>(head_dim) * DTypeSize(dtype); }
  // One token over all layers and heads, K and V.
  size_t token_bytes() const { return 2 * row_bytes() * n_kv_heads * n_layers; }
  // The share of each of n ranks; n divides the KV heads.
  KvShape OfRank(int n) const {
    KvShape share = *this;
    share.n_q_heads /= n;
    share.n_kv_heads /= n;
    return share;
  }
  friend bool operator==(const KvShape&, const KvShape&) = default;
};

}  // namespace sluice
