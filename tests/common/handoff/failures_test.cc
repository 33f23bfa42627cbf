// The failure matrix of the hand-off: one row, one test or more. Two prefill and two decode machines, queues
// with faults, a manual clock.
#include <gtest/gtest.h>

#include "tests/support/handoff_sim.h"

namespace sluice {
namespace {

// Over a one-sided and a two-sided transport.
class HandoffFailures : public ::testing::TestWithParam<std::string> {
 protected:
  HandoffFailures() { Build(SimOptions()); }
  void Build(SimOptions options) {
    options.transport = GetParam();
    sim_ = std::make_unique<HandoffSim>(options, 2, 2);
  }
  static bool two_sided() { return GetParam() == "paired"; }
  HandoffSim& sim() { return *sim_; }
  const HandoffResult& Result(int p, const HandoffKey& key) { return sim().prefill(p).results.at(key); }
  void WaitForResult(int p, const HandoffKey& key, absl::Duration limit = absl::Seconds(90)) {
    ASSERT_TRUE(sim().RunUntil([&] { return sim().has_result(p, key); }, limit));
  }
  // One attempt from Start to Commit.
  void Commit(int p, int d, const HandoffKey& key) {
    ASSERT_TRUE(sim().Start(p, d, key).ok());
    sim().RunAll(p, key);
    WaitForResult(p, key);
    EXPECT_TRUE(Result(p, key).committed()) << ReasonName(Result(p, key).reason) << Result(p, key).detail;
    EXPECT_EQ(sim().Compare(d, key), "");
  }
  // Everything drains: streams stay up, resends are answered.
  void ExpectNoLeaks() {
    sim().fate = nullptr;
    sim().RunUntil([&] { return sim().Leaks().empty(); }, absl::Seconds(120), absl::Milliseconds(50));
    EXPECT_EQ(sim().Leaks(), "");
  }
  // Loses the first `n` messages of type M.
  template <class M>
  void Lose(int n = 1) {
    sim().fate = [n](const HandoffMessage& m, bool) mutable {
      return HandoffSim::Fate{std::holds_alternative<M>(m) && n-- > 0 ? 0 : 1, absl::ZeroDuration()};
    };
  }
  // Streaming, with layer 0 received and the rest not yet there.
  void StartStreaming(int p, int d, const HandoffKey& key) {
    ASSERT_TRUE(sim().Start(p, d, key).ok());
    sim().AddLayers(p, key, 0, 1);
    ASSERT_TRUE(sim().RunUntil([&] { return sim().decode(d).scatters > 0; }, absl::Seconds(1)));
  }

  const HandoffKey a1_{"a", 1}, a2_{"a", 2}, b1_{"b", 1};

 private:
  std::unique_ptr<HandoffSim> sim_;
};

INSTANTIATE_TEST_SUITE_P(Transports, HandoffFailures, ::testing::Values("", "paired"),
                         [](const auto& info) { return info.param.empty() ? "OneSided" : "TwoSided"; });

TEST_P(HandoffFailures, CommitsAndReturnsEverything) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  Commit(0, 0, a1_);
  EXPECT_GT(Result(0, a1_).stats.bytes, 0);
  EXPECT_GT(Result(0, a1_).stats.slabs, 3);
  EXPECT_EQ(Result(0, a1_).stats.retries, 0);
  const Seal& seal = sim().decode(0).seals.at(a1_);
  EXPECT_EQ(seal.logical_len, LogicalLen(100));
  EXPECT_EQ(seal.first_token, 42);
  EXPECT_EQ(seal.distinct_prompt_ids, (std::vector<int>{1, 2, 3}));
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, LayersStreamBeforeTheLastIsComputed) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  StartStreaming(0, 0, a1_);
  sim().RunFor(absl::Seconds(1));
  EXPECT_EQ(sim().prefill(0).sender->send_slots(sim().now()).busy, 0);
  EXPECT_FALSE(sim().has_result(0, a1_));
  sim().AddLayers(0, a1_, 1, 3);
  sim().Finish(0, a1_);
  WaitForResult(0, a1_);
  EXPECT_EQ(sim().Compare(0, a1_), "");
}

