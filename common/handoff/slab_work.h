// Role: what has to be done with a slab's bytes, where they lie: fill a slot from a KeptLayer, and read what
// the machines must know of a slot. Why: slots may be a GPU's memory, which host code cannot read; every host
// of the machines does this the same way. Threads: one loop; each call waits for the device.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/handoff/slab.h"
#include "common/kvcache/kept_layer.h"
#include "common/kvcache/kv_shape.h"
#include "kernels/backend.h"

namespace sluice {

// What a receiver reads of a slab before it believes it.
struct SlabFacts {
  uint64_t checksum = 0;           // Ops::Checksum of its bytes
  std::vector<int32_t> positions;  // [header.total_rows()]
};

class SlabWork {
 public:
  // backend: outlives this, and can read and write the slots.
  SlabWork(Backend* backend, const KvShape& shape)
      : backend_(backend), shape_(shape), ops_(backend->NewOps()) {}

  // Copies one slab of `source` into a slot and returns its checksum.
  absl::StatusOr<uint64_t> Fill(const KeptLayer& source, const SlabHeader& header, char* slot);
  absl::StatusOr<SlabFacts> Inspect(const SlabHeader& header, const char* slab);

 private:
  // Queues the checksum; *checksum holds it after Sync.
  absl::Status QueueChecksum(const SlabHeader& header, const char* slab, uint64_t* checksum);

  Backend* const backend_;
  const KvShape shape_;
  const std::unique_ptr<Ops> ops_;
  Buffer sum_;  // 8 bytes of the device
};

}  // namespace sluice
