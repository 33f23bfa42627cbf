#include "tests/support/paired_transport.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/transport/ranges.h"

namespace sluice {

PairedTransport::~PairedTransport() {
  for (const auto& [peer, link] : links_) Forget(link);
}

void PairedTransport::Forget(const Link& link) {
  for (auto* waits : {link.channel->pushes, link.channel->expects})
    std::erase_if(waits[link.end], [&](const PairedFabric::Wait& wait) { return wait.owner == this; });
}

absl::StatusOr<Ring> PairedTransport::AllocateRing(size_t bytes, std::optional<PeerId>) {
  RegionId region = ++next_region_;
  rings_[region] = std::make_unique<std::vector<char>>(bytes);
  return Ring{region, rings_[region]->data(), bytes};
}

absl::StatusOr<std::string> PairedTransport::LocalAddress(PeerId peer) {
  if (links_.contains(peer)) return std::string("joined");
  const std::string name = absl::StrCat("paired-", ++fabric_->next);
  fabric_->channels[name] = std::make_shared<PairedFabric::Channel>();
  links_[peer] = {fabric_->channels[name], 0, false};
  return name;
}

std::string PairedTransport::ExportKey(RegionId region) const { return "paired-ring"; }

absl::Status PairedTransport::Connect(PeerId peer, absl::string_view address) {
  auto made = links_.find(peer);
  auto channel = fabric_->channels.find(std::string(address));
  if (made == links_.end() && channel != fabric_->channels.end()) {
    links_[peer] = {channel->second, 1, true};
    return absl::OkStatus();
  }
  if (made == links_.end() || made->second.connected || address != "joined")
    return absl::InvalidArgumentError("paired: not an address of this transport");
  made->second.connected = true;
  return absl::OkStatus();
}

absl::StatusOr<RemoteRegionId> PairedTransport::ImportKey(PeerId, absl::string_view key) {
  if (key != "paired-ring") return absl::InvalidArgumentError("paired: not a ring");
  return RemoteRegionId(1);
}

absl::StatusOr<PairedFabric::Wait> PairedTransport::Queue(PeerId peer, RegionId local, Slice slice) {
  auto link = links_.find(peer);
  auto ring = rings_.find(local);
  if (link == links_.end() || ring == rings_.end())
    return absl::NotFoundError("paired: unknown peer or ring");
  if (!InRange(slice.offset, slice.bytes, ring->second->size()))
    return absl::OutOfRangeError("paired: range");
  TransferId id = ++next_transfer_;
  transfers_[id] = {peer, TransferState::kPending};
  return PairedFabric::Wait{this, id, ring->second->data() + slice.offset, slice.bytes};
}

absl::StatusOr<TransferId> PairedTransport::Expect(PeerId peer, RegionId local, Slice into) {
  SLUICE_ASSIGN_OR_RETURN(PairedFabric::Wait wait, Queue(peer, local, into));
  const Link& link = links_.at(peer);
  link.channel->expects[link.end].push_back(wait);
  return wait.id;
}

absl::StatusOr<TransferId> PairedTransport::Push(PeerId peer, RegionId local, Slice from, RemoteRegionId,
                                                 int64_t) {
  SLUICE_ASSIGN_OR_RETURN(PairedFabric::Wait wait, Queue(peer, local, from));
  const Link& link = links_.at(peer);
  link.channel->pushes[link.end].push_back(wait);
  return wait.id;
}

bool PairedTransport::Progress() {
  bool moved = false;
  for (const auto& [peer, link] : links_) {
    for (int end : {0, 1}) {
      std::deque<PairedFabric::Wait>&pushes = link.channel->pushes[end],
      &expects = link.channel->expects[1 - end];
      for (; !pushes.empty() && !expects.empty(); pushes.pop_front(), expects.pop_front()) {
        const PairedFabric::Wait &from = pushes.front(), &to = expects.front();
        const bool fits = from.bytes == to.bytes;
        if (fits) std::memcpy(to.data, from.data, from.bytes);
        for (const PairedFabric::Wait* wait : {&from, &to})
          wait->owner->transfers_[wait->id].second = fits ? TransferState::kDone : TransferState::kFailed;
        moved = true;
      }
    }
  }
  return moved;
}

TransferState PairedTransport::Poll(TransferId transfer) {
  auto it = transfers_.find(transfer);
  if (it == transfers_.end()) return TransferState::kFailed;
  const TransferState state = it->second.second;
  if (state != TransferState::kPending) transfers_.erase(it);
  return state;
}

absl::Status PairedTransport::Quiesce(PeerId peer) {
  auto it = links_.find(peer);
  if (it == links_.end()) return absl::OkStatus();
  Forget(it->second);
  links_.erase(it);
  std::erase_if(transfers_, [&](const auto& entry) { return entry.second.first == peer; });
  return absl::OkStatus();
}

}  // namespace sluice
