// Role: the decode half of the hand-off: reserves at Offer, checks and scatters slabs, commits, and holds
// nothing for a sender that went away. Why pure: as sender.h. Threads: one loop (the transfer loop) makes
// every call. The host's functions are called from inside these calls and must not call back.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/handoff/manifest.h"
#include "common/handoff/messages.h"
#include "common/handoff/recent_map.h"
#include "common/handoff/result.h"
#include "common/handoff/slab_work.h"
#include "common/handoff/slot_ledger.h"
#include "common/kvcache/kv_shape.h"
#include "common/transport/kv_transport.h"

namespace sluice {

struct HandoffReceiverOptions {
  std::string incarnation;
  Compatibility compatibility;
  KvShape shape;
  int ring_slots = 8;  // of the receive ring of each peer
  size_t slot_bytes = 1 << 20;
  absl::Duration lease = absl::Seconds(30);  // renewed by two thirds of it
  absl::Duration busy_retry_after = absl::Milliseconds(500);
  absl::Duration abort_resend = absl::Seconds(1);  // an Abort without its AbortAck is sent again
  absl::Duration result_ttl = absl::Minutes(10);   // stored results and tombstones
  int max_results = 16384;
  int max_peers = 64;
};

class ReceiverHost {
 public:
  virtual ~ReceiverHost() = default;
  virtual void Send(PeerId peer, const HandoffMessage& message) = 0;
  // Memory for the ceilings, all or nothing. ResourceExhausted: busy, the sender may try again.
  // OutOfRange: never fits. NotFound: the request is not registered or was cancelled. FailedPrecondition,
  // InvalidArgument, Unimplemented: the message names the field.
  virtual absl::Status Reserve(const Offer& offer) = 0;
  // Reads what a slab says of itself, where its bytes lie (SlabWork). An error ends the attempt.
  virtual absl::StatusOr<SlabFacts> Inspect(const SlabHeader& header, const char* slab) = 0;
  // Checked bytes of a granted attempt, in order; valid during the call. positions: [header.total_rows()]. An
  // error ends the attempt.
  virtual absl::Status Scatter(const HandoffKey& key, const SlabHeader& header, const char* slab,
                               absl::Span<const int32_t> positions) = 0;
  // Validated: decode may start. kept: [layer * n_kv_heads + head]. The machine holds nothing of it any more.
  virtual void Ready(const HandoffKey& key, const Seal& seal, const std::vector<int>& kept) = 0;
  // A reserved attempt ended without Ready: give its memory back.
  virtual void Released(const HandoffKey& key, HandoffReason reason, const std::string& detail) = 0;
};

class HandoffReceiver {
 public:
  // `transport` and `host` outlive the receiver.
  HandoffReceiver(HandoffReceiverOptions options, KvTransport* transport, ReceiverHost* host);
  ~HandoffReceiver();

  // A PeerId names one control stream: a redial is a new PeerId. It becomes known by its Hello.
  void OnMessage(PeerId peer, const HandoffMessage& message, absl::Time now);
  void OnPeerLost(PeerId peer, absl::Time now);

  // The owner's cancel. An attempt not offered yet is refused when it comes.
  void Abort(const HandoffKey& key, const std::string& reason, absl::Time now);

  // Moves bytes and checks every clock. True: something is in flight, call again soon.
  bool Tick(absl::Time now);

  int live() const;                        // reserved attempts that are not ready yet
  int draining() const;                    // aborted attempts and rings whose writer is not proven idle
  SlotCounts slots(absl::Time now) const;  // of all receive rings
  int64_t leases_expired() const { return leases_expired_; }
  int64_t integrity_mismatches() const { return integrity_mismatches_; }
  int64_t fenced() const { return fenced_; }  // messages of another incarnation or attempt

