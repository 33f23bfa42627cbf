// Role: what this machine can do at best, measured beside every benchmark: bytes read and f32 multiply-adds.
// Threads: uses `threads` of its own for the time of a call.
#pragma once

#include <ctime>

namespace sluice {

// The clock of all figures: wall time, or with one thread its own CPU time, which a busy machine disturbs
// less.
inline double BenchSeconds(int threads) {
  timespec t;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Bytes a second that `threads` threads read from memory together (plain 32-byte loads over 512 MiB).
double MeasureReadBandwidth(int threads);

// f32 operations a second (two a multiply-add) of `threads` threads out of registers.
double MeasureFmaRate(int threads, bool avx512);

}  // namespace sluice
