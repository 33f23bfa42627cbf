#include "common/handoff/receiver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {

HandoffReceiver::HandoffReceiver(HandoffReceiverOptions options, KvTransport* transport, ReceiverHost* host)
    : options_(std::move(options)),
      transport_(transport),
      host_(host),
      results_(options_.result_ttl, options_.max_results) {}

HandoffReceiver::~HandoffReceiver() {
  for (auto& [peer, state] : peers_)
    lost_rings_.push_back({peer, "", state.ring, SlotLedger(0), absl::InfinitePast()});
  ReleaseLostRings();
}

void HandoffReceiver::OnMessage(PeerId peer, const HandoffMessage& message, absl::Time now) {
  std::visit(
      [&](const auto& m) {
        // A receiver has no use for what only receivers say; and before its Hello a peer is nobody.
        if constexpr (requires { On(peer, m, now); }) {
          if (peers_.contains(peer) || std::is_same_v<decltype(m), const Hello&>) On(peer, m, now);
        }
      },
      message);
}

bool HandoffReceiver::Fenced(PeerId peer, const HandoffIds& ids) {
  if (ids.src_incarnation == peers_.at(peer).incarnation && ids.dst_incarnation == options_.incarnation)
    return false;
  ++fenced_;
  return true;
}

// The live attempt that `ids` names. A sender that came back on a new stream takes its attempt along.
HandoffReceiver::Attempt* HandoffReceiver::Find(PeerId peer, const HandoffIds& ids) {
  auto it = attempts_.find(ids.key.id);
  if (it == attempts_.end() || it->second.ids != ids) return nullptr;
  it->second.peer = peer;
  return &it->second;
}

void HandoffReceiver::Answer(PeerId peer, const HandoffIds& ids) {
  const Stored* stored = results_.Find(ids.key.id);
  if (stored != nullptr && stored->attempt == ids.key.attempt && stored->committed)
    host_->Send(peer, Commit{ids, stored->digest});
  else if (stored != nullptr && stored->attempt >= ids.key.attempt)
    host_->Send(peer,
                sluice::Abort{ids, absl::StrCat(ReasonName(stored->reason), " ", stored->detail), true});
  else
    host_->Send(peer, sluice::Abort{ids, "unknown attempt", true});
}

absl::Status HandoffReceiver::CheckOffer(const Offer& offer) const {
  size_t heads = static_cast<size_t>(options_.shape.n_layers) * options_.shape.n_kv_heads;
  if (offer.n_prompt <= 0) return absl::InvalidArgumentError(absl::StrCat("n_prompt: ", offer.n_prompt));
  if (offer.ceiling.size() != heads)
    return absl::InvalidArgumentError(
        absl::StrCat("ceiling: ", offer.ceiling.size(), " entries, ours ", heads));
  for (int rows : offer.ceiling) {
    if (rows < 0 || rows > offer.n_prompt)
      return absl::InvalidArgumentError(absl::StrCat("ceiling: ", rows, " of ", offer.n_prompt, " tokens"));
  }
  return absl::OkStatus();
}

void HandoffReceiver::Refuse(PeerId peer, const Offer& offer, RejectReason reason,
                             const std::string& detail) {
  int64_t retry_ms = reason == RejectReason::kBusy ? absl::ToInt64Milliseconds(options_.busy_retry_after) : 0;
  host_->Send(peer, Reject{offer.ids, reason, detail, retry_ms});
}

