// NCCL of a build without it.
#include "kernels/cuda/nccl_pair.h"

namespace sluice {
namespace {

absl::Status Absent() {
  return absl::FailedPreconditionError(
      "this build has no NCCL: configure where nvcc 13 and nccl.h are found");
}

}  // namespace

absl::StatusOr<std::string> NcclVersion() { return Absent(); }
absl::StatusOr<std::string> NewNcclId() { return Absent(); }
absl::StatusOr<std::string> NcclDeviceName() { return Absent(); }
absl::StatusOr<std::unique_ptr<NcclPair>> JoinNcclPair(absl::string_view, int) { return Absent(); }

}  // namespace sluice
