#include "kernels/cuda/attention_args.cuh"
#include "kernels/cuda/plain_attention.cuh"
#include "kernels/cuda/shared_memory.cuh"

namespace sluice {
namespace {

// grid (n, kv heads). With a bf16 cache queries are rounded to bf16, as the tensor core kernel does.
template <class T>
__global__ __launch_bounds__(kPlainThreads) void AttendPlainQuery(
    const __grid_constant__ AttentionSequence a) {
  extern __shared__ float floats[];
  const int query = blockIdx.x, head = blockIdx.y, own = a.OwnRow(query);
  const PlainShared shared(floats, a.group, a.d);
  const float* q = a.q + query * a.q_row + head * a.group * a.d;
  for (int i = threadIdx.x; i < a.group * a.d; i += kPlainThreads) shared.q[i] = ToFloat(FromFloat<T>(q[i]));
  const int32_t* positions = a.positions == nullptr ? nullptr : a.positions + head * a.positions_head;
  const int oldest = positions == nullptr ? 0 : positions[own] - a.sliding_window;
  auto row = [&](int i) {
    if (positions != nullptr && positions[i] <= oldest) return KvRow<T>{nullptr, nullptr};
    return KvRow<T>{static_cast<const T*>(a.k) + head * a.k_head + i * a.k_row,
                    static_cast<const T*>(a.v) + head * a.v_head + i * a.v_row};
  };
  auto lse = [&](int g, float value) {
    const int column = query - (a.n - a.window);
    if (column >= 0) a.lse[(head * a.group + g) * a.lse_head + column] = value;
  };
  const int64_t at = query * a.out_row + head * a.group * a.d;
  if (a.out_is_bf16) {
    AttendPlain<T>(shared, a.group, a.d, own + 1, row, static_cast<Bf16*>(a.out) + at, lse);
  } else {
    AttendPlain<T>(shared, a.group, a.d, own + 1, row, static_cast<float*>(a.out) + at, lse);
  }
}

}  // namespace

void PlainAttention(const AttentionSequence& a, DType dtype, cudaStream_t stream) {
  const int bytes = static_cast<int>(PlainSharedFloats(a.group, a.d) * sizeof(float));
  auto kernel = dtype == DType::kBF16 ? &AttendPlainQuery<Bf16> : &AttendPlainQuery<float>;
  AllowSharedMemory(kernel);
  kernel<<<dim3(a.n, a.kv_heads), kPlainThreads, bytes, stream>>>(a);
}

}  // namespace sluice
