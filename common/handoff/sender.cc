#include "common/handoff/sender.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/handoff/manifest.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<HandoffSender>> HandoffSender::Create(HandoffSenderOptions options,
                                                                     KvTransport* transport,
                                                                     SenderHost* host) {
  SLUICE_RETURN_IF_ERROR(CutLayer(LayerId(0), {}, options.shape, options.slot_bytes).status());
  SLUICE_ASSIGN_OR_RETURN(auto lanes, PushLanes::Create(transport, options.ring_slots, options.slot_bytes));
  return std::unique_ptr<HandoffSender>(
      new HandoffSender(std::move(options), std::move(lanes), transport, host));
}

HandoffSender::HandoffSender(HandoffSenderOptions options, std::unique_ptr<PushLanes> lanes,
                             KvTransport* transport, SenderHost* host)
    : options_(std::move(options)),
      transport_(transport),
      host_(host),
      lanes_(std::move(lanes)),
      highest_attempt_(options_.result_ttl, options_.max_results) {}

HandoffSender::~HandoffSender() = default;

absl::Status HandoffSender::Start(OfferSpec spec, absl::Time now) {
  const KvShape& shape = options_.shape;
  if (!peers_.contains(spec.peer))
    return absl::UnavailableError(absl::StrCat("peer ", spec.peer.value(), " is not connected"));
  if (spec.ceiling.size() != static_cast<size_t>(shape.n_layers) * shape.n_kv_heads)
    return absl::InvalidArgumentError(absl::StrCat("ceiling: ", spec.ceiling.size(), " entries"));
  const uint32_t* highest = highest_attempt_.Find(spec.key.id);
  if (attempts_.contains(spec.key) || (highest != nullptr && *highest >= spec.key.attempt))
    return absl::InvalidArgumentError(
        absl::StrCat("attempt: ", spec.key.attempt, " of ", spec.key.id, " is not above those before"));
  for (auto& [key, older] : attempts_) {
    if (key.id == spec.key.id && older.live())
      Fail(&older, HandoffReason::kSuperseded, absl::StrCat("attempt ", spec.key.attempt), now);
  }
  highest_attempt_.Put(spec.key.id, spec.key.attempt, now);
  Attempt& attempt = attempts_[spec.key];
  attempt.spec = std::move(spec);
  attempt.ids = {attempt.spec.key, options_.incarnation, ""};
  if (peer_ready(attempt.spec.peer)) SendOffer(&attempt, now);
  return absl::OkStatus();
}

absl::Status HandoffSender::AddLayer(const HandoffKey& key, LayerId layer, const KeptLayer* source) {
  auto it = attempts_.find(key);
  if (it == attempts_.end() || !it->second.live()) return absl::OkStatus();
  Attempt& attempt = it->second;
  const int heads = options_.shape.n_kv_heads;
  if (layer.value() != static_cast<int>(attempt.layers.size()) || layer.value() >= options_.shape.n_layers)
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer.value(), " after ", attempt.layers.size(), " layers"));
  if (static_cast<int>(source->kept.size()) != heads)
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer.value(), ": ", source->kept.size(), " heads"));
  for (int head = 0; head < heads; ++head) {
    int ceiling = attempt.spec.ceiling[layer.value() * heads + head];
    if (source->kept[head] > ceiling)
      return absl::InvalidArgumentError(absl::StrCat("layer ", layer.value(), ", head ", head, ": ",
                                                     source->kept[head], " rows, ceiling ", ceiling));
  }
  attempt.layers.push_back(source);
  return absl::OkStatus();
}

absl::Status HandoffSender::Finish(const HandoffKey& key, SealInfo info) {
  auto it = attempts_.find(key);
  if (it == attempts_.end() || !it->second.live()) return absl::OkStatus();
  if (static_cast<int>(it->second.layers.size()) != options_.shape.n_layers)
    return absl::InvalidArgumentError(absl::StrCat("finished after ", it->second.layers.size(), " layers"));
  it->second.seal = std::move(info);
  return absl::OkStatus();
}

