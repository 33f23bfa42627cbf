#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/views.h"

namespace sluice {

void CpuOps::AllReduce(TensorView x) {
  SLUICE_CHECK(x.dtype == DType::kF32 && IsContiguous(x));
  if (link_ == nullptr) return;
  const bool summed =
      link_->Sum(rank_, x.as<float>(), static_cast<int64_t>(Bytes(x) / sizeof(float)), kernels_.row->add);
  if (!summed && error_.ok()) error_ = absl::AbortedError("another rank of the model failed");
}

}  // namespace sluice
