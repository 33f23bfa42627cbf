// Role: bounds of a slice of a ring, safe against overflow. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

// [offset, offset + bytes) lies inside [0, size) and is not empty.
constexpr bool InRange(int64_t offset, size_t bytes, size_t size) {
  return offset >= 0 && bytes > 0 && bytes <= size && static_cast<uint64_t>(offset) <= size - bytes;
}

}  // namespace sluice
