// Role: the transport inside one process: a Push is a copy into the peer's ring, done by Progress. For tests,
// and for prefill and decode in one process. Threads: as KvTransport; the fabric may be joined by transports
// of different threads.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/transport/kv_transport.h"
#include "kernels/backend.h"

namespace sluice {

// Where loopback transports find each other. Rings live until their last copy ends.
class LoopbackFabric {
 public:
  struct RingMemory {
    std::vector<char> bytes;
    Buffer mapping = {};  // Backend::MapHost
  };
  using Memory = std::shared_ptr<RingMemory>;

  std::string AddRing(Memory memory);
  void RemoveRing(const std::string& key);
  Memory FindRing(const std::string& key) const;  // null: gone
  // The fabric of MakeTransport("loopback"): one per process.
  static const std::shared_ptr<LoopbackFabric>& Process();

 private:
  mutable Mutex mu_;
  int64_t next_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, Memory> rings_ ABSL_GUARDED_BY(mu_);
};

class LoopbackTransport final : public KvTransport {
 public:
  // backend: as TransportOptions::backend.
  explicit LoopbackTransport(std::shared_ptr<LoopbackFabric> fabric, Backend* backend = nullptr)
      : fabric_(std::move(fabric)), backend_(backend) {}
  ~LoopbackTransport() override;

  absl::string_view name() const override { return "loopback"; }
  std::string description() const override { return "loopback: copies inside this process"; }
  bool device_rings() const override { return false; }
  bool two_sided() const override { return false; }
  absl::StatusOr<TransferId> Expect(PeerId, RegionId, Slice) override {
    return absl::FailedPreconditionError("loopback: one-sided");
  }
  absl::StatusOr<Ring> AllocateRing(size_t bytes, std::optional<PeerId> writer = std::nullopt) override;
  void ReleaseRing(RegionId region) override;
  absl::StatusOr<std::string> LocalAddress(PeerId peer) override { return std::string("loopback"); }
  std::string ExportKey(RegionId region) const override;
  absl::Status Connect(PeerId peer, absl::string_view address) override;
  absl::StatusOr<RemoteRegionId> ImportKey(PeerId peer, absl::string_view key) override;
  absl::StatusOr<TransferId> Push(PeerId peer, RegionId local, Slice from, RemoteRegionId remote,
                                  int64_t remote_offset) override;
  bool Progress() override;
  TransferState Poll(TransferId transfer) override;
  absl::Status Quiesce(PeerId peer) override;
  void PeerIsIdle(PeerId) override {}

 private:
  struct LocalRing {
    LoopbackFabric::Memory memory;
    std::string key;
  };
  struct RemoteRing {
    PeerId peer;
    std::string key;
    size_t bytes = 0;
  };
  struct Copy {
    TransferId id;
    PeerId peer;
    LoopbackFabric::Memory from;
    Slice slice;
    std::string remote_key;
    int64_t remote_offset = 0;
  };

  const std::shared_ptr<LoopbackFabric> fabric_;
  Backend* const backend_;
  std::map<RegionId, LocalRing> rings_;
  std::map<RemoteRegionId, RemoteRing> remotes_;
  std::set<PeerId> peers_;
  std::deque<Copy> queue_;
  struct Ended {
    PeerId peer;
    TransferState state;
  };
  std::map<TransferId, Ended> ended_;  // final states that were not reported yet
  RegionId next_region_{0};
  RemoteRegionId next_remote_{0};
  TransferId next_transfer_{0};
};

}  // namespace sluice
