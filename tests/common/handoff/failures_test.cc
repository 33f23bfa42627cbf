// The failure matrix of the hand-off, one row, one test or more: who dies, restarts or gives up, and what is
// said twice or never. transfer_faults_test.cc has the rest.
#include "tests/common/handoff/failures_fixture.h"

namespace sluice {
namespace {

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

}  // namespace
}  // namespace sluice
