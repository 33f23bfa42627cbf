// The receiver's half that touches peers: handshake, rings, and what is left of a peer that went away.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/handoff/receiver.h"

namespace sluice {

void HandoffReceiver::On(PeerId peer, const Hello& hello, absl::Time now) {
  if (auto it = peers_.find(peer); it != peers_.end()) {
    if (it->second.incarnation == hello.incarnation)
      host_->Send(peer, it->second.ack);  // doubled
    else
      ++fenced_;  // a restarted process comes on a stream of its own
    return;
  }
  for (const LostRing& lost : lost_rings_)
    if (hello.idle && lost.incarnation == hello.incarnation) transport_->PeerIsIdle(lost.peer);
  auto refuse = [&](const std::string& field, const std::string& ours, const std::string& theirs) {
    host_->Send(peer, Incompatible{field, ours, theirs});
  };
  if (hello.proto_max < kHandoffProtocol || hello.proto_min > kHandoffProtocol)
    return refuse("proto", absl::StrCat(kHandoffProtocol),
                  absl::StrCat(hello.proto_min, "..", hello.proto_max));
  if (hello.transport != transport_->name())
    return refuse("transport", std::string(transport_->name()), hello.transport);
  if (auto mismatch = FirstMismatch(options_.compatibility, hello.compatibility))
    return refuse(mismatch->field, mismatch->ours, mismatch->theirs);
  if (static_cast<int>(peers_.size()) >= options_.max_peers)
    return refuse("max_peers", absl::StrCat(options_.max_peers), absl::StrCat(peers_.size() + 1));
  absl::Status opened = OpenPeer(peer, hello, now);
  if (!opened.ok()) return refuse("transport_address", std::string(opened.message()), "");
  host_->Send(peer, peers_.at(peer).ack);
}

absl::Status HandoffReceiver::OpenPeer(PeerId peer, const Hello& hello, absl::Time now) {
  // On an error there is no ring, or it is as good as a lost peer's: what Connect began must be quiesced.
  auto give_up = [&](Ring ring, absl::Status why) {
    lost_rings_.push_back({peer, hello.incarnation, ring, SlotLedger(0), now});
    return why;
  };
  absl::Status connected = transport_->Connect(peer, hello.transport_address);
  if (!connected.ok()) return give_up({}, connected);
  absl::StatusOr<std::string> address = transport_->LocalAddress(peer);
  if (!address.ok()) return give_up({}, address.status());
  absl::StatusOr<Ring> made =
      transport_->AllocateRing(static_cast<size_t>(options_.ring_slots) * options_.slot_bytes, peer);
  if (!made.ok()) return give_up({}, made.status());
  const Ring ring = *made;
  Peer& state = peers_[peer];
  state.incarnation = hello.incarnation;
  state.ring = ring;
  state.slots = SlotLedger(options_.ring_slots);
  state.records.resize(options_.ring_slots);
  state.ack = {kHandoffProtocol,    options_.incarnation,
               *std::move(address), transport_->ExportKey(ring.region),
               options_.ring_slots, options_.slot_bytes};
  if (transport_->two_sided()) PostProbe(peer, hello);
  return absl::OkStatus();
}

void HandoffReceiver::PostProbe(PeerId peer, const Hello& hello) {
  constexpr int kMaxPushes = 64;  // what a peer says is bounded before it is used
  Peer& state = peers_.at(peer);
  const size_t bytes = std::min<uint64_t>(hello.slot_bytes, options_.slot_bytes);
  for (int i = 0; i <= std::clamp(hello.probe_pushes, 0, kMaxPushes) && bytes > 0; ++i) {
    absl::StatusOr<TransferId> posted = transport_->Expect(peer, state.ring.region, {0, bytes});
    if (posted.ok()) state.probing.push_back(*posted);  // else prefill's probe fails and tells
  }
}

// Two-sided: the slab waits at the sender until its receive is posted.
void HandoffReceiver::Arm(const Arrived& arrived, absl::Time now) {
  const SlabReady& slab = arrived.slab;
  Attempt* attempt = Find(arrived.peer, slab.ids);
  if (attempt == nullptr || slab.seq < 0) return RefuseSlab(arrived, SlabError::kNotReceiving);
  if (absl::Status header = CheckHeader(slab.header, options_.shape, options_.slot_bytes); !header.ok()) {
    ++integrity_mismatches_;
    RefuseSlab(arrived, SlabError::kNotReceiving);
    return End(attempt, HandoffReason::kIntegrity, std::string(header.message()), true, now);
  }
  Peer& state = peers_.at(arrived.peer);
  absl::StatusOr<TransferId> posted =
      transport_->Expect(arrived.peer, state.ring.region,
                         {static_cast<int64_t>(slab.slot.slot * options_.slot_bytes),
                          LayoutOf(slab.header, options_.shape).bytes});
  if (!posted.ok()) return RefuseSlab(arrived, SlabError::kTransport);
  armed_.push_back({arrived, *posted, SlabArmed{slab.ids, slab.seq, slab.slot, state.next_order++}});
  host_->Send(arrived.peer, armed_.back().said);
}

bool HandoffReceiver::EndReceives(absl::Time now) {
  bool pending = false;
  for (auto& [peer, state] : peers_) {
    std::erase_if(state.probing,
                  [&](TransferId id) { return transport_->Poll(id) != TransferState::kPending; });
    pending |= !state.probing.empty();
  }
  std::vector<std::pair<Arrived, TransferState>> ended;
  for (auto it = armed_.begin(); it != armed_.end();) {
    const TransferState receive = transport_->Poll(it->receive);
    if (receive == TransferState::kPending) {
      ++it;
      continue;
    }
    ended.push_back({std::move(it->arrived), receive});
    it = armed_.erase(it);
  }
  for (const auto& [arrived, receive] : ended)
    receive == TransferState::kDone ? Landed(arrived, now) : RefuseSlab(arrived, SlabError::kTransport);
  return pending || !armed_.empty();
}

void HandoffReceiver::OnPeerLost(PeerId peer, absl::Time now) {
  auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  // Pages were never exposed and go back at once; the ring was, and goes when the transport proves it idle.
  Peer state = std::move(it->second);
  peers_.erase(it);
  std::vector<std::string> over;
  for (auto& [id, attempt] : attempts_) {
    std::erase_if(attempt.early, [&](const auto& entry) { return entry.second.peer == peer; });
    if (attempt.peer == peer) over.push_back(id);
  }
  for (const std::string& id : over) End(&attempts_.at(id), HandoffReason::kPeerLost, "", false, now);
  std::erase_if(draining_, [&](const auto& entry) { return entry.second.peer == peer; });
  armed_.remove_if([&](const Armed& armed) { return armed.arrived.peer == peer; });
  state.slots.QuarantineAll(now);
  lost_rings_.push_back({peer, state.incarnation, state.ring, std::move(state.slots), now});
  ReleaseLostRings();
}

void HandoffReceiver::ReleaseLostRings() {
  std::erase_if(lost_rings_, [&](const LostRing& lost) {
    if (!transport_->Quiesce(lost.peer).ok()) return false;
    transport_->ReleaseRing(lost.ring.region);
    return true;
  });
}

}  // namespace sluice
