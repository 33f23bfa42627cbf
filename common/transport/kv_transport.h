// Role: moves bytes between rings that it allocated. It knows no layers, heads or requests.
// Why abstract: in process (loopback), between processes (ucx), between GPUs (nccl); one list in
// transports.h. Threads: every call comes from the process's transfer loop. No call blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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
  virtual absl::string_view name() const = 0;   // metric label: "loopback", "ucx"
  virtual std::string description() const = 0;  // for the log at start: "ucx: UCX 1.13.1, tcp, ..."
  virtual bool device_rings() const = 0;        // rings may be a GPU's memory: only its ops read them

  // writer: the connected peer that alone will push into it; none: it is pushed from.
  virtual absl::StatusOr<Ring> AllocateRing(size_t bytes, std::optional<PeerId> writer = std::nullopt) = 0;
  // The peer can no longer reach the ring. Call only after Quiesce of every peer that imported it.
  virtual void ReleaseRing(RegionId region) = 0;

  // Where that one peer reaches us: each connection has an address of its own, so that closing it proves
  // that nothing of the peer can land here any more. Of the two ends one asks before its Connect, the other
  // after it.
  virtual absl::StatusOr<std::string> LocalAddress(PeerId peer) = 0;
  virtual std::string ExportKey(RegionId region) const = 0;

  // address: the peer's LocalAddress for us. Both ends connect before either pushes. AlreadyExists for a
  // peer that is connected: a new connection is a new PeerId.
  virtual absl::Status Connect(PeerId peer, absl::string_view address) = 0;
  virtual absl::StatusOr<RemoteRegionId> ImportKey(PeerId peer, absl::string_view key) = 0;

  // One-sided: a Push goes where it says, and the peer does nothing. Two-sided: pushes of a connection land
  // in what the peer Expects, in the order of both, and their `remote` is not read; a push without its Expect
  // waits, and one that fails ends the connection.
  virtual bool two_sided() const = 0;

  struct Slice {
    int64_t offset = 0;
    size_t bytes = 0;
  };
  // Two-sided only: the peer's next push lands here. Poll reports it. FailedPrecondition where it is
  // one-sided.
  virtual absl::StatusOr<TransferId> Expect(PeerId peer, RegionId local, Slice into) = 0;

  // Copies [offset, offset + bytes) of the local ring into the peer's ring.
  virtual absl::StatusOr<TransferId> Push(PeerId peer, RegionId local, Slice from, RemoteRegionId remote,
                                          int64_t remote_offset) = 0;

  // Moves bytes, both those pushed here and those that peers push to us: both ends call it in a loop while a
  // transfer may be going on. True: something moved.
  virtual bool Progress() = 0;

  // kDone of a Push means that every byte is visible to the peer (two-sided: that ours may be overwritten;
  // the peer's Expect tells it the rest), of an Expect that they are visible to us; a final state is reported
  // once, then forgotten. An unknown transfer is kFailed.
  virtual TransferState Poll(TransferId transfer) = 0;

  // Closes the connection and forgets its transfers. OK means: it touches no local slot any more, and once
  // ReleaseRing of the rings exported to that peer returns, no byte of the peer can land here. Unavailable:
  // call again, and keep its slots quarantined until then. An unknown peer is OK.
  virtual absl::Status Quiesce(PeerId peer) = 0;

  // The process behind that peer says that nothing it pushed to us is under way, and that it will push no
  // more: the proof that a Quiesce may lack.
  virtual void PeerIsIdle(PeerId peer) = 0;
};

}  // namespace sluice