TEST_P(HandoffFailures, TheSealIsThereBeforeTheLastSlab) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 7, 1);  // a slab for each of 3 layers: no push waits for a slot
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  ASSERT_TRUE(sim().RunUntil([&] { return sim().decode(0).reserved.contains(a1_); }, absl::Seconds(1)));
  sim().prefill(0).transport->bytes_per_second = 4000;  // a tenth of a second for each
  sim().RunAll(0, a1_);
  const size_t seal = HandoffMessage(Seal()).index();
  ASSERT_TRUE(sim().RunUntil([&] { return sim().delivered(seal) > 0; }, absl::Milliseconds(50)));
  EXPECT_LT(sim().decode(0).scatters, 3);
  EXPECT_FALSE(sim().decode(0).ready.contains(a1_));
  WaitForResult(0, a1_);
  EXPECT_TRUE(Result(0, a1_).committed());
  EXPECT_EQ(sim().delivered(seal), 1);
  EXPECT_EQ(sim().Compare(0, a1_), "");
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, AnAttemptMayStartWhileThePeerShakesHands) {
  sim().Connect(0, 0);
  sim().AddSource("a", 100, 60, 1);
  Commit(0, 0, a1_);
  ExpectNoLeaks();
}

// --- P dies before Grant: D releases the reservation, the router pairs anew ---

TEST_P(HandoffFailures, PrefillDiesBeforeGrant) {
  sim().ConnectReady(0, 0);
  sim().ConnectReady(1, 0);
  sim().AddSource("a", 100, 60, 1);
  sim().fate = [](const HandoffMessage&, bool toward_decode) {
    return HandoffSim::Fate{1, toward_decode ? absl::ZeroDuration() : absl::Milliseconds(100)};
  };
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  ASSERT_TRUE(sim().RunUntil([&] { return sim().decode(0).reserved.contains(a1_); }, absl::Seconds(1)));
  sim().KillPrefill(0);
  EXPECT_EQ(sim().decode(0).released.at(a1_), HandoffReason::kPeerLost);
  sim().fate = nullptr;
  Commit(1, 0, a2_);
  ExpectNoLeaks();
}

// --- P dies mid-stream: D drains, another P serves a new attempt ---

TEST_P(HandoffFailures, PrefillDiesMidStream) {
  sim().ConnectReady(0, 0);
  sim().ConnectReady(1, 0);
  sim().AddSource("a", 100, 60, 1);
  StartStreaming(0, 0, a1_);
  sim().KillPrefill(0);
  EXPECT_EQ(sim().decode(0).released.at(a1_), HandoffReason::kPeerLost);
  EXPECT_EQ(sim().decode(0).transport->rings(), 1);  // the dead peer's ring is gone
  Commit(1, 0, a2_);
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, RingOfALostPeerIsQuarantinedUntilProvenIdle) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  StartStreaming(0, 0, a1_);
  sim().decode(0).transport->unprovable = true;
  sim().KillPrefill(0);
  EXPECT_TRUE(sim().decode(0).reserved.empty());  // pages were never exposed
  sim().RunFor(absl::Seconds(5), absl::Milliseconds(10));
  SlotCounts slots = sim().decode(0).receiver->slots(sim().now());
  EXPECT_EQ(slots.quarantined, sim().options().ring_slots);
  EXPECT_GE(slots.oldest_quarantine, absl::Seconds(5));
  EXPECT_EQ(sim().decode(0).transport->rings(), 1);
  sim().decode(0).transport->unprovable = false;
  sim().Step();
  EXPECT_EQ(sim().decode(0).transport->rings(), 0);
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, ALivingPeerSaysOnItsNextStreamThatTheLostRingIsIdle) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  StartStreaming(0, 0, a1_);
  sim().decode(0).transport->unprovable = true;
  sim().prefill(0).transport->unprovable = true;  // its own end is not through yet: it says nothing
  sim().Disconnect(0, 0);
  sim().RunFor(absl::Milliseconds(100));
  EXPECT_EQ(sim().decode(0).transport->rings(), 1);
  sim().ConnectReady(0, 0);
  EXPECT_EQ(sim().decode(0).transport->rings(), 2);
  sim().prefill(0).transport->unprovable = false;
  sim().Step();
  sim().Disconnect(0, 0);
  sim().Step();
  sim().ConnectReady(0, 0);
  EXPECT_EQ(sim().decode(0).transport->rings(), 1);
  Commit(0, 0, a2_);
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, APeerBelowTheFloorIsRefused) {
  SimOptions options;
  options.sender.min_bytes_per_second = 1e4;
  options.sender.handshake_timeout = absl::Minutes(1);
  Build(options);
  sim().prefill(0).transport->bytes_per_second = 1000;
  const PeerId slow = sim().Connect(0, 0);
  sim().RunFor(absl::Seconds(5));
  EXPECT_EQ(sim().prefill(0).down.at(slow).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LT(sim().prefill(0).rates.at(slow), options.sender.min_bytes_per_second);
  sim().prefill(0).transport->bytes_per_second = 0;
  sim().Disconnect(0, 0);
  sim().ConnectReady(0, 0);
}

TEST_P(HandoffFailures, PrefillHangsAndItsLeaseExpires) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  StartStreaming(0, 0, a1_);
  sim().prefill(0).hung = true;
  sim().RunFor(sim().options().receiver.lease + absl::Seconds(1), absl::Milliseconds(100));
  EXPECT_EQ(sim().decode(0).released.at(a1_), HandoffReason::kLeaseExpired);
  EXPECT_EQ(sim().decode(0).receiver->leases_expired(), 1);
  sim().prefill(0).hung = false;  // it wakes up and learns that it is late
  WaitForResult(0, a1_);
  EXPECT_TRUE(Result(0, a1_).retained());
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, LeaseOutlivesALongComputation) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  ASSERT_TRUE(sim().Start(0, 0, a1_, absl::Minutes(10)).ok());
  sim().RunFor(absl::Minutes(5), absl::Milliseconds(100));
  EXPECT_TRUE(sim().decode(0).reserved.contains(a1_));
  sim().RunAll(0, a1_);
  WaitForResult(0, a1_);
  EXPECT_TRUE(Result(0, a1_).committed());
}

