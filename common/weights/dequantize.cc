#include "common/weights/dequantize.h"

#include <bit>
#include <cstring>

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little, "weight files are read in place as little-endian");

uint16_t Load16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

uint32_t Load32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

float LoadHalf(const uint8_t* p) { return HalfToFloat(Load16(p)); }

void DecodeF32(const uint8_t* b, float* y) { std::memcpy(y, b, 4); }
void DecodeF16(const uint8_t* b, float* y) { *y = HalfToFloat(Load16(b)); }
void DecodeBF16(const uint8_t* b, float* y) { *y = BFloat16ToFloat(Load16(b)); }

// Blocks of 32. Nibble byte j holds element j (low) and element j + 16 (high).

// [d f16][nibbles 16]: (q - 8) d
void DecodeQ4_0(const uint8_t* b, float* y) {
  float d = LoadHalf(b);
  const uint8_t* q = b + 2;
  for (int j = 0; j < 16; ++j) {
    y[j] = static_cast<float>((q[j] & 15) - 8) * d;
    y[j + 16] = static_cast<float>((q[j] >> 4) - 8) * d;
  }
}

// [d f16][m f16][nibbles 16]: q d + m
void DecodeQ4_1(const uint8_t* b, float* y) {
  float d = LoadHalf(b), m = LoadHalf(b + 2);
  const uint8_t* q = b + 4;
  for (int j = 0; j < 16; ++j) {
    y[j] = static_cast<float>(q[j] & 15) * d + m;
    y[j + 16] = static_cast<float>(q[j] >> 4) * d + m;
  }
}

// Fifth bits: bit e of `high` belongs to element e.
int FiveBits(uint8_t nibble, uint32_t high, int element) {
  return nibble | static_cast<int>((high >> element & 1) << 4);
}

// [d f16][high u32][nibbles 16]: (q - 16) d
void DecodeQ5_0(const uint8_t* b, float* y) {
  float d = LoadHalf(b);
  uint32_t high = Load32(b + 2);
  const uint8_t* q = b + 6;
  for (int j = 0; j < 16; ++j) {
    y[j] = static_cast<float>(FiveBits(q[j] & 15, high, j) - 16) * d;
    y[j + 16] = static_cast<float>(FiveBits(q[j] >> 4, high, j + 16) - 16) * d;
  }
}

// [d f16][m f16][high u32][nibbles 16]: q d + m
void DecodeQ5_1(const uint8_t* b, float* y) {
  float d = LoadHalf(b), m = LoadHalf(b + 2);
  uint32_t high = Load32(b + 4);
  const uint8_t* q = b + 8;
  for (int j = 0; j < 16; ++j) {
    y[j] = static_cast<float>(FiveBits(q[j] & 15, high, j)) * d + m;
    y[j + 16] = static_cast<float>(FiveBits(q[j] >> 4, high, j + 16)) * d + m;
  }
}

// [d f16][q i8 x 32]: q d
void DecodeQ8_0(const uint8_t* b, float* y) {
  float d = LoadHalf(b);
  for (int j = 0; j < 32; ++j) y[j] = static_cast<float>(static_cast<int8_t>(b[2 + j])) * d;
}

// Blocks of 256 in 8 sub-blocks of 32. Twelve bytes hold a 6-bit scale and a 6-bit minimum of each sub-block:
// bytes 0..3 and 4..7 the first four of either in their low 6 bits; bytes 8..11 the low nibbles of the last
// four (scale low, minimum high), whose top 2 bits lie in the top bits of bytes 0..3 and 4..7.
struct SubBlock {
  float scale;
  float min;
};

SubBlock UnpackSubBlock(const uint8_t* packed, int i, float d, float dmin) {
  int scale, min;
  if (i < 4) {
    scale = packed[i] & 63;
    min = packed[i + 4] & 63;
  } else {
    scale = (packed[i + 4] & 15) | (packed[i - 4] >> 6 << 4);
    min = (packed[i + 4] >> 4) | (packed[i] >> 6 << 4);
  }
  return {d * static_cast<float>(scale), dmin * static_cast<float>(min)};
}