void HandoffSender::Abort(const HandoffKey& key, const std::string& reason, absl::Time now) {
  auto it = attempts_.find(key);
  if (it != attempts_.end() && it->second.live()) Fail(&it->second, HandoffReason::kAborted, reason, now);
}

void HandoffSender::OnMessage(PeerId peer, const HandoffMessage& message, absl::Time now) {
  if (!peers_.contains(peer)) return;
  std::visit(
      [&](const auto& m) {
        // A sender has no use for what only senders say.
        if constexpr (requires { On(peer, m, now); }) On(peer, m, now);
      },
      message);
}

HandoffSender::Attempt* HandoffSender::Find(const HandoffIds& ids) {
  auto it = attempts_.find(ids.key);
  return it != attempts_.end() && it->second.live() && it->second.ids == ids ? &it->second : nullptr;
}

void HandoffSender::SendIfUp(PeerId peer, const HandoffMessage& message) {
  if (peers_.contains(peer)) host_->Send(peer, message);
}

void HandoffSender::SendOffer(Attempt* attempt, absl::Time now) {
  const OfferSpec& spec = attempt->spec;
  const std::string& incarnation = peers_.at(spec.peer).incarnation;
  if (!spec.dst_incarnation.empty() && spec.dst_incarnation != incarnation) {
    Fail(attempt, HandoffReason::kStale, absl::StrCat("decode restarted: it is ", incarnation, " now"), now);
    return;
  }
  attempt->ids.dst_incarnation = incarnation;
  attempt->state = State::kOffered;
  attempt->offered = true;
  attempt->since = now;
  host_->Send(spec.peer, Offer{attempt->ids, spec.n_prompt, spec.ceiling, spec.gates,
                               absl::ToInt64Milliseconds(spec.deadline - now), spec.trace_parent});
}

void HandoffSender::On(PeerId peer, const Grant& grant, absl::Time now) {
  Attempt* attempt = Find(grant.ids);
  if (attempt == nullptr) {  // too late: D must not keep the memory
    if (!attempts_.contains(grant.ids.key))
      host_->Send(peer, sluice::Abort{grant.ids, "the offer has ended", true});
    return;
  }
  if (attempt->state != State::kOffered) return;
  attempt->state = State::kStreaming;
  attempt->lease = absl::Milliseconds(std::max<int64_t>(grant.lease_ms, 0));
  attempt->lease_until = now + attempt->lease;
  attempt->renew_at = now + attempt->lease / 6;
}

void HandoffSender::On(PeerId, const Reject& reject, absl::Time now) {
  Attempt* attempt = Find(reject.ids);
  if (attempt == nullptr || attempt->state != State::kOffered) return;
  attempt->offered = false;  // D holds nothing of it
  HandoffReason reason = HandoffReason::kStale;
  if (reject.reason == RejectReason::kBusy) reason = HandoffReason::kBusy;
  if (reject.reason == RejectReason::kIncompatible) reason = HandoffReason::kIncompatible;
  if (reject.reason == RejectReason::kTooLarge) reason = HandoffReason::kTooLarge;
  Fail(attempt, reason, reject.detail, now, absl::Milliseconds(std::max<int64_t>(reject.retry_after_ms, 0)));
}

void HandoffSender::On(PeerId peer, const SlabAck& ack, absl::Time now) {
  std::optional<SlabReady> slab = lanes_->Answer(peer, ack.slot);
  if (!slab) return;
  Attempt* attempt = Find(slab->ids);
  if (attempt == nullptr) return;
  --attempt->outstanding;
  attempt->progress = now;
  Slab& state = attempt->slabs[slab->seq];
  if (std::exchange(state.acked, true)) return;
  --attempt->unacked;
  ++attempt->stats.slabs;
  attempt->stats.bytes += static_cast<int64_t>(LayoutOf(state.header, options_.shape).bytes);
  attempt->stats.wire = now - attempt->first_push;
}

