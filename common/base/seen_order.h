// Role: shows ThreadSanitizer an order that it cannot see: gRPC comes from Debian uninstrumented, so what
// precedes a message in one thread and what follows its arrival in another (both ends of a loopback transfer)
// look unordered. Nothing in other builds. Threads: any.
#pragma once

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace sluice {

class SeenOrder {
 public:
  static void Before() {
#ifdef __SANITIZE_THREAD__
    __tsan_release(&point_);
#endif
  }
  static void After() {
#ifdef __SANITIZE_THREAD__
    __tsan_acquire(&point_);
#endif
  }

 private:
  static inline char point_;
};

}  // namespace sluice
