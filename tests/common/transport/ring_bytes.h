// Role: what both ends of a transport test agree on: hex, ring contents from a seed, a checksum of every
// byte.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "common/transport/kv_transport.h"

namespace sluice {

inline std::string ToHex(const std::string& bytes) {
  static const char* digits = "0123456789abcdef";
  std::string hex;
  for (unsigned char c : bytes) (hex += digits[c >> 4]) += digits[c & 15];
  return hex;
}

inline std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

inline void FillRing(const Ring& ring, uint64_t seed) {
  std::minstd_rand random(static_cast<uint32_t>(seed + 1));
  for (size_t i = 0; i < ring.bytes; ++i) ring.data[i] = static_cast<char>(random() >> 7);
}

// FNV-1a: depends on every byte and on their order.
inline uint64_t RingSum(const char* data, size_t bytes) {
  uint64_t sum = 1469598103934665603ull;
  for (size_t i = 0; i < bytes; ++i) sum = (sum ^ static_cast<unsigned char>(data[i])) * 1099511628211ull;
  return sum;
}

}  // namespace sluice
