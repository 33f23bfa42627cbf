#include "common/handoff/slot_ledger.h"

#include <algorithm>

namespace sluice {

SlotCounts& SlotCounts::operator+=(const SlotCounts& other) {
  free += other.free;
  busy += other.busy;
  quarantined += other.quarantined;
  oldest_quarantine = std::max(oldest_quarantine, other.oldest_quarantine);
  return *this;
}

std::optional<int> SlotLedger::Take() {
  for (int i = 0; i < size(); ++i) {
    if (slots_[i].state != State::kFree) continue;
    slots_[i].state = State::kBusy;
    return i;
  }
  return std::nullopt;
}

void SlotLedger::Busy(int slot) { slots_[slot].state = State::kBusy; }

void SlotLedger::Free(int slot) { slots_[slot].state = State::kFree; }

void SlotLedger::Quarantine(int slot, absl::Time now) {
  if (slots_[slot].state != State::kQuarantined) slots_[slot] = {State::kQuarantined, now};
}

void SlotLedger::QuarantineAll(absl::Time now) {
  for (int i = 0; i < size(); ++i) Quarantine(i, now);
}

bool SlotLedger::any_free() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const Slot& s) { return s.state == State::kFree; });
}

SlotCounts SlotLedger::Counts(absl::Time now) const {
  SlotCounts counts;
  for (const Slot& slot : slots_) {
    if (slot.state == State::kFree) ++counts.free;
    if (slot.state == State::kBusy) ++counts.busy;
    if (slot.state != State::kQuarantined) continue;
    ++counts.quarantined;
    counts.oldest_quarantine = std::max(counts.oldest_quarantine, now - slot.since);
  }
  return counts;
}

}  // namespace sluice
