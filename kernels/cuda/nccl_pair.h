// Role: one end of an NCCL communicator of two ranks on its own low-priority stream. Nothing here waits: the
// communicator comes up, sends and receives in the background, and Progress looks. Why here: kernels/ is the
// only code that knows devices. A build without CUDA or without NCCL's header has nccl_pair_absent.cc in its
// place; the library is opened at run time. Threads: one; an abort runs on a thread of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

class NcclPair {
 public:
  enum class State { kPending, kDone, kFailed };
  virtual ~NcclPair() = default;  // aborts, and waits for that

  // Device memory, valid until the operation has ended. Operations of a pair go in order; the two ends' must
  // agree.
  virtual int64_t Send(const void* data, size_t bytes) = 0;
  virtual int64_t Receive(void* data, size_t bytes) = 0;
  virtual bool Progress() = 0;                // true: something moved
  virtual State Poll(int64_t operation) = 0;  // a final state is told once; unknown ones have failed
  virtual absl::Status status() const = 0;    // of the communicator

  // Ends every operation. After that, once aborted() says so: nothing of this pair touches memory any more.
  virtual void Abort() = 0;
  virtual bool aborted() const = 0;
};

// "2.28.9". FailedPrecondition: the library is missing.
absl::StatusOr<std::string> NcclVersion();
// What both ends join by; made by rank 0's process.
absl::StatusOr<std::string> NewNcclId();
// The calling thread's GPU: two ranks need two. One line, the same whatever a process calls its devices.
absl::StatusOr<std::string> NcclDeviceName();
// On the calling thread's GPU.
absl::StatusOr<std::unique_ptr<NcclPair>> JoinNcclPair(absl::string_view id, int rank);

}  // namespace sluice
