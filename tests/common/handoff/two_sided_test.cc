// What a two-sided transport adds to the failure matrix: receives that are posted before anything is pushed,
// in one order, and that only their push or the end of the connection takes back.
#include <gtest/gtest.h>

#include "tests/support/handoff_sim.h"

namespace sluice {
namespace {

class TwoSided : public ::testing::Test {
 protected:
  static SimOptions Options() {
    SimOptions options;
    options.transport = "paired";
    return options;
  }
  TwoSided() { sim_.AddSource("a", 100, 60, 1); }
  void Connect() {
    sim_.ConnectReady(0, 0);
    pushes_ = sim_.prefill(0).transport->pushes;
  }
  bool Ended(const HandoffKey& key, absl::Duration limit = absl::Seconds(20)) {
    return sim_.RunUntil([&] { return sim_.has_result(0, key); }, limit);
  }
  void Commit(const HandoffKey& key) {
    ASSERT_TRUE(sim_.Start(0, 0, key).ok());
    sim_.RunAll(0, key);
    ASSERT_TRUE(Ended(key));
    const HandoffResult& result = sim_.prefill(0).results.at(key);
    EXPECT_TRUE(result.committed()) << ReasonName(result.reason) << result.detail;
    EXPECT_EQ(sim_.Compare(0, key), "");
  }
  void ExpectNoLeaks() {
    sim_.fate = nullptr;
    EXPECT_TRUE(
        sim_.RunUntil([&] { return sim_.Leaks().empty(); }, absl::Seconds(60), absl::Milliseconds(20)))
        << sim_.Leaks();
  }
  // The first `n` SlabArmed are lost.
  void LoseArmed(int n) {
    sim_.fate = [n](const HandoffMessage& m, bool) mutable {
      return HandoffSim::Fate{std::holds_alternative<SlabArmed>(m) && n-- > 0 ? 0 : 1, absl::ZeroDuration()};
    };
  }

