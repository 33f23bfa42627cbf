// The machines over real UCX: rows arrive bit for bit, and a peer that goes away in the middle of a slab
// leaves nothing behind.
#include <gtest/gtest.h>

#include "tests/support/handoff_sim.h"

namespace sluice {
namespace {

// Simulated time goes slowly, because UCX lives in real time.
constexpr absl::Duration kStep = absl::Microseconds(20);

class HandoffOverUcx : public ::testing::TestWithParam<std::string> {
 protected:
  static SimOptions Options(const std::string& transport) {
    SimOptions options;
    options.shape = {4, 8, 2, 64, DType::kBF16};
    options.slot_bytes = 64 << 10;
    options.transport = transport;
    return options;
  }
  void Connect(int p, int d) {
    PeerId peer = sim_.Connect(p, d);
    ASSERT_TRUE(
        sim_.RunUntil([&] { return sim_.prefill(p).sender->peer_ready(peer); }, absl::Seconds(60), kStep));
    EXPECT_GT(sim_.prefill(p).rates.at(peer), 0);
  }
  void Commit(int p, int d, const HandoffKey& key) {
    ASSERT_TRUE(sim_.Start(p, d, key).ok());
    sim_.RunAll(p, key);
    ASSERT_TRUE(sim_.RunUntil([&] { return sim_.has_result(p, key); }, absl::Seconds(60), kStep));
    const HandoffResult& result = sim_.prefill(p).results.at(key);
    EXPECT_TRUE(result.committed()) << ReasonName(result.reason) << result.detail;
    EXPECT_EQ(sim_.Compare(d, key), "");
  }
  HandoffSim sim_{Options(GetParam()), 1, 2};
};

TEST_P(HandoffOverUcx, RowsArriveBitForBit) {
  Connect(0, 0);
  Connect(0, 1);
  sim_.AddSource("a", 4000, 2000, 1);
  sim_.AddSource("b", 4000, 1000, 2);
  Commit(0, 0, {"a", 1});
  Commit(0, 1, {"b", 1});
  EXPECT_TRUE(sim_.RunUntil([&] { return sim_.Leaks().empty(); }, absl::Seconds(10), kStep)) << sim_.Leaks();
}

TEST_P(HandoffOverUcx, DecodeGoesAwayMidStream) {
  Connect(0, 0);
  Connect(0, 1);
  sim_.AddSource("a", 4000, 3000, 1);
  ASSERT_TRUE(sim_.Start(0, 0, {"a", 1}).ok());
  sim_.RunAll(0, {"a", 1});
  ASSERT_TRUE(sim_.RunUntil([&] { return sim_.decode(0).scatters > 0; }, absl::Seconds(60), kStep));
  sim_.RestartDecode(0);
  EXPECT_EQ(sim_.prefill(0).results.at({"a", 1}).reason, HandoffReason::kPeerLost);
  Commit(0, 1, {"a", 2});
  Connect(0, 0);
  Commit(0, 0, {"a", 3});
  EXPECT_TRUE(sim_.RunUntil([&] { return sim_.Leaks().empty(); }, absl::Seconds(60), kStep)) << sim_.Leaks();
}

TEST_P(HandoffOverUcx, DamagedSlabIsSentAgain) {
  Connect(0, 0);
  sim_.AddSource("a", 1000, 500, 1);
  sim_.prefill(0).transport->corrupt_pushes = 1;
  Commit(0, 0, {"a", 1});
  EXPECT_EQ(sim_.prefill(0).results.at({"a", 1}).stats.retries, 1);
}

INSTANTIATE_TEST_SUITE_P(Paths, HandoffOverUcx, ::testing::Values("ucx", "ucx-shm"),
                         [](const auto& info) { return info.param == "ucx" ? "Tcp" : "SharedMemory"; });

}  // namespace
}  // namespace sluice