// --- D dies mid-stream: P keeps the kept layers, a new attempt goes to another D ---

TEST_P(HandoffFailures, DecodeDiesMidStream) {
  sim().ConnectReady(0, 0);
  sim().ConnectReady(0, 1);
  sim().AddSource("a", 100, 60, 1);
  StartStreaming(0, 0, a1_);
  sim().KillDecode(0);
  ASSERT_TRUE(sim().has_result(0, a1_));
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kPeerLost);
  EXPECT_TRUE(Result(0, a1_).retained());
  Commit(0, 1, a2_);
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, DecodeRestartsAndFencesTheOldAttempt) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  StartStreaming(0, 0, a1_);
  std::vector<HandoffMessage> recorded;
  sim().fate = [&](const HandoffMessage& m, bool toward_decode) {
    if (toward_decode) recorded.push_back(m);
    return HandoffSim::Fate{};
  };
  sim().AddLayers(0, a1_, 1, 3);
  sim().Step();
  sim().RestartDecode(0);
  sim().fate = nullptr;
  sim().ConnectReady(0, 0);
  ASSERT_FALSE(recorded.empty());
  PeerId any(0);
  for (int i = 1; i < 100; ++i) {  // the sender's words of before the restart, on every peer id there is
    any = PeerId(i);
    for (const HandoffMessage& m : recorded) sim().decode(0).receiver->OnMessage(any, m, sim().now());
  }
  EXPECT_GT(sim().decode(0).receiver->fenced(), 0);
  EXPECT_EQ(sim().decode(0).scatters, 0);
  EXPECT_EQ(sim().decode(0).reserves, 0);
  Commit(0, 0, a2_);
}

TEST_P(HandoffFailures, OfferForAnEarlierIncarnationIsNotSent) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  OfferSpec spec;
  spec.key = a1_;
  spec.peer = sim().peer(0, 0);
  spec.dst_incarnation = "the one before";
  spec.n_prompt = 100;
  spec.ceiling.assign(6, 10);
  spec.deadline = sim().now() + absl::Seconds(5);
  sim().prefill(0).started.insert(a1_);
  ASSERT_TRUE(sim().prefill(0).sender->Start(spec, sim().now()).ok());
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kStale);
  sim().RunFor(absl::Seconds(1));
  EXPECT_EQ(sim().decode(0).reserves, 0);
  ExpectNoLeaks();
}

// --- D dies while decoding: the same kept layers serve a new attempt ---

TEST_P(HandoffFailures, DecodeDiesWhileDecoding) {
  sim().ConnectReady(0, 0);
  sim().ConnectReady(0, 1);
  sim().AddSource("a", 100, 60, 1);
  Commit(0, 0, a1_);
  sim().KillDecode(0);
  Commit(0, 1, a2_);
  EXPECT_FALSE(sim().Start(0, 1, a1_).ok());  // the attempt only goes up
  ExpectNoLeaks();
}

