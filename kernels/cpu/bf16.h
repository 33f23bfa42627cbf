// Role: bf16 as the upper half of an f32; rounding is to nearest even everywhere.
#pragma once

#include <bit>
#include <cstdint>

namespace sluice {

inline uint16_t RoundToBf16(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);  // NaN stays one
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float Bf16ToFloat(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

}  // namespace sluice
