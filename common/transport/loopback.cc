#include "common/transport/loopback.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/transport/ranges.h"

namespace sluice {

std::string LoopbackFabric::AddRing(Memory memory) {
  MutexLock lock(&mu_);
  std::string key = absl::StrCat(++next_, ":", memory->bytes.size());
  rings_[key] = std::move(memory);
  return key;
}

void LoopbackFabric::RemoveRing(const std::string& key) {
  MutexLock lock(&mu_);
  rings_.erase(key);
}

LoopbackFabric::Memory LoopbackFabric::FindRing(const std::string& key) const {
  MutexLock lock(&mu_);
  auto it = rings_.find(key);
  return it == rings_.end() ? nullptr : it->second;
}

const std::shared_ptr<LoopbackFabric>& LoopbackFabric::Process() {
  static const auto* fabric = new std::shared_ptr<LoopbackFabric>(std::make_shared<LoopbackFabric>());
  return *fabric;
}

LoopbackTransport::~LoopbackTransport() {
  for (const auto& [region, ring] : rings_) fabric_->RemoveRing(ring.key);
}

absl::StatusOr<Ring> LoopbackTransport::AllocateRing(size_t bytes, std::optional<PeerId>) {
  if (bytes == 0) return absl::InvalidArgumentError("loopback: a ring of 0 bytes");
  auto memory = std::make_shared<LoopbackFabric::RingMemory>();
  memory->bytes.resize(bytes);
  if (backend_ != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(memory->mapping, backend_->MapHost(memory->bytes.data(), bytes));
  }
  RegionId region = ++next_region_;
  rings_[region] = {memory, fabric_->AddRing(memory)};
  return Ring{region, memory->bytes.data(), bytes};
}

void LoopbackTransport::ReleaseRing(RegionId region) {
  auto it = rings_.find(region);
  if (it == rings_.end()) return;
  fabric_->RemoveRing(it->second.key);
  rings_.erase(it);
}

std::string LoopbackTransport::ExportKey(RegionId region) const {
  auto it = rings_.find(region);
  return it == rings_.end() ? "" : it->second.key;
}

absl::Status LoopbackTransport::Connect(PeerId peer, absl::string_view address) {
  if (address != "loopback") return absl::InvalidArgumentError("loopback: not an address of this transport");
  if (!peers_.insert(peer).second)
    return absl::AlreadyExistsError(absl::StrCat("loopback: peer ", peer.value(), " is connected"));
  return absl::OkStatus();
}

absl::StatusOr<RemoteRegionId> LoopbackTransport::ImportKey(PeerId peer, absl::string_view key) {
  if (!peers_.contains(peer))
    return absl::FailedPreconditionError(absl::StrCat("loopback: peer ", peer.value(), " is not connected"));
  LoopbackFabric::Memory memory = fabric_->FindRing(std::string(key));
  if (memory == nullptr) return absl::NotFoundError("loopback: no ring of that key in this process");
  RemoteRegionId remote = ++next_remote_;
  remotes_[remote] = {peer, std::string(key), memory->bytes.size()};
  return remote;
}

absl::StatusOr<TransferId> LoopbackTransport::Push(PeerId peer, RegionId local, Slice from,
                                                   RemoteRegionId remote, int64_t remote_offset) {
  auto ring = rings_.find(local);
  auto target = remotes_.find(remote);
  if (ring == rings_.end() || target == remotes_.end() || target->second.peer != peer)
    return absl::NotFoundError("loopback: push between unknown rings");
  if (!InRange(from.offset, from.bytes, ring->second.memory->bytes.size()) ||
      !InRange(remote_offset, from.bytes, target->second.bytes))
    return absl::OutOfRangeError("loopback: push outside of a ring");
  TransferId id = ++next_transfer_;
  queue_.push_back({id, peer, ring->second.memory, from, target->second.key, remote_offset});
  return id;
}

bool LoopbackTransport::Progress() {
  bool moved = !queue_.empty();
  for (; !queue_.empty(); queue_.pop_front()) {
    const Copy& copy = queue_.front();
    LoopbackFabric::Memory to = fabric_->FindRing(copy.remote_key);
    if (to != nullptr)
      std::memcpy(to->bytes.data() + copy.remote_offset, copy.from->bytes.data() + copy.slice.offset,
                  copy.slice.bytes);
    ended_[copy.id] = {copy.peer, to != nullptr ? TransferState::kDone : TransferState::kFailed};
  }
  return moved;
}

TransferState LoopbackTransport::Poll(TransferId transfer) {
  auto it = ended_.find(transfer);
  if (it != ended_.end()) {
    TransferState state = it->second.state;
    ended_.erase(it);
    return state;
  }
  for (const Copy& copy : queue_)
    if (copy.id == transfer) return TransferState::kPending;
  return TransferState::kFailed;
}

absl::Status LoopbackTransport::Quiesce(PeerId peer) {
  std::erase_if(queue_, [&](const Copy& copy) { return copy.peer == peer; });
  std::erase_if(ended_, [&](const auto& entry) { return entry.second.peer == peer; });
  std::erase_if(remotes_, [&](const auto& entry) { return entry.second.peer == peer; });
  peers_.erase(peer);
  return absl::OkStatus();
}

}  // namespace sluice
