// Role: measures a connection by pushing bytes into the peer's ring a few times. Why: the hand-off's
// deadlines scale with the real rate, and a server below a floor is not ready. Runs in either direction: the
// end that pushes measures. Does not block: Step is called by the loop that drives the transport. Threads: as
// the transport.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/transport/kv_transport.h"

namespace sluice {

class RingProbe {
 public:
  // Pushes [0, bytes) of the local ring to offset 0 of the remote one, `pushes` times and once more to warm
  // up. Both ranges are overwritten or read freely: probe before the ring is in use.
  RingProbe(KvTransport* transport, PeerId peer, RegionId local, RemoteRegionId remote, size_t bytes,
            int pushes);

  // nullopt: not finished. Else bytes per second. Unavailable when a push failed. Progress() is the caller's.
  absl::StatusOr<std::optional<double>> Step(absl::Time now);

 private:
  KvTransport* const transport_;
  const PeerId peer_;
  const RegionId local_;
  const RemoteRegionId remote_;
  const size_t bytes_;
  const int pushes_;
  int ended_ = 0;
  std::optional<TransferId> pending_;
  absl::Time begin_;
};

}  // namespace sluice
