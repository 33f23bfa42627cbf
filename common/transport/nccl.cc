#include "common/transport/nccl.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/transport/ranges.h"

namespace sluice {
namespace {

// The mark, the GPU, a line's end, then the id of a communicator, or nothing from the end that joins one.
constexpr absl::string_view kAddressMark = "nccl-address:";
constexpr absl::string_view kKeyMark = "nccl-ring:";

}  // namespace

absl::StatusOr<std::unique_ptr<NcclTransport>> NcclTransport::Create(Backend* backend) {
  if (backend == nullptr || !backend->is_gpu())
    return absl::FailedPreconditionError("nccl: moves KV between GPUs; this worker's device is none");
  backend->Enter();
  SLUICE_ASSIGN_OR_RETURN(std::string version, NcclVersion());
  SLUICE_ASSIGN_OR_RETURN(std::string device, NcclDeviceName());
  return std::unique_ptr<NcclTransport>(new NcclTransport(backend, std::move(version), std::move(device)));
}

std::string NcclTransport::description() const {
  return absl::StrCat("nccl: NCCL ", version_, ", a communicator for each peer, slots in GPU memory");
}

absl::StatusOr<Ring> NcclTransport::AllocateRing(size_t bytes, std::optional<PeerId>) {
  if (bytes == 0) return absl::InvalidArgumentError("nccl: a ring of 0 bytes");
  SLUICE_ASSIGN_OR_RETURN(Buffer memory, backend_->AllocateExposed(bytes));
  const Ring ring{++next_region_, static_cast<char*>(memory.data()), bytes};
  rings_[ring.region] = std::move(memory);
  return ring;
}

absl::StatusOr<std::string> NcclTransport::LocalAddress(PeerId peer) {
  Peer& state = peers_[peer];
  if (state.pair != nullptr) return absl::StrCat(kAddressMark, device_, "\n");
  if (state.id.empty()) {
    SLUICE_ASSIGN_OR_RETURN(state.id, NewNcclId());
  }
  return absl::StrCat(kAddressMark, device_, "\n", state.id);
}

std::string NcclTransport::ExportKey(RegionId region) const {
  auto it = rings_.find(region);
  return it == rings_.end() ? "" : absl::StrCat(kKeyMark, it->second.bytes());
}

absl::Status NcclTransport::Connect(PeerId peer, absl::string_view address) {
  const size_t device_end = address.find('\n');
  if (!absl::ConsumePrefix(&address, kAddressMark) || device_end == absl::string_view::npos)
    return absl::InvalidArgumentError("nccl: not an address of this transport");
  const absl::string_view device = address.substr(0, device_end - kAddressMark.size());
  address.remove_prefix(device.size() + 1);
  if (device == device_)
    return absl::InvalidArgumentError("nccl: both workers are on one GPU, NCCL needs two: use transport ucx");
  Peer& state = peers_[peer];
  if (state.pair != nullptr)
    return absl::AlreadyExistsError(absl::StrCat("nccl: peer ", peer.value(), " is connected"));
  if (state.id.empty() == address.empty())
    return absl::InvalidArgumentError("nccl: one end's address brings the id, the other's does not");
  const int rank = state.id.empty() ? 1 : 0;
  if (rank == 1) state.id = std::string(address);
  backend_->Enter();
  SLUICE_ASSIGN_OR_RETURN(state.pair, JoinNcclPair(state.id, rank));
  return absl::OkStatus();
}

absl::StatusOr<RemoteRegionId> NcclTransport::ImportKey(PeerId peer, absl::string_view key) {
  auto it = peers_.find(peer);
  if (it == peers_.end() || it->second.pair == nullptr)
    return absl::FailedPreconditionError(absl::StrCat("nccl: peer ", peer.value(), " is not connected"));
  uint64_t bytes = 0;
  if (!absl::ConsumePrefix(&key, kKeyMark) || !absl::SimpleAtoi(key, &bytes))
    return absl::InvalidArgumentError("nccl: not a ring of this transport");
  remotes_[++next_remote_] = {peer, bytes};
  return next_remote_;
}

absl::StatusOr<std::pair<NcclPair*, char*>> NcclTransport::Find(PeerId peer, RegionId local,
                                                                Slice slice) const {
  auto it = peers_.find(peer);
  auto ring = rings_.find(local);
  if (it == peers_.end() || it->second.pair == nullptr || ring == rings_.end())
    return absl::NotFoundError("nccl: an unknown peer or ring");
  if (!InRange(slice.offset, slice.bytes, ring->second.bytes()))
    return absl::OutOfRangeError("nccl: outside of a ring");
  if (!it->second.pair->status().ok()) return it->second.pair->status();
  return std::pair(it->second.pair.get(), static_cast<char*>(ring->second.data()) + slice.offset);
}

TransferId NcclTransport::Add(PeerId peer, int64_t operation) {
  transfers_[++next_transfer_] = {peer, operation};
  return next_transfer_;
}

absl::StatusOr<TransferId> NcclTransport::Expect(PeerId peer, RegionId local, Slice into) {
  SLUICE_ASSIGN_OR_RETURN(auto found, Find(peer, local, into));
  return Add(peer, found.first->Receive(found.second, into.bytes));
}

absl::StatusOr<TransferId> NcclTransport::Push(PeerId peer, RegionId local, Slice from, RemoteRegionId remote,
                                               int64_t remote_offset) {
  auto target = remotes_.find(remote);
  if (target == remotes_.end() || target->second.peer != peer)
    return absl::NotFoundError("nccl: push between unknown rings");
  if (!InRange(remote_offset, from.bytes, target->second.bytes))
    return absl::OutOfRangeError("nccl: push outside of a ring");
  SLUICE_ASSIGN_OR_RETURN(auto found, Find(peer, local, from));
  return Add(peer, found.first->Send(found.second, from.bytes));
}

bool NcclTransport::Progress() {
  backend_->Enter();
  bool moved = false;
  for (auto& [peer, state] : peers_)
    if (state.pair != nullptr) moved |= state.pair->Progress();
  return moved;
}

TransferState NcclTransport::Poll(TransferId transfer) {
  auto it = transfers_.find(transfer);
  if (it == transfers_.end()) return TransferState::kFailed;
  const NcclPair::State state = peers_.at(it->second.peer).pair->Poll(it->second.operation);
  if (state == NcclPair::State::kPending) return TransferState::kPending;
  transfers_.erase(it);
  return state == NcclPair::State::kDone ? TransferState::kDone : TransferState::kFailed;
}

absl::Status NcclTransport::Quiesce(PeerId peer) {
  auto it = peers_.find(peer);
  if (it == peers_.end()) return absl::OkStatus();
  if (it->second.pair != nullptr) {
    it->second.pair->Abort();
    if (!it->second.pair->aborted())
      return absl::UnavailableError(absl::StrCat("nccl: peer ", peer.value(), " is still closing"));
  }
  std::erase_if(transfers_, [&](const auto& entry) { return entry.second.peer == peer; });
  std::erase_if(remotes_, [&](const auto& entry) { return entry.second.peer == peer; });
  peers_.erase(it);
  return absl::OkStatus();
}

}  // namespace sluice
