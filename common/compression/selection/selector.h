// Role: the selection gate: which cached rows a decode step reads. Sequences of a batch that share a kind go
// in one call. Threads: stateless, shared by all loops.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "common/base/strong_id.h"
#include "common/compression/resolved_gates.h"
#include "kernels/backend.h"

namespace sluice {

class Selector {
 public:
  virtual ~Selector() = default;
  // {p, k1, k2, value sums} of PagedKv::hsa for a sequence, and of DecodeCache::NewSequence; p = 0 where no
  // bounds are kept.
  virtual std::array<int32_t, 4> parameters(const SelectionGate& gate) const = 0;
  // So many lowest layers are read whole.
  virtual int dense_layers() const { return 0; }
  // q, out [batch, n_q_heads, head_dim] f32; cache.slots has the batch's slots.
  virtual void Attend(LayerId layer, TensorView q, const PagedKv& cache, Ops& ops, TensorView out) const = 0;
};

const Selector& SelectorOf(SelectionKind kind);

// InvalidArgument unless Attend can work with these numbers: they come from another process.
absl::Status CheckNumbers(const SelectionGate& gate, int head_dim);

}  // namespace sluice
