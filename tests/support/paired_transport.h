// Role: a two-sided transport inside one thread, as NCCL is one: pushes of a connection land in what the
// other end expects, in order; an end that goes away leaves the other waiting. For simulations. Threads: one
// for all transports of a fabric.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/transport/kv_transport.h"

namespace sluice {

class PairedTransport;

// Where connections find their other end.
class PairedFabric {
 public:
  struct Wait {
    PairedTransport* owner;
    TransferId id;
    char* data;
    size_t bytes;
  };
  struct Channel {
    std::deque<Wait> pushes[2], expects[2];  // by end
  };
  std::map<std::string, std::shared_ptr<Channel>> channels;
  int next = 0;
};

class PairedTransport final : public KvTransport {
 public:
  explicit PairedTransport(std::shared_ptr<PairedFabric> fabric) : fabric_(std::move(fabric)) {}
  ~PairedTransport() override;

  absl::string_view name() const override { return "paired"; }
  std::string description() const override { return "paired"; }
  bool device_rings() const override { return false; }
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
  struct Link {
    std::shared_ptr<PairedFabric::Channel> channel;
    int end = 0;  // 0 made it
    bool connected = false;
  };
  absl::StatusOr<PairedFabric::Wait> Queue(PeerId peer, RegionId local, Slice slice);
  void Forget(const Link& link);

  const std::shared_ptr<PairedFabric> fabric_;
  std::map<RegionId, std::unique_ptr<std::vector<char>>> rings_;
  std::map<PeerId, Link> links_;
  std::map<TransferId, std::pair<PeerId, TransferState>> transfers_;
  RegionId next_region_{0};
  TransferId next_transfer_{0};
};

}  // namespace sluice