void HandoffReceiver::On(PeerId peer, const Offer& offer, absl::Time now) {
  const HandoffKey& key = offer.ids.key;
  const int64_t lease_ms = absl::ToInt64Milliseconds(options_.lease);
  if (Fenced(peer, offer.ids))
    return Refuse(peer, offer, RejectReason::kStale, "the offer names another process");
  if (auto it = attempts_.find(key.id); it != attempts_.end()) {
    if (it->second.ids == offer.ids) {  // doubled: same answer, no side effect
      host_->Send(peer, Grant{offer.ids, lease_ms});
      return;
    }
    if (it->second.ids.key.attempt >= key.attempt)
      return Refuse(peer, offer, RejectReason::kStale, "a later attempt is live");
    End(&it->second, HandoffReason::kSuperseded, absl::StrCat("attempt ", key.attempt), true, now);
  }
  const Stored* stored = results_.Find(key.id);
  if (stored != nullptr && stored->attempt >= key.attempt) {
    if (stored->attempt == key.attempt && stored->committed) return Answer(peer, offer.ids);
    ++fenced_;
    return Refuse(peer, offer, RejectReason::kStale,
                  absl::StrCat("attempt ", stored->attempt, " ended here: ", ReasonName(stored->reason)));
  }
  if (offer.deadline_ms_remaining <= 0) return Refuse(peer, offer, RejectReason::kStale, "deadline passed");
  absl::Status reserved = CheckOffer(offer);
  if (reserved.ok()) reserved = host_->Reserve(offer);
  if (!reserved.ok()) {
    RejectReason reason = RejectReason::kIncompatible;
    if (absl::IsResourceExhausted(reserved)) reason = RejectReason::kBusy;
    if (absl::IsOutOfRange(reserved)) reason = RejectReason::kTooLarge;
    if (absl::IsNotFound(reserved)) reason = RejectReason::kStale;
    return Refuse(peer, offer, reason, std::string(reserved.message()));
  }
  Attempt& attempt = attempts_[key.id];
  attempt.ids = offer.ids;
  attempt.peer = peer;
  attempt.n_prompt = offer.n_prompt;
  attempt.lease_until = now + options_.lease;
  attempt.deadline = now + absl::Milliseconds(offer.deadline_ms_remaining);
  const int heads = options_.shape.n_kv_heads;
  for (int layer = 0; layer < options_.shape.n_layers; ++layer) {
    auto begin = offer.ceiling.begin() + layer * heads;
    attempt.layers.push_back(
        {{begin, begin + heads}, std::vector<int>(heads, 0), std::vector<int32_t>(heads, -1)});
  }
  host_->Send(peer, Grant{offer.ids, lease_ms});
}

void HandoffReceiver::On(PeerId peer, const SlabReady& slab, absl::Time now) {
  Peer& state = peers_.at(peer);
  if (Fenced(peer, slab.ids)) return;
  if (slab.slot.slot < 0 || slab.slot.slot >= options_.ring_slots) {
    ++fenced_;
    return;
  }
  SlotRecord& record = state.records[slab.slot.slot];
  if (slab.slot.generation <= record.generation) {  // doubled or late: the stored answer, no side effect
    if (slab.slot.generation != record.generation) return;
    if (record.reply) host_->Send(peer, *record.reply);
    for (const Armed& armed : armed_)
      if (armed.arrived.peer == peer && armed.said.slot == slab.slot) host_->Send(peer, armed.said);
    return;
  }
  record = {slab.slot.generation, std::nullopt};
  state.slots.Busy(slab.slot.slot);
  transport_->two_sided() ? Arm({peer, slab}, now) : Landed({peer, slab}, now);
}

// The slab's bytes are in its slot.
void HandoffReceiver::Landed(const Arrived& arrived, absl::Time now) {
  const SlabReady& slab = arrived.slab;
  Attempt* attempt = Find(arrived.peer, slab.ids);
  if (attempt == nullptr || slab.seq < 0 || attempt->early.contains(slab.seq))
    return RefuseSlab(arrived, SlabError::kNotReceiving);
  if (slab.seq < attempt->next_seq)  // scattered already
    return Reply(arrived.peer, slab.slot, SlabAck{slab.ids, slab.seq, slab.slot});
  if (slab.seq > attempt->next_seq) {  // an earlier one is being sent again: rows go in order
    attempt->early.emplace(slab.seq, arrived);
    return;
  }
  TakeInOrder(attempt, arrived, now);
}

void HandoffReceiver::RefuseSlab(const Arrived& arrived, SlabError why) {
  const SlabReady& slab = arrived.slab;
  Reply(arrived.peer, slab.slot, SlabFail{slab.ids, slab.seq, slab.slot, why});
}

char* HandoffReceiver::DataOf(const Arrived& arrived) {
  return peers_.at(arrived.peer).ring.data +
         static_cast<size_t>(arrived.slab.slot.slot) * options_.slot_bytes;
}

void HandoffReceiver::Reply(PeerId peer, const SlotUse& slot, HandoffMessage message) {
  auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  it->second.slots.Free(slot.slot);
  it->second.records[slot.slot].reply = message;
  host_->Send(peer, message);
}

void HandoffReceiver::TakeInOrder(Attempt* attempt, const Arrived& arrived, absl::Time now) {
  if (!Take(attempt, arrived, now)) return;
  while (auto next = attempt->early.extract(attempt->next_seq)) {
    if (!Take(attempt, next.mapped(), now)) return;
  }
  MaybeReady(attempt, now);
}

