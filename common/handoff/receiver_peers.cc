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
  absl::Status opened = OpenPeer(peer, hello);
  if (!opened.ok()) return refuse("transport_address", std::string(opened.message()), "");
  host_->Send(peer, peers_.at(peer).ack);
}

absl::Status HandoffReceiver::OpenPeer(PeerId peer, const Hello& hello) {
  SLUICE_ASSIGN_OR_RETURN(std::string address, transport_->LocalAddress(peer));
  SLUICE_ASSIGN_OR_RETURN(
      Ring ring, transport_->AllocateRing(static_cast<size_t>(options_.ring_slots) * options_.slot_bytes));
  if (absl::Status connected = transport_->Connect(peer, hello.transport_address); !connected.ok()) {
    lost_rings_.push_back({peer, ring, SlotLedger(options_.ring_slots)});
    return connected;
  }
  Peer& state = peers_[peer];
  state.incarnation = hello.incarnation;
  state.ring = ring;
  state.slots = SlotLedger(options_.ring_slots);
  state.records.resize(options_.ring_slots);
  state.ack = {kHandoffProtocol,    options_.incarnation,
               std::move(address),  transport_->ExportKey(ring.region),
               options_.ring_slots, options_.slot_bytes};
  return absl::OkStatus();
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
  state.slots.QuarantineAll(now);
  lost_rings_.push_back({peer, state.ring, std::move(state.slots)});
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
