#include "kernels/cuda/hsa_plain.cuh"

#include "kernels/cuda/plain_attention.cuh"
#include "kernels/cuda/shared_memory.cuh"

namespace sluice {
namespace {

constexpr int kPlainCutPer = 4;

// grid: pieces of scratch; a block takes every n-th (sequence, KV head). A piece: scores [group, pages],
// weights [pages], places [rows].
template <class T>
__global__ __launch_bounds__(kPlainThreads) void AttendHybridPlain(const __grid_constant__ HsaArgs a) {
  extern __shared__ float floats[];
  __shared__ SelectShared<kPlainThreads> select;
  __shared__ float reduced[kPlainThreads / kWarp];
  for (int index = blockIdx.x; index < a.n_units; index += gridDim.x) {
    const int d = a.cache.d, group = a.group, entry = index / a.cache.heads, head = index % a.cache.heads,
              slot = a.cache.slots[entry];
    const HsaSettings hsa = a.cache.Hsa(slot);
    const Room room(a.cache);
    const int len = a.cache.Length(slot, head), page = hsa.page;
    SLUICE_DEVICE_CHECK(page >= 1 && hsa.channels >= 1 && hsa.channels <= d && hsa.tokens >= 1 && len > 0 &&
                        len <= room.rows);
    const int n_pages = (len + page - 1) / page, last = len - (n_pages - 1) * page, n = min(hsa.tokens, len);
    SLUICE_DEVICE_CHECK(n_pages <= room.pages);
    const PlainShared shared(floats, group, d);
    float* magnitude = floats + PlainSharedFloats(group, d);
    int* channels = reinterpret_cast<int*>(magnitude + d);  // [k1]: the chosen, negative where maxima bound
    float* scores = reinterpret_cast<float*>(a.scratch) + blockIdx.x * ((group + 1) * room.pages + room.rows);
    float* weights = scores + group * room.pages;
    int32_t* places = reinterpret_cast<int32_t*>(weights + room.pages);

    const float* q = a.q + entry * a.q_stride + head * group * d;
    for (int i = threadIdx.x; i < group * d; i += kPlainThreads) shared.q[i] = q[i];
    __syncthreads();
    for (int c = threadIdx.x; c < d; c += kPlainThreads) {
      magnitude[c] = 0;
      for (int g = 0; g < group; ++g) magnitude[c] += fabsf(shared.q[g * d + c]);
    }
    __syncthreads();
    for (int c = threadIdx.x; c < d; c += kPlainThreads) {
      int rank = 0;
      float sum = 0;
      for (int x = 0; x < d; ++x)
        rank += magnitude[x] > magnitude[c] || (magnitude[x] == magnitude[c] && x < c);
      for (int g = 0; g < group; ++g) sum += shared.q[g * d + c];
      if (rank < hsa.channels) channels[rank] = sum > 0 ? -1 - c : c;
    }
    __syncthreads();
    for (int j = threadIdx.x; j < n_pages; j += kPlainThreads) weights[j] = 0;
    for (int g = 0; g < group; ++g) {
      float all = 0, kept = 0, top = kMinusInfinity, sum = 0;
      for (int c = 0; c < d; ++c) all += fabsf(shared.q[g * d + c]);
      for (int i = 0; i < hsa.channels; ++i)
        kept += fabsf(shared.q[g * d + max(channels[i], -1 - channels[i])]);
      const float scale = kept > 0 ? kLog2E * rsqrtf(d * kept / all) : 0;
      for (int j = threadIdx.x; j < n_pages; j += kPlainThreads) {
        float x = 0;
        for (int i = 0; i < hsa.channels; ++i) {
          const bool upper = channels[i] < 0;
          const int c = upper ? -1 - channels[i] : channels[i];
          x += shared.q[g * d + c] *
               ToFloat(a.cache.BoundsLine<T>(slot, head, page, j / kRunPages, c, upper)[j % kRunPages]);
        }
        scores[g * room.pages + j] = x *= scale;
        top = fmaxf(top, x);
      }
      top = BlockMax(top, reduced);
      for (int j = threadIdx.x; j < n_pages; j += kPlainThreads)
        sum += (j == n_pages - 1 ? last : page) * Exp2(scores[g * room.pages + j] - top);
      const float share = 1 / (BlockSum(sum, reduced) * group);
      for (int j = threadIdx.x; j < n_pages; j += kPlainThreads)
        weights[j] += Exp2(scores[g * room.pages + j] - top) * share;
    }
    __syncthreads();
    const Items items = {n_pages, page, last};
    auto key = [=](int j) { return __float_as_uint(weights[j]); };  // not negative: ordered as integers
    const Cut cut = FindCut<kPlainThreads, kPlainCutPer>(items, n, 0, __float_as_uint(2.f), key, select);
    auto emit = [&](int j, int taken, int before) {
      for (int r = 0; r < taken; ++r) places[before + r] = a.cache.Place(slot, head, j * page + r);
    };
    EmitInOrder(items, cut, key, emit, select);
    __syncthreads();
    auto row = [&](int i) { return KvRow<T>{a.cache.K<T>(places[i]), a.cache.V<T>(places[i])}; };
    auto lse = [](int, float) {};
    if (a.out.is_bf16) {
      AttendPlain<T>(shared, group, d, n, row, a.out.At<Bf16>(entry, head * group * d), lse);
    } else {
      AttendPlain<T>(shared, group, d, n, row, a.out.At<float>(entry, head * group * d), lse);
    }
    __syncthreads();
  }
}

template <class T>
cudaError_t Start(const HsaArgs& a, cudaStream_t stream) {
  const size_t bytes = (PlainSharedFloats(a.group, a.cache.d) + 2 * a.cache.d) * sizeof(float);
  auto kernel = AttendHybridPlain<T>;
  const cudaError_t error = AllowSharedMemory(kernel);
  if (error == cudaSuccess) kernel<<<a.n_pieces, kPlainThreads, bytes, stream>>>(a);
  return error;
}

}  // namespace

int64_t PlainHsaWords(const HsaArgs& a) {
  const Room room(a.cache);
  return (a.group + 1) * room.pages + room.rows;
}

cudaError_t PlainHsaAttention(const HsaArgs& a, DType dtype, cudaStream_t stream) {
  return dtype == DType::kBF16 ? Start<Bf16>(a, stream) : Start<float>(a, stream);
}

}  // namespace sluice
