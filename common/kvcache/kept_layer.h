// Role: the K,V rows of one layer that leave prefill for decode, compacted head after head.
// Why: it is what retention produces, what a slab is cut from, and what `history=evict` remembers.
// Threads: written once by the prefill loop, read-only afterwards.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace sluice {

struct KeptLayer {
  std::vector<int> kept;  // [n_kv_heads] rows of each head
  Buffer k;               // [sum kept, head_dim] KV dtype: head 0's rows, then head 1's, ...
  Buffer v;               // same shape
  Buffer positions;       // [sum kept] i32 RoPE positions, strictly ascending inside a head
  int total() const {
    int sum = 0;
    for (int n : kept) sum += n;
    return sum;
  }
};

}  // namespace sluice