  HandoffSim sim_{Options(), 1, 1};
  const HandoffKey a1_{"a", 1}, a2_{"a", 2};
  int pushes_ = 0;  // of the probe
};

TEST_F(TwoSided, NothingIsPushedBeforeItsReceiveIsPosted) {
  Connect();
  sim_.fate = [](const HandoffMessage& m, bool) {
    return HandoffSim::Fate{
        1, std::holds_alternative<SlabArmed>(m) ? absl::Milliseconds(300) : absl::ZeroDuration()};
  };
  ASSERT_TRUE(sim_.Start(0, 0, a1_).ok());
  sim_.RunAll(0, a1_);
  sim_.RunFor(absl::Milliseconds(250));
  EXPECT_GT(sim_.delivered(HandoffMessage(SlabReady()).index()), 0);
  EXPECT_EQ(sim_.prefill(0).transport->pushes, pushes_);
  ASSERT_TRUE(Ended(a1_));
  EXPECT_TRUE(sim_.prefill(0).results.at(a1_).committed());
  EXPECT_EQ(sim_.Compare(0, a1_), "");
  ExpectNoLeaks();
}

// The push behind a lost word must not land in the receive of the lost one.
TEST_F(TwoSided, ALostArmedIsSaidAgainAndTheOrderHolds) {
  Connect();
  LoseArmed(1);
  Commit(a1_);
  EXPECT_EQ(sim_.prefill(0).results.at(a1_).stats.retries, 0);
  EXPECT_EQ(sim_.decode(0).receiver->integrity_mismatches(), 0);
  EXPECT_TRUE(sim_.prefill(0).down.empty());
  ExpectNoLeaks();
}

TEST_F(TwoSided, TheDeadlineCountsFromSlabReadyAndEndsTheConnection) {
  Connect();
  LoseArmed(1 << 20);
  ASSERT_TRUE(sim_.Start(0, 0, a1_).ok());
  sim_.RunAll(0, a1_);
  const absl::Time begin = sim_.now();
  ASSERT_TRUE(Ended(a1_, absl::Seconds(4)));
  EXPECT_GE(sim_.now() - begin, sim_.options().sender.progress_timeout);
  const HandoffResult& result = sim_.prefill(0).results.at(a1_);
  EXPECT_EQ(result.reason, HandoffReason::kNoProgress);
  EXPECT_TRUE(result.retained());
  sim_.Step();
  EXPECT_EQ(sim_.prefill(0).down.at(sim_.peer(0, 0)).code(), absl::StatusCode::kUnavailable);
  sim_.fate = nullptr;
  sim_.Disconnect(0, 0);
  Connect();
  Commit(a2_);
  ExpectNoLeaks();
}

TEST_F(TwoSided, ACancelledAttemptLetsPostedReceivesEnd) {
  Connect();
  sim_.fate = [](const HandoffMessage& m, bool) {
    return HandoffSim::Fate{
        1, std::holds_alternative<SlabArmed>(m) ? absl::Milliseconds(50) : absl::ZeroDuration()};
  };
  ASSERT_TRUE(sim_.Start(0, 0, a1_).ok());
  sim_.RunAll(0, a1_);
  sim_.RunFor(absl::Milliseconds(20));  // receives are posted, the sender does not know it yet
  sim_.prefill(0).sender->Abort(a1_, "cancelled", sim_.now());
  sim_.RunFor(absl::Milliseconds(200));
  EXPECT_GT(sim_.prefill(0).transport->pushes, pushes_);
  EXPECT_EQ(sim_.decode(0).released.at(a1_), HandoffReason::kPeerAborted);
  EXPECT_TRUE(sim_.prefill(0).down.empty());
  Commit(a2_);  // over the same connection
  ExpectNoLeaks();
}

TEST_F(TwoSided, ACancelOnDecodeLetsPostedReceivesEnd) {
  Connect();
  sim_.prefill(0).transport->bytes_per_second = 2000;  // a slab takes a quarter of a second
  ASSERT_TRUE(sim_.Start(0, 0, a1_).ok());
  sim_.RunAll(0, a1_);
  sim_.RunFor(absl::Milliseconds(20));
  sim_.decode(0).receiver->Abort(a1_, "cancelled", sim_.now());
  ASSERT_TRUE(Ended(a1_));
  EXPECT_TRUE(sim_.RunUntil([&] { return sim_.Leaks().empty(); }, absl::Seconds(5))) << sim_.Leaks();
  sim_.prefill(0).transport->bytes_per_second = 0;
  EXPECT_TRUE(sim_.prefill(0).down.empty());
  Commit(a2_);
}

TEST_F(TwoSided, AReceiverThatCannotPostEndsTheConnection) {
  Connect();
  sim_.decode(0).transport->fail_expects = true;
  ASSERT_TRUE(sim_.Start(0, 0, a1_).ok());
  sim_.RunAll(0, a1_);
  ASSERT_TRUE(Ended(a1_));
  EXPECT_EQ(sim_.prefill(0).results.at(a1_).reason, HandoffReason::kTransport);
  sim_.Step();
  EXPECT_EQ(sim_.prefill(0).down.at(sim_.peer(0, 0)).code(), absl::StatusCode::kUnavailable);
  sim_.decode(0).transport->fail_expects = false;
  sim_.Disconnect(0, 0);
  Connect();
  Commit(a2_);
  ExpectNoLeaks();
}

TEST_F(TwoSided, AnEndThatDiesInTheMiddleLeavesTheOtherWhole) {
  Connect();
  sim_.prefill(0).transport->bytes_per_second = 2000;
  ASSERT_TRUE(sim_.Start(0, 0, a1_).ok());
  sim_.RunAll(0, a1_);
  sim_.RunFor(absl::Milliseconds(100));
  sim_.RestartDecode(0);
  ASSERT_TRUE(Ended(a1_));
  EXPECT_EQ(sim_.prefill(0).results.at(a1_).reason, HandoffReason::kPeerLost);
  sim_.prefill(0).transport->bytes_per_second = 0;
  Connect();
  ASSERT_TRUE(sim_.Start(0, 0, a2_).ok());
  sim_.RunAll(0, a2_);
  sim_.Step();
  sim_.Step();
  sim_.RestartPrefill(0);
  EXPECT_EQ(sim_.decode(0).reserved.size(), 0u);
  Connect();
  Commit({"a", 3});
  ExpectNoLeaks();
}

}  // namespace
}  // namespace sluice
