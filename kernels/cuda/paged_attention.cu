#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/op_checks.h"

namespace sluice {

void CudaOps::PagedAttention(TensorView q, const PagedKv& cache, TensorView out) {
  CheckDecode(q, cache, out);
  const int batch = static_cast<int>(q.shape[0]), heads = cache.n_kv_heads;
  const int group = static_cast<int>(q.shape[1]) / heads;
  SLUICE_CHECK(q.stride[0] % 4 == 0 && reinterpret_cast<uintptr_t>(q.data) % 16 == 0);
  SLUICE_CHECK(out.stride[0] % 4 == 0 && reinterpret_cast<uintptr_t>(out.data) % 16 == 0);
  if (batch == 0) return;
  Begin();
  char* partials = Reserve(DecodeScratchFloats(batch, heads, group, cache.head_dim) * sizeof(float));
  unsigned* counters = Counters(int64_t{batch} * heads);
  if (partials == nullptr || counters == nullptr) return;
  const DecodeArgs args = {PagedCache(cache), cache.dtype, q.as<float>(), q.stride[0],
                           DecodeOut(out),    batch,       group,         reinterpret_cast<float*>(partials),
                           counters};
  DecodeAttention(args, device_.n_sms, stream_);
  Launched("PagedAttention");
}

}  // namespace sluice
