// What one call on all ranks promises: sums with the same bits everywhere, and one error for all.
#include "kernels/backend_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/make_backend.h"

namespace sluice {
namespace {

// "cpu", or what SLUICE_TEST_DEVICE says, with as many ranks as the machine has GPUs.
class Group : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const char* device = std::getenv("SLUICE_TEST_DEVICE");
    const bool gpu = device != nullptr && std::string(device) != "cpu";
    if (gpu && CountGpus() < GetParam()) GTEST_SKIP() << "needs " << GetParam() << " GPUs";
    auto group = MakeBackendGroup(gpu ? device : "cpu", {}, GetParam());
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
    for (int rank = 0; rank < group_->size(); ++rank) ops_.push_back(group_->rank(rank)->NewOps());
  }

  // Every rank's x after AllReduce of inputs[rank].
  std::vector<std::vector<float>> Sum(const std::vector<std::vector<float>>& inputs) {
    std::vector<std::vector<float>> outputs(inputs.size(), std::vector<float>(inputs[0].size()));
    const absl::Status status = group_->Run([&](int rank) -> absl::Status {
      const auto n = static_cast<int64_t>(inputs[rank].size());
      auto memory = group_->rank(rank)->Allocate(n * sizeof(float));
      if (!memory.ok()) return memory.status();
      const TensorView x = memory->View(DType::kF32, {n});
      ops_[rank]->CopyIn(inputs[rank].data(), x);
      ops_[rank]->AllReduce(x);
      ops_[rank]->CopyOut(x, outputs[rank].data());
      return ops_[rank]->Sync();
    });
    EXPECT_TRUE(status.ok()) << status;
    return outputs;
  }

  std::unique_ptr<BackendGroup> group_;
  std::vector<std::unique_ptr<Ops>> ops_;
};

TEST_P(Group, AllRanksHoldTheSameSum) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int n : {1, 3, 1000, 4096, 70000}) {
    std::vector<std::vector<float>> inputs(GetParam(), std::vector<float>(n));
    for (auto& x : inputs)
      for (float& value : x) value = normal(random);
    const auto outputs = Sum(inputs);
    for (const auto& x : outputs)
      EXPECT_EQ(std::memcmp(x.data(), outputs[0].data(), n * sizeof(float)), 0) << n;
    for (int i = 0; i < n; ++i) {
      double sum = 0, size = 0;
      for (const auto& x : inputs) {
        sum += x[i];
        size += std::abs(x[i]);
      }
      ASSERT_NEAR(outputs[0][i], sum, size * 1e-6) << n << " values, " << i;
    }
  }
}

TEST_P(Group, RanksReachEachOthersMemory) {
  std::vector<Buffer> memory;
  std::vector<int32_t> ids(64);
  std::iota(ids.begin(), ids.end(), 7);
  for (int rank = 0; rank < group_->size(); ++rank) {
    auto buffer = group_->rank(rank)->Allocate(ids.size() * sizeof(int32_t));
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    memory.push_back(*std::move(buffer));
  }
  const auto view = [&](int rank) { return memory[rank].View(DType::kI32, {8, 8}); };
  ops_[0]->CopyIn(ids.data(), view(0));
  ASSERT_TRUE(ops_[0]->Sync().ok());
  // Each rank pulls a part from the rank before with a kernel, the rest by a copy.
  for (int rank = 1; rank < group_->size(); ++rank) {
    ops_[rank]->Copy(view(rank - 1).Slice(1, 0, 3), view(rank).Slice(1, 0, 3));
    ops_[rank]->Copy(view(rank - 1).Slice(1, 3, 8), view(rank).Slice(1, 3, 8));
    ASSERT_TRUE(ops_[rank]->Sync().ok());
  }
  std::vector<int32_t> out(ids.size());
  ops_[0]->CopyOut(view(group_->size() - 1), out.data());
  ASSERT_TRUE(ops_[0]->Sync().ok());
  EXPECT_EQ(out, ids);
}

TEST_P(Group, TheFirstErrorEndsTheSumsOfAll) {
  std::vector<Buffer> memory;
  for (int rank = 0; rank < group_->size(); ++rank)
    memory.push_back(*group_->rank(rank)->Allocate(1000 * sizeof(float)));
  Sum(std::vector<std::vector<float>>(GetParam(), {1, 2, 3}));
  for (int bad = 0; bad < GetParam(); ++bad) {
    const absl::Status status = group_->Run([&](int rank) -> absl::Status {
      if (rank == bad) return absl::DataLossError("this rank is out");
      ops_[rank]->AllReduce(memory[rank].View(DType::kF32, {1000}));
      return ops_[rank]->Sync();
    });
    EXPECT_EQ(status, absl::DataLossError("this rank is out")) << bad;
    const auto again = Sum(std::vector<std::vector<float>>(GetParam(), {1, 2, 3}));
    for (const auto& x : again)
      EXPECT_EQ(x, (std::vector<float>{1.f * GetParam(), 2.f * GetParam(), 3.f * GetParam()})) << bad;
  }
}

TEST_P(Group, ManyRunsEachCallEveryRankOnce) {
  std::vector<int> calls(GetParam());
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(group_
                    ->Run([&](int rank) {
                      ++calls[rank];
                      return absl::OkStatus();
                    })
                    .ok());
  }
  EXPECT_EQ(calls, std::vector<int>(GetParam(), 500));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Group, testing::Values(2, 3, 4));

TEST(GroupOfOne, RunsOnThisThreadAndSumsNothing) {
  auto group = MakeBackendGroup("cpu", {}, 1);
  ASSERT_TRUE(group.ok()) << group.status();
  float x[2] = {1, 2};
  const auto ops = (*group)->rank(0)->NewOps();
  EXPECT_EQ((*group)->Run([&](int rank) -> absl::Status {
    EXPECT_EQ(rank, 0);
    ops->AllReduce(TensorView::Contiguous(x, DType::kF32, {2}));
    return absl::DataLossError("whatever");
  }),
            absl::DataLossError("whatever"));
  EXPECT_EQ(x[0], 1);
  EXPECT_EQ(x[1], 2);
}

}  // namespace
}  // namespace sluice
