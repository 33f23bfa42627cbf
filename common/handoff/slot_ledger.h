// Role: who may use which slot of a ring. Free, busy (a writer or reader may touch it) or quarantined (busy
// for longer than a transfer may take, and nothing proves it idle). Why: a timeout never frees memory; only
// proof does. Threads: one loop.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"

namespace sluice {

struct SlotCounts {
  int free = 0;
  int busy = 0;
  int quarantined = 0;
  int total() const { return free + busy + quarantined; }
  absl::Duration oldest_quarantine = absl::ZeroDuration();
  SlotCounts& operator+=(const SlotCounts& other);
};

class SlotLedger {
 public:
  explicit SlotLedger(int n_slots) : slots_(n_slots) {}

  std::optional<int> Take();  // a free slot becomes busy
  void Busy(int slot);        // the peer chose it
  void Free(int slot);        // proven idle
  void Quarantine(int slot, absl::Time now);
  void QuarantineAll(absl::Time now);  // the busy ones and the free ones: the ring is exposed to a lost peer
  bool any_free() const;
  int size() const { return static_cast<int>(slots_.size()); }
  SlotCounts Counts(absl::Time now) const;

 private:
  enum class State { kFree, kBusy, kQuarantined };
  struct Slot {
    State state = State::kFree;
    absl::Time since;
  };
  std::vector<Slot> slots_;
};

}  // namespace sluice
