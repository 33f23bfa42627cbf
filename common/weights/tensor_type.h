// Role: the element encodings a weight file may use, and how many bytes each takes.
// Why: readers size and bounds-check tensors from this one table; dequantize.h decodes the same list.
// Threads: constants only.
#pragma once

#include <cstdint>

namespace sluice {

enum class TensorType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};
inline constexpr int kTensorTypes = 11;

// A row is a whole number of blocks; plain types have blocks of one element.
struct BlockLayout {
  const char* name;
  int elements;
  int bytes;
};

inline constexpr BlockLayout kBlockLayouts[kTensorTypes] = {
    {"F32", 1, 4},      {"F16", 1, 2},      {"BF16", 1, 2},    {"Q4_0", 32, 18},
    {"Q4_1", 32, 20},   {"Q5_0", 32, 22},   {"Q5_1", 32, 24},  {"Q8_0", 32, 34},
    {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210}};

inline const BlockLayout& LayoutOf(TensorType type) { return kBlockLayouts[static_cast<int>(type)]; }

}  // namespace sluice
