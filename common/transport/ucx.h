// Role: the transport between processes: puts into a peer's ring over UCX (TCP, RDMA, shared memory, NVLink).
// Rings lie in a GPU's memory where the backend is one and UCX reaches it, else in host memory.
// Why one UCX worker per peer: closing a worker closes every socket and queue of that peer, so Quiesce is a
// proof even over TCP, where the receiver's own progress writes what the sender put. Works with Debian's UCX
// 1.13 and with the PyPI wheel libucx-cu13. Threads: one loop makes every call; UCX runs no threads here.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/transport/kv_transport.h"
#include "kernels/backend.h"

namespace sluice {

struct UcxOptions {
  std::string name = "ucx";  // metric label
  // UCX transports by name, comma-separated; empty: tcp, and on a GPU cuda_ipc with it where this UCX has
  // that. Those that write by address without a key (cma, knem, xpmem) are refused, and so are the groups
  // that contain them: they could reach memory after its ring is gone.
  std::string tls;
  // True: a dead peer fails its transfers (UCP_ERR_HANDLING_MODE_PEER). UCX has that for networks only;
  // shared memory needs false, and the end of the control stream ends its transfers.
  bool peer_error_handling = true;
  Backend* backend = nullptr;  // as TransportOptions::backend
};

class UcxTransport final : public KvTransport {
 public:
  // InvalidArgument names a transport that is unknown or refused.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(const UcxOptions& options);
  ~UcxTransport() override;

  absl::string_view name() const override;
  std::string description() const override;
  bool device_rings() const override;
  bool two_sided() const override { return false; }
  absl::StatusOr<TransferId> Expect(PeerId, RegionId, Slice) override {
    return absl::FailedPreconditionError("ucx: one-sided");
  }
  absl::StatusOr<Ring> AllocateRing(size_t bytes, std::optional<PeerId> writer = std::nullopt) override;
  void ReleaseRing(RegionId region) override;
  absl::StatusOr<std::string> LocalAddress(PeerId peer) override;
  std::string ExportKey(RegionId region) const override;
  absl::Status Connect(PeerId peer, absl::string_view address) override;
  absl::StatusOr<RemoteRegionId> ImportKey(PeerId peer, absl::string_view key) override;
  absl::StatusOr<TransferId> Push(PeerId peer, RegionId local, Slice from, RemoteRegionId remote,
                                  int64_t remote_offset) override;
  bool Progress() override;
  TransferState Poll(TransferId transfer) override;
  absl::Status Quiesce(PeerId peer) override;
  void PeerIsIdle(PeerId peer) override;

 private:
  struct Impl;
  explicit UcxTransport(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
