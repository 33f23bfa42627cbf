// Role: the transport between GPUs of processes over NCCL: two-sided, a communicator of two ranks per peer.
// Why one per peer: a missing peer stops everything behind it, and an abort ends exactly that peer's
// transfers, with proof. Threads: one loop makes every call.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/transport/kv_transport.h"
#include "kernels/backend.h"
#include "kernels/cuda/nccl_pair.h"

namespace sluice {

class NcclTransport final : public KvTransport {
 public:
  // FailedPrecondition: the backend is no GPU, or there is no NCCL.
  static absl::StatusOr<std::unique_ptr<NcclTransport>> Create(Backend* backend);

  absl::string_view name() const override { return "nccl"; }
  std::string description() const override;
  bool device_rings() const override { return true; }
  bool two_sided() const override { return true; }
  absl::StatusOr<Ring> AllocateRing(size_t bytes, std::optional<PeerId> writer = std::nullopt) override;
  void ReleaseRing(RegionId region) override { rings_.erase(region); }
  absl::StatusOr<std::string> LocalAddress(PeerId peer) override;
  std::string ExportKey(RegionId region) const override;
  absl::Status Connect(PeerId peer, absl::string_view address) override;
  absl::StatusOr<RemoteRegionId> ImportKey(PeerId peer, absl::string_view key) override;
  absl::StatusOr<TransferId> Expect(PeerId peer, RegionId local, Slice into) override;
  absl::StatusOr<TransferId> Push(PeerId peer, RegionId local, Slice from, RemoteRegionId remote,
                                  int64_t remote_offset) override;
  bool Progress() override;
  TransferState Poll(TransferId transfer) override;
  absl::Status Quiesce(PeerId peer) override;
  void PeerIsIdle(PeerId) override {}

 private:
  struct Peer {
    std::string id;                  // of the communicator; ours when we were asked for the address first
    std::unique_ptr<NcclPair> pair;  // null: not connected
  };
  struct Remote {
    PeerId peer;
    size_t bytes = 0;
  };
  struct Transfer {
    PeerId peer;
    int64_t operation = 0;
  };
  NcclTransport(Backend* backend, std::string version, std::string device)
      : backend_(backend), version_(std::move(version)), device_(std::move(device)) {}
  // The peer's communicator and the local bytes, or what is wrong with them.
  absl::StatusOr<std::pair<NcclPair*, char*>> Find(PeerId peer, RegionId local, Slice slice) const;
  TransferId Add(PeerId peer, int64_t operation);

  Backend* const backend_;
  const std::string version_, device_;
  std::map<RegionId, Buffer> rings_;
  std::map<PeerId, Peer> peers_;
  std::map<RemoteRegionId, Remote> remotes_;
  std::map<TransferId, Transfer> transfers_;
  RegionId next_region_{0};
  RemoteRegionId next_remote_{0};
  TransferId next_transfer_{0};
};

}  // namespace sluice
