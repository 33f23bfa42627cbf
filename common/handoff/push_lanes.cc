#include "common/handoff/push_lanes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr int kMaxSlots = 1024;        // of a peer's ring: what a peer says is bounded before it is used
constexpr size_t kSlotAlignment = 64;  // positions inside a slab are read as i32

}  // namespace

absl::StatusOr<std::unique_ptr<PushLanes>> PushLanes::Create(KvTransport* transport, int ring_slots,
                                                             size_t slot_bytes) {
  if (ring_slots < 1 || ring_slots > kMaxSlots)
    return absl::InvalidArgumentError(absl::StrCat("ring_slots: ", ring_slots, ", allowed 1..", kMaxSlots));
  if (slot_bytes == 0 || slot_bytes % kSlotAlignment != 0)
    return absl::InvalidArgumentError(absl::StrCat("slot_bytes: ", slot_bytes, " is no multiple of 64"));
  SLUICE_ASSIGN_OR_RETURN(Ring ring, transport->AllocateRing(static_cast<size_t>(ring_slots) * slot_bytes));
  return std::unique_ptr<PushLanes>(new PushLanes(transport, ring, ring_slots, slot_bytes));
}

PushLanes::PushLanes(KvTransport* transport, Ring ring, int ring_slots, size_t slot_bytes)
    : transport_(transport), ring_(ring), slot_bytes_(slot_bytes), local_(ring_slots) {}

PushLanes::~PushLanes() {
  bool idle = true;
  for (const auto& [peer, lane] : lanes_) idle &= transport_->Quiesce(peer).ok();
  if (idle) transport_->ReleaseRing(ring_.region);
}

absl::Status PushLanes::Open(PeerId peer, const HelloAck& ack, int probe_pushes, absl::Time now) {
  if (ack.ring_slots < 1 || ack.ring_slots > kMaxSlots || ack.slot_bytes == 0 ||
      ack.slot_bytes % kSlotAlignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("peer's ring: ", ack.ring_slots, " slots of ", ack.slot_bytes, " bytes"));
  }
  // From here on the lane exists, so that Close quiesces what Connect began.
  Lane& lane = lanes_[peer];
  lane.slot_bytes = ack.slot_bytes;
  lane.slots = SlotLedger(ack.ring_slots);
  lane.generation.assign(ack.ring_slots, 0);
  SLUICE_RETURN_IF_ERROR(transport_->Connect(peer, ack.transport_address));
  SLUICE_ASSIGN_OR_RETURN(lane.remote, transport_->ImportKey(peer, ack.ring_key));
  lane.probe = std::make_unique<RingProbe>(transport_, peer, ring_.region, lane.remote, slab_bytes(peer),
                                           probe_pushes);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<double>> PushLanes::Probe(PeerId peer, absl::Time now) {
  Lane& lane = lanes_.at(peer);
  SLUICE_ASSIGN_OR_RETURN(std::optional<double> rate, lane.probe->Step(now));
  if (rate) {
    lane.rate = *rate;
    lane.probe.reset();
  }
  return rate;
}

void PushLanes::Close(PeerId peer, absl::Time now) {
  auto it = lanes_.find(peer);
  if (it == lanes_.end()) return;
  it->second.closing = true;
  it->second.probe.reset();
  DrainClosing();
  if (auto lane = lanes_.find(peer); lane != lanes_.end()) lane->second.slots.QuarantineAll(now);
}

size_t PushLanes::slab_bytes(PeerId peer) const { return std::min(slot_bytes_, lanes_.at(peer).slot_bytes); }

double PushLanes::rate(PeerId peer) const { return lanes_.at(peer).rate; }

bool PushLanes::CanStage(PeerId peer) const {
  auto it = lanes_.find(peer);
  return it != lanes_.end() && !it->second.closing && it->second.slots.any_free() && local_.any_free();
}

PushLanes::Flight* PushLanes::Stage(PeerId peer, SlabReady slab, size_t bytes) {
  Lane& lane = lanes_.at(peer);
  Flight& flight = flights_.emplace_back();
  flight.peer = peer;
  flight.local = *local_.Take();
  flight.bytes = bytes;
  flight.slab = std::move(slab);
  flight.slab.slot.slot = *lane.slots.Take();
  flight.slab.slot.generation = ++lane.generation[flight.slab.slot.slot];
  return &flight;
}

char* PushLanes::data(const Flight& flight) const {
  return ring_.data + static_cast<size_t>(flight.local) * slot_bytes_;
}

absl::Status PushLanes::Push(Flight* flight, absl::Time now) {
  const Lane& lane = lanes_.at(flight->peer);
  auto transfer = transport_->Push(
      flight->peer, ring_.region, {static_cast<int64_t>(flight->local * slot_bytes_), flight->bytes},
      lane.remote, static_cast<int64_t>(flight->slab.slot.slot * lane.slot_bytes));
  if (!transfer.ok()) {
    ++errors_;
    Cancel(flight);
    return transfer.status();
  }
  flight->transfer = *transfer;
  flight->pushing = true;
  flight->since = now;
  return absl::OkStatus();
}

void PushLanes::Announced(Flight* flight, absl::Time now) {
  flight->announced = true;
  flight->since = now;
}

