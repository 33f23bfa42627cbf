// Role: attention of one query per sequence over the rows of its paged cache. Rows are cut into parts at
// boundaries that depend on their number only, so that an entry does not depend on its batch; the block that
// finishes last merges the parts of a head in ascending order. Threads: those of its queue.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/decode_out.cuh"
#include "kernels/cuda/paged_cache.cuh"

namespace sluice {

struct DecodeArgs {
  PagedCache cache;
  DType dtype;
  const float* q;  // [batch, heads * group, d]
  int64_t q_stride;
  DecodeOut out;
  int batch, group;
  float* partials;     // DecodeScratchFloats
  unsigned* counters;  // [batch * heads], zero before and after
};

int64_t DecodeScratchFloats(int batch, int heads, int group, int d);
void DecodeAttention(const DecodeArgs& args, int n_sms, cudaStream_t stream);

}  // namespace sluice
