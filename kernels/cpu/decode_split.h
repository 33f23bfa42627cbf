// Role: decode attention of one batch cut into parts of rows, so that two threads have work at batch 1. Parts
// start at multiples of a fixed number of rows and are merged in ascending order: a result depends on neither
// the batch nor the threads. Threads: built by one, parts may run on any.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/isa/kernels.h"

namespace sluice {

// Memory of `n_parts` partial softmaxes of one query group.
class DecodeParts {
 public:
  static size_t bytes(int64_t n_parts, int group, int head_dim) {
    return n_parts * group * (head_dim + 2) * sizeof(float);
  }
  DecodeParts(void* memory, int group, int head_dim)
      : data_(static_cast<float*>(memory)), group_(group), head_dim_(head_dim) {}

  DecodePartial part(int64_t i) const {
    float* p = data_ + i * group_ * (head_dim_ + 2);
    return {p + group_ * head_dim_, p + group_ * (head_dim_ + 1), p};
  }
  void Clear(int64_t i) const;
  // out [group, head_dim] of parts [begin, end), normalised.
  void Merge(int64_t begin, int64_t end, float* out) const;

 private:
  float* data_;
  int group_;
  int head_dim_;
};

}  // namespace sluice