absl::StatusOr<std::vector<HandoffIds>> PushLanes::Armed(PeerId peer, const SlabArmed& armed,
                                                         absl::Time now) {
  std::vector<HandoffIds> pushed;
  auto found = lanes_.find(peer);
  if (found == lanes_.end() || found->second.closing) return pushed;
  Lane& lane = found->second;
  auto staged = [&](const SlotUse& slot) {
    return std::find_if(flights_.begin(), flights_.end(), [&](const Flight& f) {
      return f.peer == peer && f.announced && !f.pushing && f.local >= 0 && f.slab.slot == slot;
    });
  };
  // Doubled or late words name no flight that waits, or an order that is over.
  if (armed.order < lane.next_order || staged(armed.slot) == flights_.end()) return pushed;
  lane.armed[armed.order] = armed.slot;
  for (auto next = lane.armed.find(lane.next_order); next != lane.armed.end();
       next = lane.armed.find(++lane.next_order)) {
    auto flight = staged(next->second);
    lane.armed.erase(next);
    if (flight == flights_.end()) return absl::DataLossError("armed twice for one slot");
    auto transfer =
        transport_->Push(peer, ring_.region,
                         {static_cast<int64_t>(flight->local * slot_bytes_), flight->bytes}, lane.remote, 0);
    if (!transfer.ok()) {
      ++errors_;
      return transfer.status();
    }
    flight->transfer = *transfer;
    flight->pushing = true;
    flight->since = now;
    pushed.push_back(flight->slab.ids);
  }
  return pushed;
}

void PushLanes::Cancel(Flight* flight) {
  if (flight->local >= 0) local_.Free(flight->local);
  lanes_.at(flight->peer).slots.Free(flight->slab.slot.slot);
  flights_.remove_if([&](const Flight& f) { return &f == flight; });
}

std::vector<PushLanes::Ended> PushLanes::Poll(absl::Time now) {
  transport_->Progress();
  std::vector<Ended> ended;
  for (auto it = flights_.begin(); it != flights_.end();) {
    Flight& flight = *it++;
    Lane& lane = lanes_.at(flight.peer);
    if (!flight.pushing || lane.closing) continue;
    TransferState state = transport_->Poll(flight.transfer);
    if (state == TransferState::kPending) continue;
    flight.pushing = false;
    if (state == TransferState::kFailed) {
      ++errors_;
      ended.push_back({nullptr, flight.peer, flight.slab.ids.key, flight.slab.seq});
      if (!transport_->two_sided()) Cancel(&flight);  // else the end of the connection ends it
      continue;
    }
    local_.Free(flight.local);
    flight.local = -1;
    if (flight.answered) {
      flights_.remove_if([&](const Flight& f) { return &f == &flight; });
      continue;
    }
    lane.slots.Busy(flight.slab.slot.slot);  // it may have been quarantined; now it only waits for its answer
    if (std::exchange(flight.announced, true)) continue;
    flight.since = now;
    ended.push_back({&flight, flight.peer, flight.slab.ids.key, flight.slab.seq});
  }
  DrainClosing();
  return ended;
}

void PushLanes::DrainClosing() {
  for (auto lane = lanes_.begin(); lane != lanes_.end();) {
    PeerId peer = lane->first;
    if (!lane->second.closing || !transport_->Quiesce(peer).ok()) {
      ++lane;
      continue;
    }
    flights_.remove_if([&](const Flight& flight) {
      if (flight.peer != peer) return false;
      if (flight.local >= 0) local_.Free(flight.local);
      return true;
    });
    lane = lanes_.erase(lane);
  }
}

std::optional<SlabReady> PushLanes::Answer(PeerId peer, const SlotUse& slot) {
  auto it = std::find_if(flights_.begin(), flights_.end(), [&](const Flight& f) {
    return f.announced && !f.answered && f.peer == peer && f.slab.slot == slot;
  });
  if (it == flights_.end()) return std::nullopt;
  SlabReady slab = it->slab;
  lanes_.at(peer).slots.Free(slot.slot);
  if (it->pushing) {
    it->answered = true;
    return slab;
  }
  if (it->local >= 0) local_.Free(it->local);  // refused before it was armed
  flights_.erase(it);
  return slab;
}

std::vector<PushLanes::Flight*> PushLanes::Unanswered(absl::Time before) {
  std::vector<Flight*> late;
  for (Flight& flight : flights_) {
    if (flight.announced && !flight.answered && flight.since <= before && !lanes_.at(flight.peer).closing)
      late.push_back(&flight);
  }
  return late;
}

int PushLanes::pushing(const HandoffKey& key) const {
  return static_cast<int>(std::count_if(flights_.begin(), flights_.end(), [&](const Flight& f) {
    return f.local >= 0 && f.slab.ids.key == key;
  }));
}

void PushLanes::Quarantine(const HandoffKey& key, absl::Time now) {
  for (const Flight& flight : flights_) {
    if (flight.local < 0 || flight.slab.ids.key != key) continue;
    local_.Quarantine(flight.local, now);
    if (!flight.answered) lanes_.at(flight.peer).slots.Quarantine(flight.slab.slot.slot, now);
  }
}

int64_t PushLanes::bytes_in_flight(PeerId peer) const {
  int64_t bytes = 0;
  for (const Flight& flight : flights_) {
    if (flight.peer == peer) bytes += static_cast<int64_t>(flight.bytes);
  }
  return bytes;
}

bool PushLanes::busy() const {
  return std::any_of(flights_.begin(), flights_.end(), [](const Flight& f) { return f.local >= 0; }) ||
         std::any_of(lanes_.begin(), lanes_.end(),
                     [](const auto& entry) { return entry.second.closing || entry.second.probe != nullptr; });
}

int PushLanes::closing() const {
  return static_cast<int>(
      std::count_if(lanes_.begin(), lanes_.end(), [](const auto& entry) { return entry.second.closing; }));
}

SlotCounts PushLanes::peer_slots(absl::Time now) const {
  SlotCounts counts;
  for (const auto& [peer, lane] : lanes_) counts += lane.slots.Counts(now);
  return counts;
}

}  // namespace sluice
