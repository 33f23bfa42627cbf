#include <cstring>

#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/views.h"

namespace sluice {

// On the calling thread: at memory speed there is nothing to gain from the pool, which computes a prompt.
void CpuOps::Checksum(TensorView words, TensorView out) {
  SLUICE_CHECK(words.rank == 1 && DTypeSize(words.dtype) == 4 && IsContiguous(words) &&
               Is(out, DType::kI32, {2}));
  const uint64_t sum = kernels_.row->checksum(static_cast<const uint32_t*>(words.data), words.shape[0]);
  std::memcpy(out.data, &sum, sizeof(sum));
}

}  // namespace sluice
