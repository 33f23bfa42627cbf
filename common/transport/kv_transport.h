// Role: moves bytes between rings that it allocated. It knows no layers, heads or requests.
// Why abstract: in process (loopback), between processes (ucx), between GPUs (nccl); one list in
// transports.h. Threads: every call comes from the process's transfer loop. No call blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/strong_id.h"

namespace sluice {

using RegionId = StrongId<struct RegionIdTag>;              // a ring of this process
using RemoteRegionId = StrongId<struct RemoteRegionIdTag>;  // a ring of a peer, imported here
using PeerId = StrongId<struct PeerIdTag>;                  // chosen by the caller, unique in this process
using TransferId = StrongId<struct TransferIdTag, int64_t>;

struct Ring {
  RegionId region;
  char* data = nullptr;  // owned by the transport, valid until ReleaseRing
  size_t bytes = 0;
};

enum class TransferState { kPending, kDone, kFailed };

class KvTransport {
 public:
  virtual ~KvTransport() = default;
  virtual absl::string_view name() const = 0;  // metric label: "loopback", "ucx"

  virtual absl::StatusOr<Ring> AllocateRing(size_t bytes) = 0;
  // The peer can no longer reach the ring. Call only after Quiesce of every peer that imported it, or when
  // they are dead.
  virtual void ReleaseRing(RegionId region) = 0;

  virtual std::string LocalAddress() const = 0;
  virtual std::string ExportKey(RegionId region) const = 0;

  // Both ends connect before either pushes. Connecting a known peer again replaces the connection.
  virtual absl::Status Connect(PeerId peer, absl::string_view address) = 0;
  virtual absl::StatusOr<RemoteRegionId> ImportKey(PeerId peer, absl::string_view key) = 0;

  // Copies [offset, offset + bytes) of the local ring into the peer's ring. One-sided: the peer does nothing.
  struct Slice {
    int64_t offset = 0;
    size_t bytes = 0;
  };
  virtual absl::StatusOr<TransferId> Push(PeerId peer, RegionId local, Slice from, RemoteRegionId remote,
                                          int64_t remote_offset) = 0;

  // Drives progress. kDone means every byte is visible to the peer; a final state is reported once, then
  // forgotten.
  virtual TransferState Poll(TransferId transfer) = 0;

  // Closes the connection. OK means: no byte of ours will land at that peer any more. Unavailable: call
  // again, or keep its slots quarantined.
  virtual absl::Status Quiesce(PeerId peer) = 0;
};

}  // namespace sluice