void HandoffSender::On(PeerId peer, const SlabFail& fail, absl::Time now) {
  std::optional<SlabReady> slab = lanes_->Answer(peer, fail.slot);
  if (!slab) return;
  Attempt* attempt = Find(slab->ids);
  if (attempt == nullptr) return;
  --attempt->outstanding;
  attempt->progress = now;
  if (fail.reason == SlabError::kChecksum)
    return Retry(attempt, slab->seq, HandoffReason::kIntegrity, "checksum", now);
  if (fail.reason == SlabError::kTransport) {
    Fail(attempt, HandoffReason::kTransport, "decode's receive failed", now);
    broken_.push_back({peer, "decode's receive failed"});
  } else {
    Fail(attempt, HandoffReason::kPeerAborted, "decode does not know the attempt", now);
  }
}

void HandoffSender::On(PeerId peer, const SlabArmed& armed, absl::Time now) {
  if (!transport_->two_sided()) return;
  absl::StatusOr<std::vector<HandoffIds>> pushed = lanes_->Armed(peer, armed, now);
  if (!pushed.ok()) {
    broken_.push_back({peer, std::string(pushed.status().message())});
    return;
  }
  for (const HandoffIds& ids : *pushed)
    if (Attempt* attempt = Find(ids)) attempt->progress = now;
}

void HandoffSender::On(PeerId, const Commit& commit, absl::Time now) {
  Attempt* attempt = Find(commit.ids);
  if (attempt == nullptr || attempt->state != State::kSealed) return;
  if (commit.digest != attempt->digest) return Fail(attempt, HandoffReason::kIntegrity, "commit digest", now);
  HandoffResult result;
  result.stats = attempt->stats;
  HandoffKey key = attempt->ids.key;
  attempts_.erase(key);
  host_->OnResult(key, result);
}

void HandoffSender::On(PeerId peer, const sluice::Abort& abort, absl::Time now) {
  if (Attempt* attempt = Find(abort.ids)) {
    attempt->peer_aborted = true;
    Fail(attempt, HandoffReason::kPeerAborted, abort.reason, now);
    return;
  }
  auto it = attempts_.find(abort.ids.key);
  if (it != attempts_.end() && it->second.state == State::kDraining)
    it->second.peer_aborted = true;  // answered when drained
  else
    host_->Send(peer, AbortAck{abort.ids, lanes_->pushing(abort.ids.key) == 0});
}

void HandoffSender::On(PeerId, const Renew& renew, absl::Time now) {
  for (const HandoffIds& ids : renew.ids) {
    if (Attempt* attempt = Find(ids))
      attempt->lease_until = std::max(attempt->lease_until, now + attempt->lease * 2 / 3);
  }
}

void HandoffSender::Fail(Attempt* attempt, HandoffReason reason, const std::string& detail, absl::Time now,
                         absl::Duration retry_after) {
  attempt->state = State::kDraining;
  attempt->since = now;
  attempt->abort_reason = absl::StrCat(ReasonName(reason), detail.empty() ? "" : ": ", detail);
  attempt->layers.clear();
  attempt->to_push.clear();
  attempt->slabs.clear();
  host_->OnResult(attempt->ids.key, {reason, detail, retry_after, attempt->stats});
}

// True: nothing of the attempt is in flight and the peer has been told.
bool HandoffSender::Drained(Attempt* attempt, absl::Time now) {
  bool idle = lanes_->pushing(attempt->ids.key) == 0;
  if (attempt->state == State::kQuarantined) return idle;
  if (!idle && now < attempt->since + options_.drain_timeout) return false;
  if (attempt->offered) {
    if (attempt->peer_aborted)
      SendIfUp(attempt->spec.peer, AbortAck{attempt->ids, idle});
    else
      SendIfUp(attempt->spec.peer, sluice::Abort{attempt->ids, attempt->abort_reason, idle});
  }
  if (idle) return true;
  lanes_->Quarantine(attempt->ids.key, now);
  attempt->state = State::kQuarantined;
  return false;
}

