// Role: the prefill half of the hand-off: offers, streams slabs while later layers compute, seals, and ends
// every attempt with exactly one result. Why pure: no sockets, threads or clock, so every failure is a
// deterministic test. Threads: one loop (the transfer loop) makes every call. The host's functions are called
// from inside these calls and must not call back.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/strong_id.h"
#include "common/handoff/messages.h"
#include "common/handoff/push_lanes.h"
#include "common/handoff/recent_map.h"
#include "common/handoff/result.h"
#include "common/kvcache/kept_layer.h"
#include "common/kvcache/kv_shape.h"
#include "common/transport/kv_transport.h"

namespace sluice {

struct HandoffSenderOptions {
  std::string incarnation;  // RandomId128() at process start
  Compatibility compatibility;
  KvShape shape;
  int ring_slots = 8;  // of the send ring, shared by all peers
  size_t slot_bytes = 1 << 20;
  absl::Duration handshake_timeout = absl::Seconds(5);
  absl::Duration offer_timeout = absl::Seconds(1);
  absl::Duration progress_timeout = absl::Seconds(2);  // + bytes in flight / (a quarter of the probed rate)
  absl::Duration commit_resend = absl::Seconds(1);     // no Commit: Seal again; no SlabAck: SlabReady again
  absl::Duration reconnect_grace = absl::Seconds(2);   // a sealed attempt outlives its stream by this
  absl::Duration drain_timeout = absl::Seconds(2);     // then what is still in flight is quarantined
  absl::Duration result_ttl = absl::Minutes(10);
  int max_results = 16384;
  int max_slab_retries = 2;
  int probe_pushes = 4;             // per new peer, one slot each
  double min_bytes_per_second = 0;  // a peer whose probe is slower is refused
};

struct OfferSpec {
  HandoffKey key;
  PeerId peer;
  std::string dst_incarnation;  // expected of that peer; empty: any
  int n_prompt = 0;
  std::vector<int> ceiling;  // [layer * n_kv_heads + head]
  std::string gates;
  absl::Time deadline;
  std::string trace_parent;
};

struct SealInfo {
  LogicalLen logical_len;
  int first_token = 0;
  std::vector<int> distinct_prompt_ids;
};

class SenderHost {
 public:
  virtual ~SenderHost() = default;
  virtual void Send(PeerId peer, const HandoffMessage& message) = 0;  // ordered per peer; may be lost
  // Copies one slab of `source` into a slot of the send ring (slab.h); its checksum. The bytes are complete
  // on return.
  virtual absl::StatusOr<uint64_t> FillSlab(const HandoffKey& key, const KeptLayer& source,
                                            const SlabHeader& header, char* slot) = 0;
  // What the probe of the peer's ring measured.
  virtual void OnProbe(PeerId peer, double bytes_per_second) = 0;
  // The handshake succeeded, and the probe reached the floor.
  virtual void OnPeerReady(PeerId peer) = 0;
  // The peer cannot be used: FailedPrecondition names the incompatible field, ResourceExhausted a probe below
  // the floor; Unavailable and DeadlineExceeded mean dial again, with a new PeerId. Not called after
  // OnPeerLost.
  virtual void OnPeerDown(PeerId peer, const absl::Status& why) = 0;
  // Terminal, once per started attempt. From here on the machine reads no KeptLayer of this attempt.
  virtual void OnResult(const HandoffKey& key, const HandoffResult& result) = 0;
};

class HandoffSender {
 public:
  // Allocates the send ring. `transport` and `host` outlive the sender.
  static absl::StatusOr<std::unique_ptr<HandoffSender>> Create(HandoffSenderOptions options,
                                                               KvTransport* transport, SenderHost* host);
  ~HandoffSender();

  // A PeerId names one control stream: a redial is a new PeerId.
  void OnConnected(PeerId peer, absl::Time now);
  void OnPeerLost(PeerId peer, absl::Time now);
  void OnMessage(PeerId peer, const HandoffMessage& message, absl::Time now);

  // Offers. The peer may still be shaking hands; Unavailable when it is unknown or down. A lower attempt of
  // the same id ends (kSuperseded); InvalidArgument when this attempt is not the highest.
  absl::Status Start(OfferSpec spec, absl::Time now);
  // Layers come in order 0, 1, ... `source` is borrowed until OnResult. OK and ignored once the attempt has
  // its result. InvalidArgument for a layer out of order or rows above the ceiling.
  absl::Status AddLayer(const HandoffKey& key, LayerId layer, const KeptLayer* source);
  // After the last layer.
  absl::Status Finish(const HandoffKey& key, SealInfo info);
  // Ends with kAborted. Nothing happens when the attempt already has its result.
  void Abort(const HandoffKey& key, const std::string& reason, absl::Time now);

  // Moves bytes and checks every clock. True: something is in flight, call again soon.
  bool Tick(absl::Time now);

