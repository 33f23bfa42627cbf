#include "kernels/cpu/chosen_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "kernels/cpu/decode_split.h"

namespace sluice {
namespace {

// Unsigned keys in the order of the scores; +0 makes -0 equal 0.
uint32_t OrderedKey(float score) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

}  // namespace

void ChooseBest(const float* scores, int64_t n, int64_t k, uint32_t* keys, int32_t* chosen) {
  if (k == 0) return;
  for (int64_t i = 0; i < n; ++i) keys[i] = OrderedKey(scores[i]);
  std::nth_element(keys, keys + k - 1, keys + n, std::greater<uint32_t>());
  const uint32_t cut = keys[k - 1];
  int64_t above = 0;  // nth_element leaves everything greater in front
  for (int64_t i = 0; i < k; ++i) above += keys[i] > cut;
  int64_t ties = k - above;  // rows equal to the cut that still fit, lowest first
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t key = OrderedKey(scores[i]);
    if (key > cut || (key == cut && ties-- > 0)) *chosen++ = static_cast<int32_t>(i);
  }
}

void ChooseChannels(const float* q, int group, int d, int k1, float* sums, int32_t* channels) {
  for (int c = 0; c < d; ++c) {
    sums[c] = 0;
    channels[c] = c;
    for (int g = 0; g < group; ++g) sums[c] += std::fabs(q[g * d + c]);
  }
  std::nth_element(channels, channels + k1 - 1, channels + d,
                   [&](int32_t a, int32_t b) { return sums[a] != sums[b] ? sums[a] > sums[b] : a < b; });
  std::sort(channels, channels + k1);
}

float InverseTemperature(const float* q, int d, const int32_t* channels, int k1) {
  float all = 0, kept = 0;
  for (int c = 0; c < d; ++c) all += std::fabs(q[c]);
  for (int i = 0; i < k1; ++i) kept += std::fabs(q[channels[i]]);
  return kept > 0 ? 1 / std::sqrt(static_cast<float>(d) * kept / all) : 0;
}

AttendScratch::AttendScratch(Cutter& cutter, int group, int d)
    : scaled_q(cutter.Take<float>(int64_t{group} * d)),
      part(cutter.Take<char>(static_cast<int64_t>(DecodeParts::bytes(1, group, d)))) {}

void AttendChosen(const DecodeKernels& kernels, const float* q, int group, const PagedKv& cache, int slot,
                  int kv_head, const int32_t* chosen, int n, const AttendScratch& scratch, float* out) {
  const int d = cache.head_dim;
  const float scale = 1 / std::sqrt(static_cast<float>(d));
  for (int i = 0; i < group * d; ++i) scratch.scaled_q[i] = q[i] * scale;
  const PagedRows rows(cache, slot, kv_head);
  const DecodeParts parts(scratch.part, group, d);
  parts.Clear(0);
  const void* k[kRowBlock];
  const void* v[kRowBlock];
  for (int begin = 0; begin < n; begin += kRowBlock) {
    const int count = std::min(kRowBlock, n - begin);
    for (int i = 0; i < count; ++i) {
      k[i] = rows.k(chosen[begin + i]);
      v[i] = rows.v(chosen[begin + i]);
    }
    kernels.attend_rows(scratch.scaled_q, group, d, cache.dtype == DType::kBF16, k, v, count, parts.part(0));
  }
  parts.Merge(0, 1, out);
}

}  // namespace sluice