void HandoffSender::CheckClocks(Attempt* attempt, absl::Time now) {
  if (attempt->spec.deadline <= now) return Fail(attempt, HandoffReason::kDeadline, "", now);
  if (attempt->state == State::kIdle) return;
  if (attempt->state == State::kOffered) {
    if (attempt->since + options_.offer_timeout <= now) Fail(attempt, HandoffReason::kOfferTimeout, "", now);
    return;
  }
  if (attempt->lease_until <= now) {
    ++leases_expired_;
    return Fail(attempt, HandoffReason::kLeaseExpired, "", now);
  }
  if (attempt->orphaned) {
    if (*attempt->orphaned + options_.reconnect_grace <= now)
      Fail(attempt, HandoffReason::kPeerLost, "after Seal", now);
    return;
  }
  if (attempt->outstanding > 0) {
    PeerId peer = attempt->spec.peer;
    absl::Duration wire = absl::Seconds(4.0 * lanes_->bytes_in_flight(peer) / lanes_->rate(peer));
    if (attempt->progress + options_.progress_timeout + wire <= now) {
      Fail(attempt, HandoffReason::kNoProgress, absl::StrCat(attempt->outstanding, " slabs unanswered"), now);
      // What waits in a two-sided connection stops everything behind it.
      if (transport_->two_sided()) broken_.push_back({peer, "no progress"});
    }
    return;
  }
  if (attempt->state == State::kSealed && attempt->since + options_.commit_resend <= now)
    SendSeal(attempt, now);
}

bool HandoffSender::Tick(absl::Time now) {
  highest_attempt_.Expire(now);
  EndPushes(now);
  ProbePeers(now);
  for (auto& [key, attempt] : attempts_) {
    if (attempt.live()) CheckClocks(&attempt, now);
  }
  Pump(now);
  for (auto& [key, attempt] : attempts_) {
    // Slabs may still be on the wire: the Seal, which has their checksums, is at D by the time they are.
    if (attempt.state == State::kStreaming && attempt.seal && attempt.unfilled == 0 &&
        attempt.cut_layers == static_cast<size_t>(options_.shape.n_layers))
      SendSeal(&attempt, now);
  }
  ResendUnanswered(now);
  SendRenewals(now);
  for (auto it = attempts_.begin(); it != attempts_.end();) {
    bool over = !it->second.live() && Drained(&it->second, now);
    it = over ? attempts_.erase(it) : std::next(it);
  }
  for (auto& [peer, why] : std::exchange(broken_, {}))
    if (peers_.contains(peer)) PeerDown(peer, absl::UnavailableError(why), now);
  return lanes_->busy();
}

void HandoffSender::SendRenewals(absl::Time now) {
  std::map<PeerId, Renew> renewals;
  for (auto& [key, attempt] : attempts_) {
    bool leased = attempt.state == State::kStreaming || attempt.state == State::kSealed;
    if (!leased || attempt.orphaned || attempt.renew_at > now) continue;
    attempt.renew_at = now + attempt.lease / 6;
    renewals[attempt.spec.peer].ids.push_back(attempt.ids);
  }
  for (const auto& [peer, renew] : renewals) host_->Send(peer, renew);
}

void HandoffSender::SendSeal(Attempt* attempt, absl::Time now) {
  attempt->state = State::kSealed;
  attempt->since = now;
  Manifest manifest;
  for (const Slab& slab : attempt->slabs) manifest.Add(slab.header, slab.checksum);
  Seal seal{attempt->ids, manifest.slabs(),           attempt->seal->logical_len,        manifest.rows(),
            /*digest=*/0, attempt->seal->first_token, attempt->seal->distinct_prompt_ids};
  attempt->digest = seal.digest = manifest.Digest(seal);
  host_->Send(attempt->spec.peer, seal);
}

bool HandoffSender::peer_ready(PeerId peer) const {
  auto it = peers_.find(peer);
  return it != peers_.end() && it->second.state == PeerState::kReady;
}

int HandoffSender::live() const {
  return static_cast<int>(
      std::count_if(attempts_.begin(), attempts_.end(), [](const auto& e) { return e.second.live(); }));
}

int HandoffSender::in_flight() const {
  return lanes_->flights() + lanes_->closing() + static_cast<int>(attempts_.size()) - live();
}

SlotCounts HandoffSender::send_slots(absl::Time now) const { return lanes_->local_slots(now); }

SlotCounts HandoffSender::peer_slots(absl::Time now) const { return lanes_->peer_slots(now); }

}  // namespace sluice
