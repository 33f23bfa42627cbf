// Role: slabs on the wire: which slot of the send ring is being pushed into which slot of which peer's ring,
// and which slabs the peer has not answered yet. Why apart from the sender: slots outlive the attempt they
// were pushed for; a slot is free again only when its push has ended and its answer came. One-sided: staged,
// pushed, announced, answered. Two-sided: staged, announced, armed, pushed, answered. Threads: one loop.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/handoff/messages.h"
#include "common/handoff/slot_ledger.h"
#include "common/transport/kv_transport.h"
#include "common/transport/probe.h"

namespace sluice {

class PushLanes {
 public:
  static absl::StatusOr<std::unique_ptr<PushLanes>> Create(KvTransport* transport, int ring_slots,
                                                           size_t slot_bytes);
  ~PushLanes();

  // Connects to the ring that the peer offers and starts the probe. InvalidArgument: the ring is unusable.
  absl::Status Open(PeerId peer, const HelloAck& ack, int probe_pushes, absl::Time now);
  // Once the probe has ended, its bytes per second; nullopt before.
  absl::StatusOr<std::optional<double>> Probe(PeerId peer, absl::Time now);
  // The control stream is gone. The peer's flights drain in Poll until the transport proves them idle.
  void Close(PeerId peer, absl::Time now);

  size_t slab_bytes(PeerId peer) const;  // what fits both rings
  double rate(PeerId peer) const;        // probed bytes per second
  bool CanStage(PeerId peer) const;

  // A slab between its slots. Lives until its answer came or its lane was proven idle.
  struct Flight {
    PeerId peer;
    SlabReady slab;  // slot is set by Stage
    size_t bytes = 0;
    int local = -1;  // slot of the send ring; -1 once the push has ended
    TransferId transfer;
    bool pushing = false;
    bool announced = false;  // SlabReady was sent
    bool answered = false;   // and its answer came, while our end of the push still goes on
    absl::Time since;        // the last of Push and SlabReady
  };
  // Takes a slot on both sides; CanStage holds. Fill data(), then Push, Announced or Cancel.
  Flight* Stage(PeerId peer, SlabReady slab, size_t bytes);
  char* data(const Flight& flight) const;
  absl::Status Push(Flight* flight, absl::Time now);  // an error cancels
  // Two-sided: SlabReady is sent before the push.
  void Announced(Flight* flight, absl::Time now);
  // Gives the slots back: before Push, or instead of the announcement.
  void Cancel(Flight* flight);

  // Two-sided: the peer posted a receive. Pushes what is next in the peer's order, and answers whose slabs
  // these are. An error: the connection is of no use any more.
  absl::StatusOr<std::vector<HandoffIds>> Armed(PeerId peer, const SlabArmed& armed, absl::Time now);

  struct Ended {
    Flight* flight;  // null when the push failed: one-sided, its slots are free again
    PeerId peer;
    HandoffKey key;
    int seq = 0;
  };
  // Drives the transport. Pushes that ended since the last call: all that failed, and one-sided those to be
  // announced now.
  std::vector<Ended> Poll(absl::Time now);

  // The peer answered for a slot: it is free again. nullopt: the answer is late or doubled.
  std::optional<SlabReady> Answer(PeerId peer, const SlotUse& slot);
  // Announced flights without an answer since `before`.
  std::vector<Flight*> Unanswered(absl::Time before);

  // Pushes of this attempt that have not ended, or that the peer may still ask for.
  int pushing(const HandoffKey& key) const;
  // They are stuck and count as quarantined until they end.
  void Quarantine(const HandoffKey& key, absl::Time now);

  int64_t bytes_in_flight(PeerId peer) const;
  bool busy() const;  // a push, a probe or a closing lane: the transport needs driving
  int flights() const { return static_cast<int>(flights_.size()); }
  int closing() const;
  SlotCounts local_slots(absl::Time now) const { return local_.Counts(now); }
  SlotCounts peer_slots(absl::Time now) const;
  int64_t errors() const { return errors_; }

 private:
  struct Lane {
    RemoteRegionId remote;
    size_t slot_bytes = 0;
    SlotLedger slots{0};
    std::vector<uint64_t> generation;  // of the last use of each slot
    std::unique_ptr<RingProbe> probe;
    double rate = 0;
    bool closing = false;
    int64_t next_order = 0;            // two-sided: of the next push
    std::map<int64_t, SlotUse> armed;  // by order: those that wait for an earlier one
  };
  PushLanes(KvTransport* transport, Ring ring, int ring_slots, size_t slot_bytes);
  void DrainClosing();

  KvTransport* const transport_;
  const Ring ring_;
  const size_t slot_bytes_;
  SlotLedger local_;
  std::map<PeerId, Lane> lanes_;
  std::list<Flight> flights_;
  int64_t errors_ = 0;
};

}  // namespace sluice
