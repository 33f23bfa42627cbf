// Role: makes the process's logger before threads that log. Why: libspdlog comes uninstrumented, so that
// ThreadSanitizer does not see how two threads that log first agree on who makes it.
#pragma once

#include <spdlog/spdlog.h>

namespace sluice {

inline void MakeLogger() { spdlog::default_logger_raw(); }

}  // namespace sluice
