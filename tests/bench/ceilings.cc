#include "tests/bench/ceilings.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace sluice {
namespace {

// Slices short enough that a busy machine lets some of them pass undisturbed.
constexpr size_t kSliceBytes = size_t{4} << 20;

// Runs body(thread) on all threads at once.
template <class Body>
double Time(int threads, Body body) {
  std::atomic<int> ready{0};
  std::vector<std::thread> others;
  auto work = [&](int i) {
    ready.fetch_add(1);
    while (ready.load() < threads) _mm_pause();
    body(i);
  };
  for (int i = 1; i < threads; ++i) others.emplace_back(work, i);
  while (ready.load() < threads - 1) _mm_pause();
  const double start = BenchSeconds(threads);
  work(0);
  for (std::thread& t : others) t.join();
  return BenchSeconds(threads) - start;
}

__attribute__((target("avx2"))) int64_t ReadAll(const char* data, size_t bytes) {
  __m256i sums[4] = {};
  for (size_t i = 0; i + 128 <= bytes; i += 128) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      sums[j] =
          _mm256_xor_si256(sums[j], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i + 32 * j)));
  }
  sums[0] = _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
  return _mm256_extract_epi64(sums[0], 0);
}

constexpr int kFmaRounds = 50000;

__attribute__((target("avx2,fma"))) float Fma256() {
  __m256 acc[12];
#pragma GCC unroll 12
  for (int i = 0; i < 12; ++i) acc[i] = _mm256_set1_ps(0.5f + i);
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (int r = 0; r < kFmaRounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) acc[i] = _mm256_fmadd_ps(acc[i], a, b);
  }
#pragma GCC unroll 12
  for (int i = 1; i < 12; ++i) acc[0] = _mm256_add_ps(acc[0], acc[i]);
  return _mm256_cvtss_f32(acc[0]);
}

__attribute__((target("avx512f"))) float Fma512() {
  __m512 acc[12];
#pragma GCC unroll 12
  for (int i = 0; i < 12; ++i) acc[i] = _mm512_set1_ps(0.5f + i);
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (int r = 0; r < kFmaRounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) acc[i] = _mm512_fmadd_ps(acc[i], a, b);
  }
#pragma GCC unroll 12
  for (int i = 1; i < 12; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
  return _mm512_cvtss_f32(acc[0]);
}

std::atomic<int64_t> g_sink;  // results must go somewhere

}  // namespace

double MeasureReadBandwidth(int threads) {
  constexpr size_t kBytes = size_t{512} << 20;
  std::unique_ptr<char, decltype(&std::free)> data(static_cast<char*>(std::aligned_alloc(4096, kBytes)),
                                                   &std::free);
  std::memset(data.get(), 1, kBytes);
  const size_t slice = kSliceBytes * threads;
  double best = 0;
  for (int pass = 0; pass < 2; ++pass)
    for (size_t at = 0; at + slice <= kBytes; at += slice)
      best = std::max(best, slice / Time(threads, [&](int i) {
                              g_sink += ReadAll(data.get() + at + i * kSliceBytes, kSliceBytes);
                            }));
  return best;
}

double MeasureFmaRate(int threads, bool avx512) {
  const double lanes = avx512 ? 16 : 8;
  double best = 1e30;
  for (int i = 0; i < 500; ++i)
    best = std::min(
        best, Time(threads, [&](int) { g_sink += static_cast<int64_t>(avx512 ? Fma512() : Fma256()); }));
  return 2.0 * lanes * 12 * kFmaRounds * threads / best;
}

}  // namespace sluice
