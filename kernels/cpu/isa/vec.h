// Role: one f32 vector type per instruction set, so that a kernel is written once. Why a namespace per set:
// these files are compiled several times with different -m flags, and nothing compiled here may be shared by
// name with the rest of the program. So they include no standard C++ header with inline functions, and every
// function lives in SLUICE_ISA (avx2, avx512, avx512_bf16; set by CMake).
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define SLUICE_INLINE inline __attribute__((always_inline))

namespace sluice::SLUICE_ISA {

#if SLUICE_ISA_BITS == 512

using Vec = __m512;
constexpr int kLanes = 16;

SLUICE_INLINE Vec Zero() { return _mm512_setzero_ps(); }
SLUICE_INLINE Vec Set(float x) { return _mm512_set1_ps(x); }
SLUICE_INLINE Vec Load(const float* p) { return _mm512_loadu_ps(p); }
SLUICE_INLINE void Store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
SLUICE_INLINE __mmask16 FirstLanes(int n) { return static_cast<__mmask16>((1u << n) - 1); }
SLUICE_INLINE Vec LoadFirst(const float* p, int n) { return _mm512_maskz_loadu_ps(FirstLanes(n), p); }
SLUICE_INLINE void StoreFirst(float* p, int n, Vec x) { _mm512_mask_storeu_ps(p, FirstLanes(n), x); }
SLUICE_INLINE Vec MulAdd(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
SLUICE_INLINE Vec Max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
SLUICE_INLINE Vec Min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
SLUICE_INLINE Vec Round(Vec x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// 2^n * x for integral n in [-126, 127].
SLUICE_INLINE Vec ScaleByPowerOfTwo(Vec x, Vec n) {
  __m512i e = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
  return _mm512_mul_ps(x, _mm512_castsi512_ps(e));
}
// x where a >= b, else 0.
SLUICE_INLINE Vec KeepWhereGe(Vec x, Vec a, Vec b) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), x);
}
SLUICE_INLINE bool AllGe(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ) == 0xffff; }
SLUICE_INLINE float SumLanes(Vec x) { return _mm512_reduce_add_ps(x); }
SLUICE_INLINE float MaxLanes(Vec x) { return _mm512_reduce_max_ps(x); }
SLUICE_INLINE Vec LoadBf16(const uint16_t* p) {
  __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
// Lanes of (first, second) bf16 pairs: the first and the second of each pair as f32.
SLUICE_INLINE void LoadBf16Pairs(const uint16_t* p, Vec* first, Vec* second) {
  __m512i x = _mm512_loadu_si512(p);
  *first = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
  *second = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

#else

using Vec = __m256;
constexpr int kLanes = 8;

SLUICE_INLINE Vec Zero() { return _mm256_setzero_ps(); }
SLUICE_INLINE Vec Set(float x) { return _mm256_set1_ps(x); }
SLUICE_INLINE Vec Load(const float* p) { return _mm256_loadu_ps(p); }
SLUICE_INLINE void Store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
SLUICE_INLINE __m256i FirstLanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// Masked stores are microcoded on AMD: whole vectors go around them.
SLUICE_INLINE Vec LoadFirst(const float* p, int n) {
  return n >= kLanes ? Load(p) : _mm256_maskload_ps(p, FirstLanes(n));
}
SLUICE_INLINE void StoreFirst(float* p, int n, Vec x) {
  if (n >= kLanes)
    Store(p, x);
  else
    _mm256_maskstore_ps(p, FirstLanes(n), x);
}
SLUICE_INLINE Vec MulAdd(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
SLUICE_INLINE Vec Max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
SLUICE_INLINE Vec Min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
SLUICE_INLINE Vec Round(Vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
SLUICE_INLINE Vec ScaleByPowerOfTwo(Vec x, Vec n) {
  __m256i e = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(x, _mm256_castsi256_ps(e));
}
SLUICE_INLINE Vec KeepWhereGe(Vec x, Vec a, Vec b) {
  return _mm256_and_ps(x, _mm256_cmp_ps(a, b, _CMP_GE_OQ));
}
SLUICE_INLINE bool AllGe(Vec a, Vec b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)) == 0xff; }
SLUICE_INLINE float SumLanes(Vec x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
SLUICE_INLINE float MaxLanes(Vec x) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
SLUICE_INLINE Vec LoadBf16(const uint16_t* p) {
  __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
SLUICE_INLINE void LoadBf16Pairs(const uint16_t* p, Vec* first, Vec* second) {
  __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  *first = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
  *second = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

#endif

// KV rows of either dtype.
SLUICE_INLINE Vec LoadKv(const float* p) { return Load(p); }
SLUICE_INLINE Vec LoadKv(const uint16_t* p) { return LoadBf16(p); }
SLUICE_INLINE float KvToFloat(float x) { return x; }
SLUICE_INLINE float KvToFloat(uint16_t x) {
  union {
    uint32_t bits;
    float value;
  } u = {static_cast<uint32_t>(x) << 16};
  return u.value;
}

// e^x with a relative error below 2e-7 (range reduction by ln 2 in two parts, a polynomial of degree 6 fitted
// at Chebyshev nodes). 0 below -87.3, so also for -inf; x above 88 counts as 88. No NaN.
SLUICE_INLINE Vec Exp(Vec x) {
  const Vec lowest = Set(-87.3f);
  Vec y = Min(Max(x, lowest), Set(88.0f));
  Vec n = Round(y * Set(1.44269504f));
  Vec r = MulAdd(n, Set(-0.693359375f), y);
  r = MulAdd(n, Set(2.12194440e-4f), r);
  Vec p = Set(1.3926184e-3f);
  p = MulAdd(p, r, Set(8.3631789e-3f));
  p = MulAdd(p, r, Set(4.16665561e-2f));
  p = MulAdd(p, r, Set(1.66665763e-1f));
  p = MulAdd(p, r, Set(0.5f));
  p = MulAdd(p, r * r, r + Set(1.0f));
  return KeepWhereGe(ScaleByPowerOfTwo(p, n), x, lowest);
}

SLUICE_INLINE float ExpOf(float x) {
  float lanes[kLanes];
  Store(lanes, Exp(Set(x)));
  return lanes[0];
}

SLUICE_INLINE int MinInt(int a, int b) { return a < b ? a : b; }
SLUICE_INLINE int MaxInt(int a, int b) { return a > b ? a : b; }
constexpr float kMinusInfinity = -__builtin_inff();

}  // namespace sluice::SLUICE_ISA