  bool peer_ready(PeerId peer) const;
  int live() const;                             // attempts without a result
  int in_flight() const;                        // pushes and slots that are not proven idle
  SlotCounts send_slots(absl::Time now) const;  // of the send ring
  SlotCounts peer_slots(absl::Time now) const;  // of all peers' rings, as far as we use them
  int64_t leases_expired() const { return leases_expired_; }
  int64_t transport_errors() const { return lanes_->errors(); }

 private:
  enum class State { kIdle, kOffered, kStreaming, kSealed, kDraining, kQuarantined };
  struct Slab {
    SlabHeader header;
    uint64_t checksum = 0;
    int retries = 0;
    bool filled = false;  // its checksum is known
    bool acked = false;
  };
  struct Attempt {
    OfferSpec spec;
    HandoffIds ids;
    State state = State::kIdle;
    std::vector<const KeptLayer*> layers;
    std::vector<Slab> slabs;  // by seq
    size_t cut_layers = 0;    // of `layers`, into slabs
    std::deque<int> to_push;  // seq; a retry goes to the front
    int unfilled = 0;         // slabs that were in no slot yet
    int unacked = 0;          // slabs without their SlabAck
    int outstanding = 0;      // slabs pushed, or two-sided announced, and not answered
    std::optional<SealInfo> seal;
    uint64_t digest = 0;  // of the Seal that was sent
    absl::Time since;     // the state's own clock: Offer, the last Seal, the start of draining
    absl::Time
        progress;  // the last answer for a slab (two-sided: or its push), or the Push after an idle time
    absl::Duration lease = absl::ZeroDuration();
    absl::Time lease_until, renew_at;
    std::optional<absl::Time> orphaned;  // sealed, all slabs acknowledged, and its stream is gone since then
    bool offered = false;                // the peer knows of it: it must be told how it ends
    bool peer_aborted = false;           // the peer waits for AbortAck
    std::string abort_reason;
    absl::Time first_push;
    HandoffStats stats;
    bool live() const { return state != State::kDraining && state != State::kQuarantined; }
  };
  enum class PeerState { kShakingHands, kProbing, kReady };
  struct Peer {
    PeerState state = PeerState::kShakingHands;
    absl::Time since;
    std::string incarnation;
    HandoffKey turn;  // the attempt that pushed last: the next one is another's
  };

  HandoffSender(HandoffSenderOptions options, std::unique_ptr<PushLanes> lanes, KvTransport* transport,
                SenderHost* host);

  void On(PeerId peer, const HelloAck& ack, absl::Time now);
  void On(PeerId peer, const Incompatible& message, absl::Time now);
  void On(PeerId peer, const Grant& grant, absl::Time now);
  void On(PeerId peer, const Reject& reject, absl::Time now);
  void On(PeerId peer, const SlabArmed& armed, absl::Time now);
  void On(PeerId peer, const SlabAck& ack, absl::Time now);
  void On(PeerId peer, const SlabFail& fail, absl::Time now);
  void On(PeerId peer, const Commit& commit, absl::Time now);
  void On(PeerId peer, const sluice::Abort& abort, absl::Time now);
  void On(PeerId peer, const Renew& renew, absl::Time now);

  Attempt* Find(const HandoffIds& ids);  // null unless it lives and the incarnations agree
  void ProbePeers(absl::Time now);
  void PeerReady(PeerId peer, Peer* state, absl::Time now);
  void PeerDown(PeerId peer, const absl::Status& why, absl::Time now);
  void DropPeer(PeerId peer, const std::string& why, absl::Time now);
  void SendOffer(Attempt* attempt, absl::Time now);
  void CutLayers(Attempt* attempt);
  void Pump(absl::Time now);
  bool PushOne(PeerId peer, Peer* state, absl::Time now);
  bool PushSlab(Attempt* attempt, absl::Time now);
  void EndPushes(absl::Time now);
  void Retry(Attempt* attempt, int seq, HandoffReason reason, const std::string& detail, absl::Time now);
  void SendSeal(Attempt* attempt, absl::Time now);
  void Fail(Attempt* attempt, HandoffReason reason, const std::string& detail, absl::Time now,
            absl::Duration retry_after = absl::ZeroDuration());
  void CheckClocks(Attempt* attempt, absl::Time now);
  void ResendUnanswered(absl::Time now);
  void SendRenewals(absl::Time now);
  bool Drained(Attempt* attempt, absl::Time now);
  void SendIfUp(PeerId peer, const HandoffMessage& message);

  const HandoffSenderOptions options_;
  KvTransport* const transport_;
  SenderHost* const host_;
  std::unique_ptr<PushLanes> lanes_;
  std::map<PeerId, Peer> peers_;
  std::map<HandoffKey, Attempt> attempts_;
  RecentMap<uint32_t> highest_attempt_;                 // by handoff id
  std::vector<std::pair<PeerId, std::string>> broken_;  // given up during this Tick
  int64_t leases_expired_ = 0;
};

}  // namespace sluice
