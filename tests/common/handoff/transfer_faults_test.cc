// The failure matrix of the hand-off: slow networks, refusals, damaged and lost slabs, stuck pushes.
#include "tests/common/handoff/failures_fixture.h"

namespace sluice {
namespace {

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
