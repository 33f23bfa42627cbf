#include "kernels/cpu/cpu_ops.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {

char* Scratch::Reserve(size_t bytes) {
  if (bytes > bytes_ || data_ == nullptr) {
    data_.reset();
    bytes_ = (bytes + 4095) / 4096 * 4096;
    if (bytes_ == 0) bytes_ = 4096;
    data_.reset(static_cast<char*>(std::aligned_alloc(64, bytes_)));
    if (data_ == nullptr) bytes_ = 0;
  }
  return data_.get();
}

absl::Status CpuOps::Sync() { return std::exchange(error_, absl::OkStatus()); }

char* CpuOps::ReserveShared(size_t bytes) {
  char* data = shared_scratch_.Reserve(bytes);
  if (data == nullptr && error_.ok())
    error_ = absl::ResourceExhaustedError(absl::StrCat("cpu scratch memory: ", bytes, " bytes"));
  return data;
}

bool CpuOps::ReserveThreadScratch(size_t bytes, ThreadScratch* out) {
  out->stride = (bytes + 127) / 64 * 64;
  out->base = thread_scratch_.Reserve(out->stride * pool_.threads());
  if (out->base == nullptr && error_.ok())
    error_ = absl::ResourceExhaustedError(
        absl::StrCat("cpu scratch memory: ", bytes, " bytes for each of ", pool_.threads(), " threads"));
  return out->base != nullptr;
}

}  // namespace sluice
