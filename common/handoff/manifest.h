// Role: one number over everything an attempt sent: both ends compute it, Commit repeats it. Covers each
// slab's rows, place and checksum in order, and the fields of Seal. Threads: none.
#pragma once

#include <cstdint>

#include "common/handoff/messages.h"

namespace sluice {

class Manifest {
 public:
  void Add(const SlabHeader& header, uint64_t checksum);  // in the order of seq
  int slabs() const { return slabs_; }
  int64_t rows() const { return rows_; }
  // seal.digest itself is not read.
  uint64_t Digest(const Seal& seal) const;

 private:
  uint32_t crc_ = 0;
  int slabs_ = 0;
  int64_t rows_ = 0;
};

}  // namespace sluice