 private:
  struct SlotRecord {
    uint64_t generation = 0;              // of the last SlabReady that was accepted
    std::optional<HandoffMessage> reply;  // nullopt while the slab waits for an earlier one
  };
  struct Peer {
    std::string incarnation;
    Ring ring;
    SlotLedger slots{0};
    std::vector<SlotRecord> records;
    HelloAck ack;
    int64_t next_order = 0;           // two-sided: of the next SlabArmed
    std::vector<TransferId> probing;  // two-sided: receives of the probe
  };
  struct Arrived {
    PeerId peer;  // whose ring holds it
    SlabReady slab;
  };
  struct Armed {  // two-sided: its receive is posted
    Arrived arrived;
    TransferId receive;
    SlabArmed said;
  };
  struct Attempt {
    HandoffIds ids;
    PeerId peer;  // the stream of the sender's last message
    int n_prompt = 0;
    std::vector<LayerProgress> layers;
    int next_seq = 0;              // slabs are scattered in order
    std::map<int, Arrived> early;  // by seq; they wait in their slots
    std::optional<Seal> seal;
    Manifest manifest;
    absl::Time lease_until, deadline;
  };
  struct Stored {  // what a late message is answered with
    uint32_t attempt = 0;
    bool committed = false;
    uint64_t digest = 0;
    HandoffReason reason = HandoffReason::kNone;
    std::string detail;
  };
  struct Draining {  // ended here; the sender has not said yet that it stopped pushing
    PeerId peer;
    sluice::Abort abort;
    absl::Time resend_at;
  };
  struct LostRing {
    PeerId peer;
    std::string incarnation;
    Ring ring;
    SlotLedger slots{0};
    absl::Time since = absl::InfinitePast();
  };

  void On(PeerId peer, const Hello& hello, absl::Time now);
  void On(PeerId peer, const Offer& offer, absl::Time now);
  void On(PeerId peer, const SlabReady& slab, absl::Time now);
  void On(PeerId peer, const Seal& seal, absl::Time now);
  void On(PeerId peer, const sluice::Abort& abort, absl::Time now);
  void On(PeerId peer, const AbortAck& ack, absl::Time now);
  void On(PeerId peer, const Renew& renew, absl::Time now);

  absl::Status OpenPeer(PeerId peer, const Hello& hello, absl::Time now);
  bool Fenced(PeerId peer, const HandoffIds& ids);
  Attempt* Find(PeerId peer, const HandoffIds& ids);
  absl::Status CheckOffer(const Offer& offer) const;
  void Refuse(PeerId peer, const Offer& offer, RejectReason reason, const std::string& detail);
  void Answer(PeerId peer, const HandoffIds& ids);  // the stored result of an attempt that is not live
  void PostProbe(PeerId peer, const Hello& hello);
  void Arm(const Arrived& arrived, absl::Time now);
  bool EndReceives(absl::Time now);  // true: some are under way
  void Landed(const Arrived& arrived, absl::Time now);
  void RefuseSlab(const Arrived& arrived, SlabError why);
  char* DataOf(const Arrived& arrived);
  bool Take(Attempt* attempt, const Arrived& arrived, absl::Time now);
  void TakeInOrder(Attempt* attempt, const Arrived& arrived, absl::Time now);
  void Reply(PeerId peer, const SlotUse& slot, HandoffMessage message);
  void MaybeReady(Attempt* attempt, absl::Time now);
  void End(Attempt* attempt, HandoffReason reason, const std::string& detail, bool tell_peer, absl::Time now);
  void Tombstone(const HandoffKey& key, HandoffReason reason, const std::string& detail, absl::Time now);
  void ReleaseLostRings();

  const HandoffReceiverOptions options_;
  KvTransport* const transport_;
  ReceiverHost* const host_;
  std::map<PeerId, Peer> peers_;
  std::map<std::string, Attempt> attempts_;  // by handoff id: at most one attempt of an id is live
  std::map<HandoffKey, Draining> draining_;
  std::list<Armed> armed_;  // in the order of each peer
  std::list<LostRing> lost_rings_;
  RecentMap<Stored> results_;  // by handoff id; also the tombstones
  int64_t leases_expired_ = 0;
  int64_t integrity_mismatches_ = 0;
  int64_t fenced_ = 0;
};

}  // namespace sluice