// False: the attempt is over, or this slab must come again.
bool HandoffReceiver::Take(Attempt* attempt, const Arrived& arrived, absl::Time now) {
  const PeerId peer = arrived.peer;
  const SlabReady& slab = arrived.slab;
  auto end = [&](HandoffReason reason, const std::string& why) {
    RefuseSlab(arrived, SlabError::kNotReceiving);
    End(attempt, reason, why, true, now);
    return false;
  };
  auto broken = [&](const absl::Status& why) {
    ++integrity_mismatches_;
    return end(HandoffReason::kIntegrity, std::string(why.message()));
  };
  if (absl::Status header = CheckHeader(slab.header, options_.shape, options_.slot_bytes); !header.ok())
    return broken(header);
  LayerProgress& layer = attempt->layers[slab.header.layer.value()];
  if (absl::Status follows = CheckFollows(slab.header, layer); !follows.ok()) return broken(follows);
  const char* bytes = DataOf(arrived);
  absl::StatusOr<SlabFacts> facts = host_->Inspect(slab.header, bytes);
  if (!facts.ok()) return end(HandoffReason::kAborted, absl::StrCat("inspect: ", facts.status().message()));
  if (facts->checksum != slab.checksum) {
    ++integrity_mismatches_;
    RefuseSlab(arrived, SlabError::kChecksum);
    return false;
  }
  absl::Status positions =
      CheckAndAdvance(slab.header, facts->positions, LogicalLen(attempt->n_prompt), &layer);
  if (!positions.ok()) return broken(positions);
  absl::Status scattered = host_->Scatter(slab.ids.key, slab.header, bytes, facts->positions);
  if (!scattered.ok()) return end(HandoffReason::kAborted, absl::StrCat("scatter: ", scattered.message()));
  attempt->manifest.Add(slab.header, slab.checksum);
  ++attempt->next_seq;
  Reply(peer, slab.slot, SlabAck{slab.ids, slab.seq, slab.slot});
  return true;
}

void HandoffReceiver::On(PeerId peer, const Seal& seal, absl::Time now) {
  if (Fenced(peer, seal.ids)) return Answer(peer, seal.ids);
  Attempt* attempt = Find(peer, seal.ids);
  if (attempt == nullptr) return Answer(peer, seal.ids);
  if (!attempt->seal) attempt->seal = seal;
  MaybeReady(attempt, now);
}

void HandoffReceiver::MaybeReady(Attempt* attempt, absl::Time now) {
  if (!attempt->seal || attempt->next_seq < attempt->seal->slabs) return;
  const Seal& seal = *attempt->seal;
  int32_t last = -1;
  std::vector<int> kept;
  for (const LayerProgress& layer : attempt->layers) {
    kept.insert(kept.end(), layer.kept.begin(), layer.kept.end());
    for (int32_t position : layer.last_position) last = std::max(last, position);
  }
  if (seal.slabs != attempt->manifest.slabs() || seal.kept_total != attempt->manifest.rows() ||
      seal.digest != attempt->manifest.Digest(seal) || seal.logical_len.value() <= last ||
      seal.logical_len.value() > attempt->n_prompt) {
    ++integrity_mismatches_;
    std::string detail =
        absl::StrCat("seal: ", seal.slabs, " slabs, ", seal.kept_total, " rows, logical_len ",
                     seal.logical_len.value(), "; here ", attempt->manifest.slabs(), " slabs, ",
                     attempt->manifest.rows(), " rows, last position ", last);
    return End(attempt, HandoffReason::kIntegrity, detail, true, now);
  }
  Attempt done = std::move(*attempt);
  attempts_.erase(done.ids.key.id);
  results_.Put(done.ids.key.id, {done.ids.key.attempt, true, done.seal->digest, HandoffReason::kNone, ""},
               now);
  host_->Ready(done.ids.key, *done.seal, kept);
  if (peers_.contains(done.peer)) host_->Send(done.peer, Commit{done.ids, done.seal->digest});
}

void HandoffReceiver::End(Attempt* attempt, HandoffReason reason, const std::string& detail, bool tell_peer,
                          absl::Time now) {
  Attempt ended = std::move(*attempt);
  const HandoffKey& key = ended.ids.key;
  attempts_.erase(key.id);
  Tombstone(key, reason, detail, now);
  for (const auto& [seq, early] : ended.early) {
    Reply(early.peer, early.slab.slot,
          SlabFail{early.slab.ids, seq, early.slab.slot, SlabError::kNotReceiving});
  }
  host_->Released(key, reason, detail);
  if (!tell_peer || !peers_.contains(ended.peer)) return;
  sluice::Abort abort{ended.ids, absl::StrCat(ReasonName(reason), " ", detail), true};
  host_->Send(ended.peer, abort);
  draining_[key] = {ended.peer, std::move(abort), now + options_.abort_resend};
}