// --- The router dies: nobody cancels, deadlines and leases end both sides ---

TEST_P(HandoffFailures, RouterDies) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  ASSERT_TRUE(sim().Start(0, 0, a1_, absl::Seconds(40)).ok());
  sim().AddLayers(0, a1_, 0, 1);
  sim().RunFor(absl::Seconds(39), absl::Milliseconds(50));
  EXPECT_EQ(sim().decode(0).receiver->live(), 1);
  sim().RunFor(absl::Seconds(2), absl::Milliseconds(50));
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kDeadline);
  EXPECT_EQ(sim().decode(0).receiver->live(), 0);
  ExpectNoLeaks();
}

// --- Lost Commit: Seal again, Commit replayed ---

TEST_P(HandoffFailures, LostCommitIsReplayed) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  Lose<sluice::Commit>(2);
  Commit(0, 0, a1_);  // Ready twice would fail inside
  EXPECT_EQ(sim().decode(0).ready.size(), 1u);
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, CommitLostWithItsStreamIsReplayedOnTheNext) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  Lose<sluice::Commit>();
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  sim().RunAll(0, a1_);
  ASSERT_TRUE(sim().RunUntil([&] { return sim().decode(0).ready.contains(a1_); }, absl::Seconds(1)));
  sim().Step();
  sim().Disconnect(0, 0);
  EXPECT_FALSE(sim().has_result(0, a1_));
  sim().ConnectReady(0, 0);
  WaitForResult(0, a1_);
  EXPECT_TRUE(Result(0, a1_).committed());
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, CommitThatNeverComesBackEndsAsRetained) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  Lose<sluice::Commit>(1000);
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  sim().RunAll(0, a1_);
  ASSERT_TRUE(sim().RunUntil([&] { return sim().decode(0).ready.contains(a1_); }, absl::Seconds(1)));
  sim().Step();
  sim().RestartDecode(0);
  sim().ConnectReady(0, 0);  // another incarnation: it cannot know
  WaitForResult(0, a1_, absl::Seconds(3));
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kPeerLost);
  EXPECT_TRUE(Result(0, a1_).retained());
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, LostSealIsSentAgain) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  Lose<Seal>();
  Commit(0, 0, a1_);
}

// --- Duplicates: the stored result, no side effect ---

TEST_P(HandoffFailures, DuplicatesHaveNoSideEffect) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  Commit(0, 0, a1_);
  int slabs = sim().decode(0).scatters;
  sim().AddSource("b", 100, 60, 1);
  sim().fate = [](const HandoffMessage&, bool) { return HandoffSim::Fate{3, absl::ZeroDuration()}; };
  Commit(0, 0, b1_);
  EXPECT_EQ(sim().decode(0).scatters, 2 * slabs);
  EXPECT_EQ(sim().decode(0).reserves, 2);
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, OfferOfACommittedAttemptGetsItsCommit) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  std::vector<HandoffMessage> offers;
  sim().fate = [&](const HandoffMessage& m, bool) {
    if (std::holds_alternative<Offer>(m)) offers.push_back(m);
    return HandoffSim::Fate{};
  };
  Commit(0, 0, a1_);
  int64_t commits = sim().delivered(HandoffMessage(sluice::Commit()).index());
  sim().decode(0).receiver->OnMessage(PeerId(sim().peer(0, 0).value() + 1), offers.at(0), sim().now());
  sim().Step();
  EXPECT_EQ(sim().delivered(HandoffMessage(sluice::Commit()).index()), commits + 1);
  EXPECT_EQ(sim().decode(0).reserves, 1);
}

// --- The client cancels: queue, prefill, stream, decode ---

