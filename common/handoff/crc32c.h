// Role: CRC-32C (Castagnoli, RFC 3720) of manifests. Uses the SSE4.2 instruction where the CPU has
// it. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

// Crc32c(b, Crc32c(a)) is the CRC of a followed by b.
uint32_t Crc32c(const void* data, size_t bytes, uint32_t crc = 0);

namespace internal {
uint32_t Crc32cTable(const void* data, size_t bytes, uint32_t crc);  // the portable twin, for tests
}

}  // namespace sluice
