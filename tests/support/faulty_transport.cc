#include "tests/support/faulty_transport.h"

#include <algorithm>

namespace sluice {

absl::StatusOr<Ring> FaultyTransport::AllocateRing(size_t bytes, std::optional<PeerId> writer) {
  absl::StatusOr<Ring> ring = inner_->AllocateRing(bytes, writer);
  if (ring.ok()) rings_[ring->region] = ring->data;
  return ring;
}

void FaultyTransport::ReleaseRing(RegionId region) {
  rings_.erase(region);
  inner_->ReleaseRing(region);
}

absl::StatusOr<TransferId> FaultyTransport::Push(PeerId peer, RegionId local, Slice from,
                                                 RemoteRegionId remote, int64_t remote_offset) {
  ++pushes;
  absl::Time due = clock_->Now();
  if (bytes_per_second > 0) {
    due = std::max(due, wire_free_) + absl::Seconds(static_cast<double>(from.bytes) / bytes_per_second);
    wire_free_ = due;
  }
  bool fail = fail_pushes > 0 && fail_pushes-- > 0;
  bool corrupt = !fail && corrupt_pushes > 0 && corrupt_pushes-- > 0;
  TransferId id = ++next_;
  pending_.push_back({id, peer, local, from, remote, remote_offset, due, fail, corrupt});
  return id;
}

absl::StatusOr<TransferId> FaultyTransport::Expect(PeerId peer, RegionId local, Slice into) {
  if (fail_expects) return absl::UnavailableError("the communicator has failed");
  absl::StatusOr<TransferId> inner = inner_->Expect(peer, local, into);
  if (!inner.ok()) return inner;
  TransferId id = ++next_;
  expected_[id] = {peer, *inner};
  return id;
}

bool FaultyTransport::Progress() {
  if (hang) return false;
  bool moved = false;
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (it->due > clock_->Now()) {
      ++it;
      continue;
    }
    Pending push = *it;
    it = pending_.erase(it);
    moved = true;
    if (push.fail) {
      ended_[push.id] = {push.peer, TransferState::kFailed};
      continue;
    }
    char* flipped = push.corrupt ? rings_.at(push.local) + push.from.offset : nullptr;
    if (flipped != nullptr) *flipped ^= 1;
    auto inner = inner_->Push(push.peer, push.local, push.from, push.remote, push.remote_offset);
    if (inner.ok())
      started_.push_back({push.id, push.peer, *inner, flipped});
    else
      ended_[push.id] = {push.peer, TransferState::kFailed};
  }
  moved |= inner_->Progress();
  started_.remove_if([&](const Started& push) {
    TransferState state = inner_->Poll(push.inner);
    if (state == TransferState::kPending) return false;
    if (push.flipped != nullptr) *push.flipped ^= 1;
    ended_[push.id] = {push.peer, state};
    return true;
  });
  return moved;
}

TransferState FaultyTransport::Poll(TransferId transfer) {
  if (auto it = ended_.find(transfer); it != ended_.end()) {
    TransferState state = it->second.state;
    ended_.erase(it);
    return state;
  }
  if (auto it = expected_.find(transfer); it != expected_.end()) {
    TransferState state = inner_->Poll(it->second.second);
    if (state != TransferState::kPending) expected_.erase(it);
    return state;
  }
  bool started =
      std::any_of(started_.begin(), started_.end(), [&](const Started& p) { return p.id == transfer; });
  bool pending =
      std::any_of(pending_.begin(), pending_.end(), [&](const Pending& p) { return p.id == transfer; });
  return pending || started ? TransferState::kPending : TransferState::kFailed;
}

absl::Status FaultyTransport::Quiesce(PeerId peer) {
  if (unprovable && !idle_.contains(peer))
    return absl::UnavailableError("cannot prove that the connection is idle");
  pending_.remove_if([&](const Pending& p) { return p.peer == peer; });
  started_.remove_if([&](const Started& p) { return p.peer == peer; });
  std::erase_if(ended_, [&](const auto& entry) { return entry.second.peer == peer; });
  std::erase_if(expected_, [&](const auto& entry) { return entry.second.first == peer; });
  return inner_->Quiesce(peer);
}

}  // namespace sluice