TEST_P(HandoffFailures, CancelBeforeThePeerIsReady) {
  sim().Connect(0, 0);
  sim().AddSource("a", 100, 60, 1);
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  sim().prefill(0).sender->Abort(a1_, "cancelled", sim().now());
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kAborted);
  EXPECT_FALSE(Result(0, a1_).retained());
  sim().RunFor(absl::Seconds(1));
  EXPECT_EQ(sim().decode(0).reserves, 0);
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, CancelMidStream) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  StartStreaming(0, 0, a1_);
  sim().AddLayers(0, a1_, 1, 2);
  sim().Step();
  int scatters = sim().decode(0).scatters;
  sim().prefill(0).sender->Abort(a1_, "cancelled", sim().now());
  sim().RunFor(absl::Milliseconds(20));
  EXPECT_EQ(sim().decode(0).released.at(a1_), HandoffReason::kPeerAborted);
  EXPECT_LE(sim().decode(0).scatters, scatters + sim().options().ring_slots);
  EXPECT_TRUE(sim().prefill(0).sender->AddLayer(a1_, LayerId(2), &sim().source("a")[2]).ok());  // ignored
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, CancelOnDecodeMidStream) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  StartStreaming(0, 0, a1_);
  sim().decode(0).receiver->Abort(a1_, "cancelled", sim().now());
  EXPECT_EQ(sim().decode(0).released.at(a1_), HandoffReason::kAborted);
  EXPECT_EQ(sim().decode(0).receiver->draining(), 1);
  WaitForResult(0, a1_);
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kPeerAborted);
  sim().RunFor(absl::Milliseconds(20));
  EXPECT_EQ(sim().decode(0).receiver->draining(), 0);  // AbortAck came
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, CancelBeforeTheOfferLeavesATombstone) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  sim().decode(0).receiver->Abort(a1_, "cancelled", sim().now());
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  WaitForResult(0, a1_);
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kStale);
  EXPECT_EQ(sim().decode(0).reserves, 0);
  Commit(0, 0, a2_);  // a later attempt is welcome
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, TombstonesAreForgotten) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  sim().decode(0).receiver->Abort(a1_, "cancelled", sim().now());
  sim().RunFor(sim().options().receiver.result_ttl, absl::Seconds(1));
  sim().RunFor(absl::Seconds(1));
  Commit(0, 0, a1_);
}

TEST_P(HandoffFailures, AbortAfterCommitChangesNothing) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  Lose<sluice::Commit>(1000);
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  sim().RunAll(0, a1_);
  ASSERT_TRUE(sim().RunUntil([&] { return sim().decode(0).ready.contains(a1_); }, absl::Seconds(1)));
  sim().prefill(0).sender->Abort(a1_, "cancelled", sim().now());
  sim().RunFor(absl::Seconds(1));
  EXPECT_TRUE(sim().decode(0).ready.contains(a1_));
  EXPECT_TRUE(sim().decode(0).released.empty());
  ExpectNoLeaks();
}

// --- A slow, healthy network: deadlines scale ---

TEST_P(HandoffFailures, SlowNetworkIsNotDead) {
  SimOptions options;
  options.slot_bytes = 4096;
  options.sender.handshake_timeout = absl::Minutes(2);
  Build(options);
  sim().prefill(0).transport->bytes_per_second = 500;  // a slab takes 8 s, four times the progress timeout
  PeerId peer = sim().Connect(0, 0);
  ASSERT_TRUE(sim().RunUntil([&] { return sim().prefill(0).sender->peer_ready(peer); }, absl::Minutes(2)));
  EXPECT_NEAR(sim().prefill(0).rates.at(peer), 500, 5);
  sim().AddSource("a", 400, 300, 3);
  ASSERT_TRUE(sim().Start(0, 0, a1_, absl::Minutes(30)).ok());
  sim().RunAll(0, a1_);
  ASSERT_TRUE(
      sim().RunUntil([&] { return sim().has_result(0, a1_); }, absl::Minutes(30), absl::Milliseconds(100)));
  EXPECT_TRUE(Result(0, a1_).committed()) << ReasonName(Result(0, a1_).reason);
  EXPECT_EQ(Result(0, a1_).stats.retries, 0);
  EXPECT_GT(Result(0, a1_).stats.wire, absl::Seconds(30));
  EXPECT_EQ(sim().Compare(0, a1_), "");
  EXPECT_TRUE(sim().prefill(0).down.empty());
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, ASlabThatWaitsForACreditIsNotLate) {
  SimOptions options;
  options.ring_slots = 1;
  Build(options);
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  sim().AddSource("b", 100, 60, 2);
  ASSERT_TRUE(sim().Start(0, 0, b1_).ok());
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  // Every answer takes 1.5 s, so the other attempt's slab waits longer than the progress timeout again and
  // again.
  sim().RunFor(absl::Milliseconds(10));
  sim().fate = [](const HandoffMessage& m, bool) {
    return HandoffSim::Fate{
        1, std::holds_alternative<SlabAck>(m) ? absl::Milliseconds(1500) : absl::ZeroDuration()};
  };
  sim().RunAll(0, a1_);
  sim().RunAll(0, b1_);
  ASSERT_TRUE(sim().RunUntil([&] { return sim().has_result(0, a1_) && sim().has_result(0, b1_); },
                             absl::Seconds(120), absl::Milliseconds(10)));
  EXPECT_NE(Result(0, a1_).reason, HandoffReason::kNoProgress);
  EXPECT_NE(Result(0, b1_).reason, HandoffReason::kNoProgress);
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, CreditsAreSharedFairly) {
  SimOptions options;
  options.ring_slots = 2;
  Build(options);
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 2000, 1500, 1);
  sim().AddSource("b", 40, 20, 2);
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  sim().RunAll(0, a1_);
  sim().RunFor(absl::Milliseconds(20));
  ASSERT_TRUE(sim().Start(0, 0, b1_).ok());
  sim().RunAll(0, b1_);
  WaitForResult(0, b1_);
  EXPECT_TRUE(Result(0, b1_).committed());
  EXPECT_FALSE(sim().has_result(0, a1_));  // the small one did not wait for the large one
  WaitForResult(0, a1_);
  EXPECT_TRUE(Result(0, a1_).committed());
  EXPECT_EQ(sim().Compare(0, a1_), "");
  EXPECT_EQ(sim().Compare(0, b1_), "");
  ExpectNoLeaks();
}

