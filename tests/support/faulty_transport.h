// Role: a transport with faults that a test switches on: pushes that take time, hang, fail or arrive damaged,
// and connections that cannot be proven idle. Threads: as KvTransport.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/transport/kv_transport.h"

namespace sluice {

class FaultyTransport final : public KvTransport {
 public:
  FaultyTransport(std::unique_ptr<KvTransport> inner, const Clock* clock)
      : inner_(std::move(inner)), clock_(clock) {}

  double bytes_per_second = 0;  // 0: at once; else pushes go one after another at this rate
  bool hang = false;            // pushes stay pending
  int fail_pushes = 0;          // this many of the next ones fail without moving a byte
  int corrupt_pushes = 0;       // this many of the next ones arrive with a flipped bit
  bool unprovable = false;      // Quiesce is Unavailable
  bool fail_expects = false;    // no receive can be posted
  int pushes = 0;

  absl::string_view name() const override { return inner_->name(); }
  std::string description() const override { return inner_->description(); }
  bool device_rings() const override { return inner_->device_rings(); }
  bool two_sided() const override { return inner_->two_sided(); }
  absl::StatusOr<TransferId> Expect(PeerId peer, RegionId local, Slice into) override;
  absl::StatusOr<Ring> AllocateRing(size_t bytes, std::optional<PeerId> writer = std::nullopt) override;
  void ReleaseRing(RegionId region) override;
  absl::StatusOr<std::string> LocalAddress(PeerId peer) override { return inner_->LocalAddress(peer); }
  std::string ExportKey(RegionId region) const override { return inner_->ExportKey(region); }
  absl::Status Connect(PeerId peer, absl::string_view address) override {
    return inner_->Connect(peer, address);
  }
  absl::StatusOr<RemoteRegionId> ImportKey(PeerId peer, absl::string_view key) override {
    return inner_->ImportKey(peer, key);
  }
  absl::StatusOr<TransferId> Push(PeerId peer, RegionId local, Slice from, RemoteRegionId remote,
                                  int64_t remote_offset) override;
  bool Progress() override;
  TransferState Poll(TransferId transfer) override;
  absl::Status Quiesce(PeerId peer) override;
  void PeerIsIdle(PeerId peer) override { idle_.insert(peer); }

  int rings() const { return static_cast<int>(rings_.size()); }  // allocated and not released

 private:
  struct Pending {
    TransferId id;
    PeerId peer;
    RegionId local;
    Slice from;
    RemoteRegionId remote;
    int64_t remote_offset;
    absl::Time due;
    bool fail;
    bool corrupt;
  };
  const std::unique_ptr<KvTransport> inner_;
  const Clock* const clock_;
  std::map<RegionId, char*> rings_;
  std::set<PeerId> idle_;
  std::list<Pending> pending_;
  struct Started {
    TransferId id;
    PeerId peer;
    TransferId inner;
    char* flipped;  // the damaged byte of the local ring, null: none
  };
  std::list<Started> started_;
  std::map<TransferId, std::pair<PeerId, TransferId>> expected_;  // to the inner one's
  struct Ended {
    PeerId peer;
    TransferState state;
  };
  std::map<TransferId, Ended> ended_;
  absl::Time wire_free_ = absl::InfinitePast();
  TransferId next_{0};
};

}  // namespace sluice
