#include "common/transport/probe.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {

RingProbe::RingProbe(KvTransport* transport, PeerId peer, RegionId local, RemoteRegionId remote, size_t bytes,
                     int pushes)
    : transport_(transport), peer_(peer), local_(local), remote_(remote), bytes_(bytes), pushes_(pushes) {}

absl::StatusOr<std::optional<double>> RingProbe::Step(absl::Time now) {
  if (pending_) {
    switch (transport_->Poll(*pending_)) {
      case TransferState::kPending:
        return std::nullopt;
      case TransferState::kFailed:
        return absl::UnavailableError(absl::StrCat("probe: push ", ended_, " of ", bytes_, " bytes failed"));
      case TransferState::kDone:
        pending_.reset();
        if (ended_++ == 0) begin_ = now;  // the first one pays for the connection
    }
  }
  if (ended_ > pushes_) {
    double seconds = std::max(absl::ToDoubleSeconds(now - begin_), 1e-9);
    return static_cast<double>(bytes_) * pushes_ / seconds;
  }
  SLUICE_ASSIGN_OR_RETURN(pending_, transport_->Push(peer_, local_, {0, bytes_}, remote_, 0));
  return std::nullopt;
}

}  // namespace sluice