// [d f16][dmin f16][scales 12][nibbles 128]: q d scale - dmin min. 32 nibble bytes serve two sub-blocks:
// low nibbles the even one, high nibbles the odd one.
void DecodeQ4_K(const uint8_t* b, float* y) {
  float d = LoadHalf(b), dmin = LoadHalf(b + 2);
  const uint8_t* scales = b + 4;
  const uint8_t* q = b + 16;
  for (int i = 0; i < 8; ++i) {
    SubBlock sub = UnpackSubBlock(scales, i, d, dmin);
    const uint8_t* bytes = q + (i / 2) * 32;
    int shift = (i % 2) * 4;
    for (int j = 0; j < 32; ++j)
      y[i * 32 + j] = sub.scale * static_cast<float>(bytes[j] >> shift & 15) - sub.min;
  }
}

// [d f16][dmin f16][scales 12][high 32][nibbles 128]: as Q4_K; bit i of high[j] is the fifth bit of element j
// of sub-block i.
void DecodeQ5_K(const uint8_t* b, float* y) {
  float d = LoadHalf(b), dmin = LoadHalf(b + 2);
  const uint8_t* scales = b + 4;
  const uint8_t* high = b + 16;
  const uint8_t* q = b + 48;
  for (int i = 0; i < 8; ++i) {
    SubBlock sub = UnpackSubBlock(scales, i, d, dmin);
    const uint8_t* bytes = q + (i / 2) * 32;
    int shift = (i % 2) * 4;
    for (int j = 0; j < 32; ++j) {
      int value = (bytes[j] >> shift & 15) | (high[j] >> i & 1) << 4;
      y[i * 32 + j] = sub.scale * static_cast<float>(value) - sub.min;
    }
  }
}

// [low 128][high 64][scales i8 x 16][d f16]: (q - 32) d scale, one scale per 16 elements. Each half of 128
// elements has 64 low bytes (four quarters of 32: low nibbles of bytes 0..31 and 32..63, then their high
// nibbles) and 32 high bytes (two bits for each quarter, lowest first).
void DecodeQ6_K(const uint8_t* b, float* y) {
  float d = LoadHalf(b + 208);
  for (int e = 0; e < 256; ++e) {
    int half = e / 128, quarter = e % 128 / 32, j = e % 32;
    int low = b[half * 64 + (quarter % 2) * 32 + j] >> (quarter / 2 * 4) & 15;
    int high = b[128 + half * 32 + j] >> (quarter * 2) & 3;
    float scale = d * static_cast<float>(static_cast<int8_t>(b[192 + e / 16]));
    y[e] = scale * static_cast<float>((low | high << 4) - 32);
  }
}

using Decode = void (*)(const uint8_t* block, float* out);
constexpr Decode kDecoders[kTensorTypes] = {DecodeF32,  DecodeF16,  DecodeBF16, DecodeQ4_0,
                                            DecodeQ4_1, DecodeQ5_0, DecodeQ5_1, DecodeQ8_0,
                                            DecodeQ4_K, DecodeQ5_K, DecodeQ6_K};

}  // namespace

float BFloat16ToFloat(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float HalfToFloat(uint16_t bits) {
  uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  uint32_t exponent = bits >> 10 & 31;
  uint32_t mantissa = bits & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  float tiny = static_cast<float>(mantissa) * 0x1p-24f;  // exact: subnormal halves are normal floats
  return sign != 0 ? -tiny : tiny;
}

void Dequantize(TensorType type, const char* src, int64_t blocks, float* dst) {
  const BlockLayout& layout = LayoutOf(type);
  const auto* block = reinterpret_cast<const uint8_t*>(src);
  if (type == TensorType::kF32) {
    std::memcpy(dst, block, static_cast<size_t>(blocks) * 4);
    return;
  }
  Decode decode = kDecoders[static_cast<int>(type)];
  for (int64_t i = 0; i < blocks; ++i) decode(block + i * layout.bytes, dst + i * layout.elements);
}

}  // namespace sluice
