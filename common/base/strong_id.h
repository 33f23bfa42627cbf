// Role: integers that do not mix. LayerId never meets PageId, logical_len never meets kept_len.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace sluice {

template <class Tag, class Int = int32_t>
class StrongId {
 public:
  constexpr StrongId() = default;
  constexpr explicit StrongId(Int value) : value_(value) {}
  constexpr Int value() const { return value_; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  constexpr StrongId& operator++() {
    ++value_;
    return *this;
  }

 private:
  Int value_ = 0;
};

using LayerId = StrongId<struct LayerIdTag>;
using PageId = StrongId<struct PageIdTag>;          // index of a page in a PagePool
using LogicalLen = StrongId<struct LogicalLenTag>;  // tokens seen = RoPE position of the next token
using KeptLen = StrongId<struct KeptLenTag>;        // rows in the cache of one (layer, KV head)

}  // namespace sluice

template <class Tag, class Int>
struct std::hash<sluice::StrongId<Tag, Int>> {
  size_t operator()(sluice::StrongId<Tag, Int> id) const { return std::hash<Int>()(id.value()); }
};
