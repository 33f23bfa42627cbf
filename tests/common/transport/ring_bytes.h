// Role: what both ends of a transport test agree on: hex, ring contents from a seed, a checksum of every
// byte.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>

#include "common/base/status.h"
#include "common/transport/kv_transport.h"
#include "kernels/backend.h"

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

// FNV-1a: depends on every byte and on their order.
inline uint64_t SumOf(const char* data, size_t bytes) {
  uint64_t sum = 1469598103934665603ull;
  for (size_t i = 0; i < bytes; ++i) sum = (sum ^ static_cast<unsigned char>(data[i])) * 1099511628211ull;
  return sum;
}

// Reads and writes rings wherever they lie. Their length is a multiple of 4.
class RingBytes {
 public:
  explicit RingBytes(Backend* backend) : ops_(backend->NewOps()) {}

  void Fill(const Ring& ring, uint64_t seed) {
    std::minstd_rand random(static_cast<uint32_t>(seed + 1));
    std::string bytes(ring.bytes, 0);
    for (char& c : bytes) c = static_cast<char>(random() >> 7);
    Write(ring, bytes);
  }
  void Write(const Ring& ring, const std::string& bytes) {
    Pieces(ring, [&](size_t at, TensorView part) { ops_->CopyIn(bytes.data() + at, part); });
  }
  std::string Read(const Ring& ring) {
    std::string bytes(ring.bytes, 0);
    Pieces(ring, [&](size_t at, TensorView part) { ops_->CopyOut(part, bytes.data() + at); });
    return bytes;
  }
  uint64_t Sum(const Ring& ring, size_t offset, size_t bytes) {
    return SumOf(Read(ring).data() + offset, bytes);
  }

 private:
  template <class Move>
  void Pieces(const Ring& ring, Move move) {
    constexpr size_t kPiece = 1 << 20;
    for (size_t at = 0; at < ring.bytes; at += kPiece) {
      const size_t n = std::min(kPiece, ring.bytes - at);
      move(at, TensorView::Contiguous(ring.data + at, DType::kI32, {static_cast<int64_t>(n / 4)}));
      SLUICE_CHECK(ops_->Sync().ok());
    }
  }
  std::unique_ptr<Ops> ops_;
};

}  // namespace sluice
