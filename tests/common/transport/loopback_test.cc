#include "common/transport/loopback.h"

#include <gtest/gtest.h>

#include <cstring>

#include "common/transport/probe.h"

namespace sluice {
namespace {

class Loopback : public ::testing::Test {
 protected:
  Loopback() {
    ring_ = *a_.AllocateRing(64);
    inbox_ = *b_.AllocateRing(128);
    for (int i = 0; i < 64; ++i) ring_.data[i] = static_cast<char>(i + 1);
    EXPECT_TRUE(a_.Connect(PeerId(1), *b_.LocalAddress(PeerId(1))).ok());
    remote_ = *a_.ImportKey(PeerId(1), b_.ExportKey(inbox_.region));
  }
  std::shared_ptr<LoopbackFabric> fabric_ = std::make_shared<LoopbackFabric>();
  LoopbackTransport a_{fabric_}, b_{fabric_};
  Ring ring_, inbox_;
  RemoteRegionId remote_;
};

TEST_F(Loopback, BytesMoveAtProgressAndAreReportedOnce) {
  auto push = a_.Push(PeerId(1), ring_.region, {8, 16}, remote_, 100);
  ASSERT_TRUE(push.ok());
  EXPECT_EQ(a_.Poll(*push), TransferState::kPending);
  EXPECT_EQ(inbox_.data[100], 0);
  EXPECT_TRUE(a_.Progress());
  EXPECT_EQ(std::memcmp(inbox_.data + 100, ring_.data + 8, 16), 0);
  EXPECT_EQ(inbox_.data[99], 0);
  EXPECT_EQ(inbox_.data[116], 0);
  EXPECT_EQ(a_.Poll(*push), TransferState::kDone);
  EXPECT_EQ(a_.Poll(*push), TransferState::kFailed);
  EXPECT_FALSE(a_.Progress());
}

TEST_F(Loopback, QuiesceDropsWhatIsPending) {
  auto push = a_.Push(PeerId(1), ring_.region, {0, 16}, remote_, 0);
  EXPECT_TRUE(a_.Quiesce(PeerId(1)).ok());
  a_.Progress();
  EXPECT_EQ(inbox_.data[0], 0);
  EXPECT_EQ(a_.Poll(*push), TransferState::kFailed);
  EXPECT_EQ(a_.Push(PeerId(1), ring_.region, {0, 16}, remote_, 0).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(Loopback, APushIntoAReleasedRingFails) {
  auto push = a_.Push(PeerId(1), ring_.region, {0, 16}, remote_, 0);
  b_.ReleaseRing(inbox_.region);
  a_.Progress();
  EXPECT_EQ(a_.Poll(*push), TransferState::kFailed);
}

TEST_F(Loopback, BoundsAreChecked) {
  for (KvTransport::Slice from : {KvTransport::Slice{-1, 4}, {61, 4}, {0, 65}, {0, 0}})
    EXPECT_EQ(a_.Push(PeerId(1), ring_.region, from, remote_, 0).status().code(),
              absl::StatusCode::kOutOfRange);
  EXPECT_EQ(a_.Push(PeerId(1), ring_.region, {0, 4}, remote_, 125).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(a_.Connect(PeerId(1), "loopback").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(a_.Connect(PeerId(2), "elsewhere").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(a_.ImportKey(PeerId(1), "99:5").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(Loopback, ProbeDividesBytesByTime) {
  RingProbe probe(&a_, PeerId(1), ring_.region, remote_, 50, 4);
  absl::Time now = absl::UnixEpoch();
  std::optional<double> rate;
  int steps = 0;
  for (; !rate; ++steps, now += absl::Seconds(1)) {
    rate = *probe.Step(now);
    a_.Progress();
  }
  EXPECT_DOUBLE_EQ(*rate, 50.0);  // 4 pushes of 50 bytes in 4 s; the first one only warms up
}

TEST_F(Loopback, ProbeOfABrokenConnectionIsUnavailable) {
  RingProbe probe(&a_, PeerId(1), ring_.region, remote_, 50, 4);
  ASSERT_TRUE(probe.Step(absl::UnixEpoch()).ok());
  b_.ReleaseRing(inbox_.region);
  a_.Progress();
  EXPECT_EQ(probe.Step(absl::UnixEpoch()).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace sluice
