#include "kernels/cuda/nccl.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/runtime_library.h"

namespace sluice {
namespace {

absl::StatusOr<Nccl> Open() {
  SLUICE_ASSIGN_OR_RETURN(RuntimeLibrary library, RuntimeLibrary::Open("libnccl.so.2", ": install NCCL"));
  Nccl nccl;
  library.Bind(nccl.get_version, "ncclGetVersion");
  library.Bind(nccl.error_string, "ncclGetErrorString");
  library.Bind(nccl.get_unique_id, "ncclGetUniqueId");
  library.Bind(nccl.init_all, "ncclCommInitAll");
  library.Bind(nccl.init_rank, "ncclCommInitRankConfig");
  library.Bind(nccl.get_async_error, "ncclCommGetAsyncError");
  library.Bind(nccl.all_reduce, "ncclAllReduce");
  library.Bind(nccl.send, "ncclSend");
  library.Bind(nccl.receive, "ncclRecv");
  library.Bind(nccl.abort, "ncclCommAbort");
  SLUICE_RETURN_IF_ERROR(library.status());
  return nccl;
}

}  // namespace

absl::StatusOr<const Nccl*> Nccl::Load() {
  static const auto* nccl = new absl::StatusOr<Nccl>(Open());
  if (!nccl->ok()) return nccl->status();
  return &**nccl;
}

absl::Status Nccl::Status(absl::string_view call, ncclResult_t result) const {
  if (result == ncclSuccess) return absl::OkStatus();
  const std::string text = absl::StrCat(call, ": ", error_string(result));
  if (result == ncclRemoteError || result == ncclSystemError) return absl::UnavailableError(text);
  if (result == ncclInvalidArgument || result == ncclInvalidUsage) return absl::InvalidArgumentError(text);
  return absl::InternalError(text);
}

}  // namespace sluice
