// The sender's half that touches peers and slots: handshake and probe, pushing slabs, retries.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/handoff/sender.h"

namespace sluice {

void HandoffSender::OnConnected(PeerId peer, absl::Time now) {
  if (peers_.contains(peer)) return;
  absl::StatusOr<std::string> address = transport_->LocalAddress(peer);
  if (!address.ok()) {
    host_->OnPeerDown(peer, address.status());
    return;
  }
  peers_[peer].since = now;
  Hello hello;
  hello.incarnation = options_.incarnation;
  hello.compatibility = options_.compatibility;
  hello.transport = std::string(transport_->name());
  hello.transport_address = *std::move(address);
  hello.slot_bytes = options_.slot_bytes;
  hello.idle = lanes_->closing() == 0;
  hello.probe_pushes = options_.probe_pushes;
  host_->Send(peer, hello);
}

void HandoffSender::On(PeerId peer, const HelloAck& ack, absl::Time now) {
  Peer& state = peers_.at(peer);
  if (state.state != PeerState::kShakingHands) return;
  if (ack.proto != kHandoffProtocol) {
    return PeerDown(
        peer,
        absl::FailedPreconditionError(absl::StrCat("proto: ours ", kHandoffProtocol, ", theirs ", ack.proto)),
        now);
  }
  absl::Status opened = lanes_->Open(peer, ack, options_.probe_pushes, now);
  if (opened.ok()) opened = CutLayer(LayerId(0), {}, options_.shape, lanes_->slab_bytes(peer)).status();
  if (!opened.ok()) return PeerDown(peer, opened, now);
  state.state = PeerState::kProbing;
  state.incarnation = ack.incarnation;
}

void HandoffSender::On(PeerId peer, const Incompatible& message, absl::Time now) {
  PeerDown(peer,
           absl::FailedPreconditionError(
               absl::StrCat(message.field, ": ours ", message.theirs, ", decode's ", message.ours)),
           now);
}

void HandoffSender::ProbePeers(absl::Time now) {
  std::vector<std::pair<PeerId, absl::Status>> down;
  for (auto& [peer, state] : peers_) {
    if (state.state == PeerState::kReady) continue;
    if (state.since + options_.handshake_timeout <= now) {
      down.push_back({peer, absl::DeadlineExceededError("handshake")});
      continue;
    }
    if (state.state != PeerState::kProbing) continue;
    absl::StatusOr<std::optional<double>> rate = lanes_->Probe(peer, now);
    if (!rate.ok()) {
      down.push_back({peer, rate.status()});
      continue;
    }
    if (!rate->has_value()) continue;
    host_->OnProbe(peer, **rate);
    if (**rate < options_.min_bytes_per_second)
      down.push_back({peer, absl::ResourceExhaustedError(absl::StrCat("transport: ", **rate / 1e6,
                                                                      " MB/s, the floor is ",
                                                                      options_.min_bytes_per_second / 1e6))});
    else
      PeerReady(peer, &state, now);
  }
  for (const auto& [peer, why] : down) PeerDown(peer, why, now);
}

void HandoffSender::PeerReady(PeerId peer, Peer* state, absl::Time now) {
  state->state = PeerState::kReady;
  host_->OnPeerReady(peer);
  for (auto& [key, attempt] : attempts_) {
    if (attempt.state == State::kIdle && attempt.spec.peer == peer) SendOffer(&attempt, now);
    // The same process behind a new stream: it still knows whether it committed.
    if (attempt.live() && attempt.orphaned && attempt.ids.dst_incarnation == state->incarnation) {
      attempt.orphaned.reset();
      attempt.spec.peer = peer;
      SendSeal(&attempt, now);
    }
  }
}

void HandoffSender::OnPeerLost(PeerId peer, absl::Time now) { DropPeer(peer, "stream lost", now); }

void HandoffSender::PeerDown(PeerId peer, const absl::Status& why, absl::Time now) {
  DropPeer(peer, std::string(why.message()), now);
  host_->OnPeerDown(peer, why);
}

void HandoffSender::DropPeer(PeerId peer, const std::string& why, absl::Time now) {
  if (peers_.erase(peer) == 0) return;
  lanes_->Close(peer, now);
  for (auto& [key, attempt] : attempts_) {
    if (!attempt.live() || attempt.orphaned || attempt.spec.peer != peer) continue;
    if (attempt.state == State::kSealed && attempt.unacked == 0)
      attempt.orphaned = now;
    else
      Fail(&attempt, HandoffReason::kPeerLost, why, now);
  }
}

void HandoffSender::CutLayers(Attempt* attempt) {
  for (; attempt->cut_layers < attempt->layers.size(); ++attempt->cut_layers) {
    // Cannot fail: the slot size was checked with the peer's HelloAck.
    auto slabs =
        CutLayer(LayerId(static_cast<int>(attempt->cut_layers)), attempt->layers[attempt->cut_layers]->kept,
                 options_.shape, lanes_->slab_bytes(attempt->spec.peer));
    for (SlabHeader& header : *slabs) {
      attempt->to_push.push_back(static_cast<int>(attempt->slabs.size()));
      attempt->slabs.push_back({std::move(header)});
      ++attempt->unfilled;
      ++attempt->unacked;
    }
  }
}

// Slots go round: one slab for each peer, and inside a peer one for each attempt.
void HandoffSender::Pump(absl::Time now) {
  for (auto& [key, attempt] : attempts_) {
    if (attempt.state == State::kStreaming) CutLayers(&attempt);
  }
  for (bool pushed = true; pushed;) {
    pushed = false;
    for (auto& [peer, state] : peers_) {
      if (state.state == PeerState::kReady && lanes_->CanStage(peer)) pushed |= PushOne(peer, &state, now);
    }
  }
}

bool HandoffSender::PushOne(PeerId peer, Peer* state, absl::Time now) {
  auto wants = [&](const Attempt& a) { return a.live() && a.spec.peer == peer && !a.to_push.empty(); };
  auto next = attempts_.upper_bound(state->turn);
  for (size_t i = 0; i < attempts_.size(); ++i, ++next) {
    if (next == attempts_.end()) next = attempts_.begin();
    if (!wants(next->second)) continue;
    state->turn = next->first;
    return PushSlab(&next->second, now);
  }
  return false;
}

// False: no slab left; a failing transport must not spin here.
bool HandoffSender::PushSlab(Attempt* attempt, absl::Time now) {
  const HandoffKey key = attempt->ids.key;
  const int seq = attempt->to_push.front();
  attempt->to_push.pop_front();
  Slab& slab = attempt->slabs[seq];
  const size_t bytes = LayoutOf(slab.header, options_.shape).bytes;
  PushLanes::Flight* flight =
      lanes_->Stage(attempt->spec.peer, SlabReady{attempt->ids, seq, slab.header, {}, 0}, bytes);
  absl::StatusOr<uint64_t> filled =
      host_->FillSlab(key, *attempt->layers[slab.header.layer.value()], slab.header, lanes_->data(*flight));
  if (!filled.ok()) {
    lanes_->Cancel(flight);
    Fail(attempt, HandoffReason::kAborted, absl::StrCat("fill: ", filled.status().message()), now);
    return false;
  }
  flight->slab.checksum = slab.checksum = *filled;
  if (!std::exchange(slab.filled, true)) --attempt->unfilled;
  if (transport_->two_sided()) {
    lanes_->Announced(flight, now);
    host_->Send(attempt->spec.peer, flight->slab);
  } else if (absl::Status pushed = lanes_->Push(flight, now); !pushed.ok()) {
    Retry(attempt, seq, HandoffReason::kTransport, std::string(pushed.message()), now);
    return false;
  }
  if (attempt->stats.slabs == 0 && attempt->outstanding == 0) attempt->first_push = now;
  if (attempt->outstanding++ == 0) attempt->progress = now;
  return true;
}

void HandoffSender::EndPushes(absl::Time now) {
  std::vector<PushLanes::Ended> ended = lanes_->Poll(now);
  for (const PushLanes::Ended& push : ended) {
    if (push.flight == nullptr) continue;
    Attempt* attempt = Find(push.flight->slab.ids);
    if (attempt == nullptr)  // nobody waits for it: the slot was never announced
      lanes_->Cancel(push.flight);
    else
      host_->Send(attempt->spec.peer, push.flight->slab);
  }
  // Behind the others: a peer that is given up takes its flights along.
  for (const PushLanes::Ended& push : ended) {
    if (push.flight != nullptr) continue;
    if (transport_->two_sided()) broken_.push_back({push.peer, "push failed"});
    auto it = attempts_.find(push.key);
    if (it == attempts_.end() || !it->second.live()) continue;
    --it->second.outstanding;
    if (transport_->two_sided())
      Fail(&it->second, HandoffReason::kTransport, absl::StrCat("slab ", push.seq, ": push failed"), now);
    else
      Retry(&it->second, push.seq, HandoffReason::kTransport, "push failed", now);
  }
}

void HandoffSender::Retry(Attempt* attempt, int seq, HandoffReason reason, const std::string& detail,
                          absl::Time now) {
  ++attempt->stats.retries;
  if (++attempt->slabs[seq].retries <= options_.max_slab_retries) {
    attempt->to_push.push_front(seq);
    return;
  }
  Fail(attempt, reason, absl::StrCat("slab ", seq, ": ", detail), now);
  // A rail that fails again and again is of no use to the next attempt either: dial again.
  if (reason == HandoffReason::kTransport) broken_.push_back({attempt->spec.peer, detail});
}

void HandoffSender::ResendUnanswered(absl::Time now) {
  for (PushLanes::Flight* flight : lanes_->Unanswered(now - options_.commit_resend)) {
    flight->since = now;
    SendIfUp(flight->peer, flight->slab);
  }
}

}  // namespace sluice
