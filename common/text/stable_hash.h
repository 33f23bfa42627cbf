// Role: a 64-bit hash that is the same on every machine and in every build (FNV-1a), for the identity of
// tokenizers and templates. It guards against mistakes, not against an attacker.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace sluice {

class StableHash {
 public:
  void Add(absl::string_view bytes) {
    Add(static_cast<int64_t>(bytes.size()));
    for (unsigned char c : bytes) Mix(c);
  }
  void Add(int64_t value) {
    for (int i = 0; i < 8; ++i) Mix(static_cast<unsigned char>(static_cast<uint64_t>(value) >> (8 * i)));
  }
  // 16 lower-case hex digits.
  std::string Hex() const { return absl::StrFormat("%016x", state_); }

 private:
  void Mix(unsigned char c) { state_ = (state_ ^ c) * 0x100000001b3ULL; }
  uint64_t state_ = 0xcbf29ce484222325ULL;
};

}  // namespace sluice
