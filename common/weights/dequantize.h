// Role: decodes stored weights of any TensorType to f32.
// Why: weights are read once at load, so this is plain portable code, exact to the last bit where the format
// is (every type but the K ones is one multiply and at most one add in f32).
// Threads: pure functions.
#pragma once

#include <cstdint>

#include "common/weights/tensor_type.h"

namespace sluice {

float HalfToFloat(uint16_t bits);      // IEEE binary16, with subnormals, infinities and NaN
float BFloat16ToFloat(uint16_t bits);  // upper half of an f32

// Decodes `blocks` consecutive blocks at src (any alignment, little-endian) to blocks * layout.elements
// floats.
void Dequantize(TensorType type, const char* src, int64_t blocks, float* dst);

}  // namespace sluice