// --- Partition: both leases expire; after it heals, the fence holds ---

TEST_P(HandoffFailures, PartitionExpiresBothLeases) {
  sim().ConnectReady(0, 0);
  sim().ConnectReady(0, 1);
  sim().AddSource("a", 100, 60, 1);
  StartStreaming(0, 0, a1_);
  sim().RunFor(absl::Seconds(1));
  sim().partitioned.insert({0, 0});
  sim().RunFor(absl::Seconds(35), absl::Milliseconds(50));
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kLeaseExpired);
  EXPECT_TRUE(Result(0, a1_).retained());
  EXPECT_EQ(sim().decode(0).released.at(a1_), HandoffReason::kLeaseExpired);
  EXPECT_EQ(sim().prefill(0).sender->leases_expired(), 1);
  Commit(0, 1, a2_);
  // It heals: what the first attempt still says is refused.
  sim().partitioned.clear();
  HandoffIds ids{a1_, "prefill-1", "decode-3"};
  int scatters = sim().decode(0).scatters;
  PeerId at_decode(sim().peer(0, 0).value() + 1);
  sim().decode(0).receiver->OnMessage(at_decode, SlabReady{ids, 1, {LayerId(1), 0, {0}, {1}}, {0, 1000}, 0},
                                      sim().now());
  sim().decode(0).receiver->OnMessage(at_decode, Seal{ids, 0, LogicalLen(100), 0, 0, 1, {}}, sim().now());
  EXPECT_EQ(sim().decode(0).scatters, scatters);
  EXPECT_TRUE(sim().decode(0).ready.empty());
  sim().RunFor(absl::Seconds(1));
  EXPECT_EQ(sim().Compare(1, a2_), "");
}

// --- Version or model mismatch: the field is named ---