void HandoffReceiver::Tombstone(const HandoffKey& key, HandoffReason reason, const std::string& detail,
                                absl::Time now) {
  const Stored* stored = results_.Find(key.id);
  if (stored != nullptr && stored->attempt >= key.attempt) return;  // terminal states are sticky
  results_.Put(key.id, {key.attempt, false, 0, reason, detail}, now);
}

void HandoffReceiver::On(PeerId peer, const sluice::Abort& abort, absl::Time now) {
  if (Fenced(peer, abort.ids)) return;
  const HandoffKey& key = abort.ids.key;
  auto it = attempts_.find(key.id);
  const Stored* stored = results_.Find(key.id);
  if (stored != nullptr && stored->attempt == key.attempt && stored->committed)
    return Answer(peer, abort.ids);
  if (it != attempts_.end() && it->second.ids.key.attempt <= key.attempt) {
    HandoffReason reason =
        it->second.ids == abort.ids ? HandoffReason::kPeerAborted : HandoffReason::kSuperseded;
    End(&it->second, reason, abort.reason, false, now);
  }
  Tombstone(key, HandoffReason::kPeerAborted, abort.reason, now);
  if (abort.quiesced)
    draining_.erase(key);
  else
    draining_[key] = {peer, {abort.ids, "is it quiet now?", true}, now + options_.abort_resend};
  host_->Send(peer, AbortAck{abort.ids, true});
}

void HandoffReceiver::On(PeerId peer, const AbortAck& ack, absl::Time now) {
  if (Fenced(peer, ack.ids)) return;
  if (ack.quiesced) draining_.erase(ack.ids.key);
}

void HandoffReceiver::On(PeerId peer, const Renew& renew, absl::Time now) {
  Renew held;
  for (const HandoffIds& ids : renew.ids) {
    if (Fenced(peer, ids)) continue;
    if (Attempt* attempt = Find(peer, ids)) {
      attempt->lease_until = std::max(attempt->lease_until, now + options_.lease * 2 / 3);
      held.ids.push_back(ids);
    } else {
      Answer(peer, ids);
    }
  }
  if (!held.ids.empty()) host_->Send(peer, held);
}

void HandoffReceiver::Abort(const HandoffKey& key, const std::string& reason, absl::Time now) {
  auto it = attempts_.find(key.id);
  if (it != attempts_.end() && it->second.ids.key.attempt <= key.attempt)
    End(&it->second, HandoffReason::kAborted, reason, true, now);
  Tombstone(key, HandoffReason::kAborted, reason, now);
}

bool HandoffReceiver::Tick(absl::Time now) {
  bool moved = transport_->Progress();
  moved |= EndReceives(now);
  results_.Expire(now);
  std::vector<std::pair<HandoffKey, HandoffReason>> over;
  for (const auto& [id, attempt] : attempts_) {
    if (attempt.deadline <= now) {
      over.push_back({attempt.ids.key, HandoffReason::kDeadline});
    } else if (attempt.lease_until <= now) {
      ++leases_expired_;
      over.push_back({attempt.ids.key, HandoffReason::kLeaseExpired});
    }
  }
  for (const auto& [key, reason] : over) End(&attempts_.at(key.id), reason, "", true, now);
  for (auto& [key, draining] : draining_) {
    if (draining.resend_at > now) continue;
    draining.resend_at = now + options_.abort_resend;
    host_->Send(draining.peer, draining.abort);
  }
  ReleaseLostRings();
  // What is not proven idle soon may take as long as its peer lives: no reason to hurry.
  return moved || std::any_of(lost_rings_.begin(), lost_rings_.end(),
                              [&](const LostRing& lost) { return now - lost.since < absl::Seconds(1); });
}

int HandoffReceiver::live() const { return static_cast<int>(attempts_.size()); }

int HandoffReceiver::draining() const { return static_cast<int>(draining_.size() + lost_rings_.size()); }

SlotCounts HandoffReceiver::slots(absl::Time now) const {
  SlotCounts counts;
  for (const auto& [peer, state] : peers_) counts += state.slots.Counts(now);
  for (const LostRing& lost : lost_rings_) counts += lost.slots.Counts(now);
  return counts;
}

}  // namespace sluice
