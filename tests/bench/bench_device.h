// Role: the device under a kernel bench: its backend, what it can do at best, and how long a body of ops
// takes on it. Threads: one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_backend.h"

namespace sluice {

class BenchDevice {
 public:
  virtual ~BenchDevice() = default;
  virtual Backend& backend() = 0;
  virtual Ops& ops() = 0;
  virtual double bandwidth() const = 0;      // bytes a second read, measured
  virtual double flops() const = 0;          // operations a second, measured
  virtual std::string ceilings() const = 0;  // both in words
  virtual size_t cache_bytes() const = 0;    // what a body must exceed to come from memory
  // Seconds of one run of body, which queues ops and waits for nothing.
  virtual double Time(const std::function<void()>& body) = 0;
};

std::unique_ptr<BenchDevice> NewCpuBench(CpuIsa isa, int threads);
// FailedPrecondition: no GPU, or a build without CUDA.
absl::StatusOr<std::unique_ptr<BenchDevice>> NewCudaBench();

}  // namespace sluice
