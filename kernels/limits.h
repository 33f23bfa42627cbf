// Role: limits that every backend keeps. No includes: vector code takes it too (cpu/isa/vec.h).
#pragma once

namespace sluice {

constexpr int kMaxGroup = 64;  // query heads of a KV head

}  // namespace sluice
