// Role: what deadlines of tests are multiplied with: a sanitizer makes everything slower.
#pragma once

namespace sluice {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kPatience = 5;
#else
inline constexpr int kPatience = 1;
#endif

}  // namespace sluice