TEST_P(HandoffFailures, MismatchNamesTheField) {
  PeerId peer = sim().Connect(0, 0);
  sim().AddSource("a", 100, 60, 1);
  // Speak for a prefill of another model.
  Hello hello;
  hello.incarnation = "x";
  hello.transport = two_sided() ? "paired" : "loopback";
  hello.compatibility = {"w", "t", "r", "bf16", 64, 3, 2, 16};
  std::vector<HandoffMessage> answers;
  sim().decode(0).send = [&](PeerId, const HandoffMessage& m) { answers.push_back(m); };
  sim().decode(0).receiver->OnMessage(PeerId(900), hello, sim().now());
  const Incompatible refused = std::get<Incompatible>(answers.at(0));
  EXPECT_EQ(refused.field, "head_dim");
  EXPECT_EQ(refused.ours, "8");
  EXPECT_EQ(refused.theirs, "16");
  hello.compatibility.head_dim = 8;
  hello.proto_min = hello.proto_max = 7;
  sim().decode(0).receiver->OnMessage(PeerId(901), hello, sim().now());
  EXPECT_EQ(std::get<Incompatible>(answers.at(1)).field, "proto");
  hello.proto_min = 1;
  hello.transport = "ucx";
  sim().decode(0).receiver->OnMessage(PeerId(902), hello, sim().now());
  EXPECT_EQ(std::get<Incompatible>(answers.at(2)).field, "transport");
  // And prefill hears it as an error that names both values.
  sim().prefill(0).sender->OnMessage(peer, refused, sim().now());
  EXPECT_EQ(sim().prefill(0).down.at(peer).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(sim().prefill(0).down.at(peer).message(), "head_dim: ours 16, decode's 8");
  EXPECT_FALSE(sim().prefill(0).sender->peer_ready(peer));
  EXPECT_EQ(sim().Start(0, 0, a1_).code(), absl::StatusCode::kUnavailable);
}

TEST_P(HandoffFailures, HandshakeHasADeadline) {
  Lose<HelloAck>(1000);
  PeerId peer = sim().Connect(0, 0);
  sim().AddSource("a", 100, 60, 1);
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  sim().RunFor(absl::Seconds(6), absl::Milliseconds(10));
  EXPECT_EQ(sim().prefill(0).down.at(peer).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kPeerLost);
}

// --- Decode refuses ---

TEST_P(HandoffFailures, MethodThatDecodeDoesNotServe) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  sim().decode(0).reserve_status = absl::UnimplementedError("selection: quest");
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  WaitForResult(0, a1_);
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kIncompatible);
  EXPECT_EQ(Result(0, a1_).detail, "selection: quest");
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, BusyDecodeSaysWhenToComeBack) {
  sim().ConnectReady(0, 0);
  sim().ConnectReady(0, 1);
  sim().AddSource("a", 100, 60, 1);
  sim().decode(0).reserve_status = absl::ResourceExhaustedError("kv pages: need 12, free 3");
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  sim().AddLayers(0, a1_, 0, 2);  // compute goes on meanwhile
  WaitForResult(0, a1_);
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kBusy);
  EXPECT_EQ(Result(0, a1_).retry_after, absl::Milliseconds(500));
  EXPECT_TRUE(Result(0, a1_).retained());
  Commit(0, 1, a2_);
  sim().decode(0).reserve_status = absl::OutOfRangeError("kv pages: need 1000 of 100");
  ASSERT_TRUE(sim().Start(0, 0, {"a", 3}).ok());
  WaitForResult(0, {"a", 3});
  EXPECT_EQ(Result(0, {"a", 3}).reason, HandoffReason::kTooLarge);
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, OfferTimesOutAndALateGrantIsReturned) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  sim().fate = [](const HandoffMessage& m, bool) {
    return HandoffSim::Fate{1, std::holds_alternative<Grant>(m) ? absl::Seconds(3) : absl::ZeroDuration()};
  };
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  WaitForResult(0, a1_, absl::Milliseconds(1100));
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kOfferTimeout);
  EXPECT_TRUE(Result(0, a1_).retained());
  sim().RunFor(absl::Seconds(4));
  EXPECT_TRUE(sim().decode(0).reserved.empty());
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, AHigherAttemptEndsTheLower) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  StartStreaming(0, 0, a1_);
  Commit(0, 0, a2_);
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kSuperseded);
  EXPECT_FALSE(sim().decode(0).ready.contains(a1_));
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, AStaleAttemptFromAnotherPrefillIsRefused) {
  sim().ConnectReady(0, 0);
  sim().ConnectReady(1, 0);
  sim().AddSource("a", 100, 60, 1);
  StartStreaming(1, 0, a2_);
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  WaitForResult(0, a1_);
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kStale);
  sim().AddLayers(1, a2_, 1, 3);
  sim().Finish(1, a2_);
  WaitForResult(1, a2_);
  EXPECT_TRUE(Result(1, a2_).committed());
  EXPECT_EQ(sim().Compare(0, a2_), "");
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, ScatterErrorEndsTheAttempt) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  sim().decode(0).scatter_status = absl::InternalError("device lost");
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  sim().RunAll(0, a1_);
  WaitForResult(0, a1_);
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kPeerAborted);
  ExpectNoLeaks();
}

// --- Integrity and rails ---

