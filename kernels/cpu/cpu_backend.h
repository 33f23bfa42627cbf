// Role: the CPU backend: bf16 weights, f32 activations, runtime dispatch over instruction sets, one
// persistent thread pool shared by all its queues.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "kernels/backend_group.h"

namespace sluice {

enum class CpuIsa { kAvx2, kAvx512, kAvx512Bf16 };

absl::StatusOr<CpuIsa> ParseCpuIsa(absl::string_view name);  // "avx2", "avx512", "avx512_bf16"
bool CpuSupports(CpuIsa isa);
// The fastest measured of this machine's; SLUICE_CHECKs that AVX2 and FMA exist.
CpuIsa BestCpuIsa();

struct CpuOptions {
  CpuIsa isa = BestCpuIsa();
  int threads = 0;  // 0: one per core this process may run on
};

// InvalidArgument if the machine lacks the instruction set.
absl::StatusOr<std::unique_ptr<Backend>> NewCpuBackend(const CpuOptions& options);

// Ranks of one model in one process that share the threads, each at least one. Nothing is pinned to cores or
// memory nodes: this is what makes tensor parallelism testable without GPUs, not what makes CPUs faster.
absl::StatusOr<std::unique_ptr<BackendGroup>> NewCpuGroup(const CpuOptions& options, int ranks);

}  // namespace sluice
