// What the CPU backend promises beyond the ops: threads, memory, errors.
#include "kernels/cpu/cpu_backend.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_memory.h"
#include "kernels/cpu/thread_pool.h"

namespace sluice {
namespace {

TEST(ThreadPoolTest, RunsEveryTaskOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 300; ++round) {
      const int n = round % 17;
      std::vector<std::atomic<int>> runs(n);
      pool.Run(n, [&](int task, int thread) {
        ASSERT_LT(thread, threads);
        runs[task].fetch_add(1);
      });
      for (int i = 0; i < n; ++i) ASSERT_EQ(runs[i].load(), 1);
    }
  }
}

TEST(ThreadPoolTest, CallersTakeTurns) {
  ThreadPool pool(3);
  std::atomic<int> inside{0}, most{0};
  auto caller = [&] {
    std::vector<int> sums(8);
    for (int round = 1; round <= 200; ++round) {
      pool.Run(8, [&](int task, int) { sums[task] += round; });
      pool.Run(1, [&](int, int) {
        int now = ++inside;
        if (now > most) most = now;
        --inside;
      });
    }
    for (int sum : sums) EXPECT_EQ(sum, 200 * 201 / 2);
  };
  std::thread a(caller), b(caller), c(caller);
  a.join();
  b.join();
  c.join();
  EXPECT_EQ(most, 1);
}

TEST(CpuBackendTest, ParsesInstructionSets) {
  EXPECT_EQ(*ParseCpuIsa("avx2"), CpuIsa::kAvx2);
  EXPECT_EQ(*ParseCpuIsa("avx512_bf16"), CpuIsa::kAvx512Bf16);
  EXPECT_EQ(ParseCpuIsa("neon").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CpuBackendTest, RefusesWhatTheMachineLacks) {
  for (CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16}) {
    CpuOptions options;
    options.isa = isa;
    EXPECT_EQ(NewCpuBackend(options).status().code(),
              CpuSupports(isa) ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument);
  }
  CpuOptions options;
  options.threads = -1;
  EXPECT_EQ(NewCpuBackend(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CpuBackendTest, AllocatesAlignedMemoryOrSaysHowMuchItLacks) {
  CpuOptions options;
  auto backend = *NewCpuBackend(options);
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{5} << 20}) {
    Buffer buffer = *backend->Allocate(bytes);
    EXPECT_NE(buffer.data(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    EXPECT_EQ(buffer.bytes(), bytes);
  }
  absl::Status status = backend->Allocate(size_t{1} << 60).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("1152921504606846976"));
}

TEST(CpuBackendTest, PackMatrixPassesOnTheReadersError) {
  CpuOptions options;
  auto backend = *NewCpuBackend(options);
  int64_t next = 0;
  auto matrix = backend->PackMatrix(1000, 8, [&](int64_t begin, int64_t end, float*) {
    EXPECT_EQ(begin, next);
    EXPECT_LE(end, 1000);
    next = end;
    return begin < 500 ? absl::OkStatus() : absl::DataLossError("cut short");
  });
  EXPECT_EQ(matrix.status().code(), absl::StatusCode::kDataLoss);
}

class CpuMemoryTest : public testing::Test {
 protected:
  void SetUp() override { root_ = testing::TempDir() + "/cpu_memory_" + std::to_string(::getpid()); }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(CpuMemoryTest, TheMachineIsTheLimitWithoutACgroup) {
  Write("/proc/meminfo", "MemTotal:  1000 kB\nMemFree:  10 kB\nMemAvailable:  600 kB\nBuffers: 1 kB\n");
  DeviceMemory memory = ReadCpuMemory(root_);
  EXPECT_EQ(memory.total_bytes, 1000u << 10);
  EXPECT_EQ(memory.available_bytes, 600u << 10);
}

TEST_F(CpuMemoryTest, TheTightestLevelOfTheCgroupCounts) {
  Write("/proc/meminfo", "MemTotal:  1000 kB\nMemAvailable:  600 kB\n");
  Write("/proc/self/cgroup", "0::/pod/box\n");
  Write("/sys/fs/cgroup/pod/box/memory.max", "max\n");
  Write("/sys/fs/cgroup/pod/box/memory.current", "5000\n");
  Write("/sys/fs/cgroup/pod/memory.max", "204800\n");
  Write("/sys/fs/cgroup/pod/memory.current", "104800\n");
  DeviceMemory memory = ReadCpuMemory(root_);
  EXPECT_EQ(memory.total_bytes, 204800u);
  EXPECT_EQ(memory.available_bytes, 100000u);
}

TEST_F(CpuMemoryTest, VersionOneCgroups) {
  Write("/proc/meminfo", "MemTotal:  1000 kB\nMemAvailable:  600 kB\n");
  Write("/proc/self/cgroup", "5:cpu:/x\n4:memory:/box\n");
  Write("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "102400\n");
  Write("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "2400\n");
  DeviceMemory memory = ReadCpuMemory(root_);
  EXPECT_EQ(memory.total_bytes, 102400u);
  EXPECT_EQ(memory.available_bytes, 100000u);
}

}  // namespace
}  // namespace sluice
