#include "kernels/cpu/cpu_backend.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cpu/cpu_memory.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/cpu/thread_pool.h"

namespace sluice {
namespace {

constexpr const char* kIsaNames[] = {"avx2", "avx512", "avx512_bf16"};

// The bf16 set differs from AVX-512 in its matmul only.
constexpr IsaKernels kIsaKernels[] = {
    {&avx2::kMatMul, &avx2::kAttention, &avx2::kDecode, &avx2::kRow},
    {&avx512::kMatMul, &avx512::kAttention, &avx512::kDecode, &avx512::kRow},
    {&avx512_bf16::kMatMul, &avx512::kAttention, &avx512::kDecode, &avx512::kRow},
};

int CoresOfThisProcess() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? std::max(1, CPU_COUNT(&cores)) : 1;
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(CpuIsa isa, int threads, std::shared_ptr<CpuLink> link, int rank)
      : isa_(isa), link_(std::move(link)), rank_(rank), pool_(threads) {}

  std::string description() const override {
    return absl::StrCat("cpu, ", kIsaNames[static_cast<int>(isa_)], ", ", pool_.threads(), " threads");
  }
  DeviceMemory memory() const override { return ReadCpuMemory("/"); }
  absl::StatusOr<Buffer> Allocate(size_t bytes) override { return AllocateCpuMemory(bytes); }
  absl::StatusOr<Buffer> AllocateExposed(size_t bytes) override { return AllocateCpuMemory(bytes); }
  bool is_gpu() const override { return false; }
  void Enter() override {}
  absl::Status Drain() override { return absl::OkStatus(); }
  absl::StatusOr<Buffer> MapHost(void* data, size_t bytes) override {
    return Buffer(data, bytes, [](void*) {});
  }

  absl::StatusOr<std::unique_ptr<Matrix>> PackMatrix(int64_t rows, int64_t cols,
                                                     const ReadRows& read) override {
    SLUICE_CHECK(rows > 0 && cols > 0);
    SLUICE_ASSIGN_OR_RETURN(Buffer memory, AllocateCpuMemory(PackedMatrix::packed_bytes(rows, cols)));
    return PackedMatrix::Build(rows, cols, std::move(memory), read);
  }

  std::unique_ptr<Ops> NewOps() override {
    return std::make_unique<CpuOps>(kIsaKernels[static_cast<int>(isa_)], &pool_, link_.get(), rank_);
  }
  DType product_input() const override { return DType::kF32; }
  int64_t rows_at_once() const override { return 1024; }
  absl::Duration waiting() const override { return absl::ZeroDuration(); }

 private:
  const CpuIsa isa_;
  const std::shared_ptr<CpuLink> link_;
  const int rank_;
  ThreadPool pool_;
};

absl::StatusOr<int> ThreadsOf(const CpuOptions& options) {
  if (!CpuSupports(options.isa))
    return absl::InvalidArgumentError(absl::StrCat("this machine has no ",
                                                   kIsaNames[static_cast<int>(options.isa)],
                                                   ": choose a lower instruction set"));
  if (options.threads < 0)
    return absl::InvalidArgumentError(absl::StrCat("threads: ", options.threads, ": use 0 or more"));
  return options.threads > 0 ? options.threads : CoresOfThisProcess();
}

}  // namespace

absl::StatusOr<CpuIsa> ParseCpuIsa(absl::string_view name) {
  for (int i = 0; i < 3; ++i)
    if (name == kIsaNames[i]) return static_cast<CpuIsa>(i);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown instruction set \"", name, "\": use avx2, avx512 or avx512_bf16"));
}

bool CpuSupports(CpuIsa isa) {
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case CpuIsa::kAvx2:
      return avx2;
    case CpuIsa::kAvx512:
      return avx512;
    case CpuIsa::kAvx512Bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16");
  }
  return false;
}

CpuIsa BestCpuIsa() {
  // Not kAvx512Bf16: it rounds activations, and tests/bench/README.md measured it slower for many rows.
  if (CpuSupports(CpuIsa::kAvx512)) return CpuIsa::kAvx512;
  SLUICE_CHECK(CpuSupports(CpuIsa::kAvx2));
  return CpuIsa::kAvx2;
}

absl::StatusOr<std::unique_ptr<Backend>> NewCpuBackend(const CpuOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const int threads, ThreadsOf(options));
  return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(options.isa, threads, nullptr, 0));
}

absl::StatusOr<std::unique_ptr<BackendGroup>> NewCpuGroup(const CpuOptions& options, int ranks) {
  SLUICE_CHECK(ranks > 1);
  SLUICE_ASSIGN_OR_RETURN(const int threads, ThreadsOf(options));
  auto link = std::make_shared<CpuLink>(ranks);
  std::vector<std::unique_ptr<Backend>> backends;
  for (int rank = 0; rank < ranks; ++rank)
    backends.push_back(std::make_unique<CpuBackend>(options.isa, std::max(1, threads / ranks), link, rank));
  return std::make_unique<BackendGroup>(std::move(backends), link);
}

}  // namespace sluice
