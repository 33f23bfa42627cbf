// Role: the functions of NCCL that we call, from the shared library opened at run time, and what they say as
// a Status. Why not linked: a binary must start where the library is absent. Threads: immutable once loaded.
#pragma once

#include <nccl.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

struct Nccl {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitAll) init_all;
  decltype(&ncclCommInitRankConfig) init_rank;
  decltype(&ncclCommGetAsyncError) get_async_error;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclCommAbort) abort;

  absl::Status Status(absl::string_view call, ncclResult_t result) const;

  // Opened once; lives as long as the process. FailedPrecondition says what is missing.
  static absl::StatusOr<const Nccl*> Load();
};

}  // namespace sluice