TEST_P(HandoffFailures, DamagedSlabIsSentAgain) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  sim().prefill(0).transport->corrupt_pushes = 2;
  sim().RunAll(0, a1_);
  WaitForResult(0, a1_);
  EXPECT_TRUE(Result(0, a1_).committed());
  EXPECT_EQ(Result(0, a1_).stats.retries, 2);
  EXPECT_EQ(sim().decode(0).receiver->integrity_mismatches(), 2);
  EXPECT_EQ(sim().Compare(0, a1_), "");
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, SlabThatIsAlwaysDamagedEndsTheAttempt) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  sim().prefill(0).transport->corrupt_pushes = 1000;
  sim().RunAll(0, a1_);
  WaitForResult(0, a1_);
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kIntegrity);
  EXPECT_EQ(sim().decode(0).scatters, 0);
  sim().prefill(0).transport->corrupt_pushes = 0;
  Commit(0, 0, a2_);
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, FailedPushIsRepeated) {
  if (two_sided()) GTEST_SKIP() << "there it ends the connection";
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  sim().prefill(0).transport->fail_pushes = 2;
  sim().RunAll(0, a1_);
  WaitForResult(0, a1_);
  EXPECT_TRUE(Result(0, a1_).committed());
  EXPECT_EQ(Result(0, a1_).stats.retries, 2);
  EXPECT_EQ(sim().prefill(0).sender->transport_errors(), 2);
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, BrokenRailGivesThePeerUp) {
  PeerId peer = sim().Connect(0, 0);
  sim().RunFor(absl::Milliseconds(20));
  sim().AddSource("a", 100, 60, 1);
  ASSERT_TRUE(sim().Start(0, 0, a1_).ok());
  sim().prefill(0).transport->fail_pushes = 1000;
  sim().RunAll(0, a1_);
  WaitForResult(0, a1_);
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kTransport);
  sim().Step();
  EXPECT_EQ(sim().prefill(0).down.at(peer).code(), absl::StatusCode::kUnavailable);
  sim().prefill(0).transport->fail_pushes = 0;
  sim().Disconnect(0, 0);  // what the owner does: close and dial again
  sim().ConnectReady(0, 0);
  Commit(0, 0, a2_);
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, StuckPushIsQuarantinedNotReused) {
  if (two_sided()) GTEST_SKIP() << "there it ends the connection";
  sim().ConnectReady(0, 0);
  sim().ConnectReady(0, 1);
  sim().AddSource("a", 100, 60, 1);
  StartStreaming(0, 0, a1_);
  sim().prefill(0).transport->hang = true;
  sim().AddLayers(0, a1_, 1, 2);
  WaitForResult(0, a1_, absl::Seconds(5));
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kNoProgress);
  sim().RunFor(absl::Seconds(3), absl::Milliseconds(10));
  SlotCounts slots = sim().prefill(0).sender->send_slots(sim().now());
  EXPECT_GT(slots.quarantined, 0);
  EXPECT_EQ(slots.busy, 0);
  EXPECT_GT(sim().prefill(0).sender->peer_slots(sim().now()).quarantined, 0);
  EXPECT_TRUE(sim().decode(0).reserved.empty());
  EXPECT_EQ(sim().decode(0).receiver->draining(), 1);  // Abort said: not quiesced
  sim().prefill(0).transport->hang = false;            // the push ends after all: that is the proof
  sim().RunFor(absl::Milliseconds(10));
  EXPECT_EQ(sim().prefill(0).sender->send_slots(sim().now()).free, sim().options().ring_slots);
  sim().Disconnect(0, 0);
  Commit(0, 1, a2_);
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, StuckPushIsFreedByTheEndOfItsConnection) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  StartStreaming(0, 0, a1_);
  sim().prefill(0).transport->hang = true;
  sim().prefill(0).transport->unprovable = true;
  sim().AddLayers(0, a1_, 1, 2);
  sim().Step();
  sim().KillDecode(0);
  EXPECT_EQ(Result(0, a1_).reason, HandoffReason::kPeerLost);
  sim().RunFor(absl::Seconds(3), absl::Milliseconds(10));
  EXPECT_GT(sim().prefill(0).sender->send_slots(sim().now()).quarantined, 0);
  sim().prefill(0).transport->unprovable = false;
  sim().Step();
  EXPECT_EQ(sim().prefill(0).sender->send_slots(sim().now()).free, sim().options().ring_slots);
  ExpectNoLeaks();
}

TEST_P(HandoffFailures, LostSlabAckReturnsItsCreditLater) {
  sim().ConnectReady(0, 0);
  sim().AddSource("a", 100, 60, 1);
  Lose<SlabAck>(2);
  Commit(0, 0, a1_);
  ExpectNoLeaks();
}

}  // namespace
}  // namespace sluice
