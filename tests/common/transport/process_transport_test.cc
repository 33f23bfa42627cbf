// Every transport between two processes: every byte, both directions, and kill -9.
#include <gtest/gtest.h>
#include <cstdio>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/transport/probe.h"
#include "common/transport/transports.h"
#include "common/transport/ucx.h"
#include "kernels/make_backend.h"
#include "tests/common/transport/peer_process.h"
#include "tests/common/transport/ring_bytes.h"

namespace sluice {
namespace {

// A transport, and where the rings of both ends lie.
struct Path {
  std::string name, transport, device, peer_device;
};
void PrintTo(const Path& path, std::ostream* os) { *os << path.name; }

class ProcessTransport : public ::testing::TestWithParam<Path> {
 protected:
  static constexpr size_t kRing = 8 << 20;

  void SetUp() override {
    for (const std::string& device : {GetParam().device, GetParam().peer_device})
      if (device != "cpu" && CountGpus() <= device.back() - '0') GTEST_SKIP() << "no " << device;
    backend_ = *MakeBackend(GetParam().device, {.threads = 1});
    bytes_ = std::make_unique<RingBytes>(backend_.get());
    auto made = MakeTransport(GetParam().transport, {.backend = backend_.get()});
    ASSERT_TRUE(made.ok()) << made.status();
    transport_ = *std::move(made);
    ring_ = NewRing();
    bytes_->Fill(ring_, 1);
  }

  Ring NewRing() {
    auto ring = transport_->AllocateRing(kRing);
    SLUICE_CHECK(ring.ok());
    return *ring;
  }

  // A new process, connected as `peer`; its ring's key in remote_.
  void Open(PeerId peer) {
    process_ = std::make_unique<PeerProcess>(GetParam().transport, GetParam().peer_device);
    auto address = transport_->LocalAddress(peer);
    ASSERT_TRUE(address.ok()) << address.status();
    process_->Say(absl::StrCat("open ", ToHex(*address), " ", kRing));
    std::istringstream answer(process_->Hear(transport_.get()));
    std::string their_address, key;
    answer >> their_address >> key;
    absl::Status connected = transport_->Connect(peer, FromHex(their_address));
    ASSERT_TRUE(connected.ok()) << connected;
    auto remote = transport_->ImportKey(peer, FromHex(key));
    ASSERT_TRUE(remote.ok()) << remote.status();
    remote_ = *remote;
  }

  TransferState Wait(TransferId transfer) {
    absl::Time end = SteadyClock().Now() + kPeerPatience;
    while (SteadyClock().Now() < end) {
      transport_->Progress();
      TransferState state = transport_->Poll(transfer);
      if (state != TransferState::kPending) return state;
    }
    return TransferState::kPending;
  }

  // Two-sided: the receives that the next pushes need, there and here.
  void PeerExpects(int64_t offset, size_t bytes, int times = 1) {
    if (!transport_->two_sided()) return;
    process_->Say(absl::StrCat("expect ", offset, " ", bytes, " ", times));
    ASSERT_EQ(process_->Hear(transport_.get()), "ok");
  }
  void ExpectHere(const Ring& ring, size_t bytes, int times = 1) {
    if (!transport_->two_sided()) return;
    for (int i = 0; i < times; ++i) {
      auto receive = transport_->Expect(PeerId(1), ring.region, {0, bytes});
      ASSERT_TRUE(receive.ok()) << receive.status();
      expected_.push_back(*receive);
    }
  }
  // The end of a push says that the sender may go on; that of its receive, that the bytes are here.
  void WaitExpected() {
    for (TransferId receive : expected_) EXPECT_EQ(Wait(receive), TransferState::kDone);
    expected_.clear();
  }

  void PushAndCheck(PeerId peer, int64_t from, size_t bytes, int64_t to) {
    PeerExpects(to, bytes);
    auto push = transport_->Push(peer, ring_.region, {from, bytes}, remote_, to);
    ASSERT_TRUE(push.ok()) << push.status();
    ASSERT_EQ(Wait(*push), TransferState::kDone);
    process_->Say(absl::StrCat("sum ", to, " ", bytes));
    EXPECT_EQ(process_->Hear(transport_.get()),
              std::to_string(bytes_->Sum(ring_, static_cast<size_t>(from), bytes)));
  }

  void QuiesceSoon(PeerId peer) {
    absl::Time end = SteadyClock().Now() + kPeerPatience;
    absl::Status status;
    while (!(status = transport_->Quiesce(peer)).ok() && SteadyClock().Now() < end) {
    }
    EXPECT_TRUE(status.ok()) << status;
  }

  // The peer may map our rings.
  bool device_rings() const {
    return GetParam().transport == "ucx" && GetParam().device != "cpu" && GetParam().peer_device != "cpu";
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<RingBytes> bytes_;
  std::unique_ptr<KvTransport> transport_;
  Ring ring_;
  RemoteRegionId remote_;
  std::unique_ptr<PeerProcess> process_;
  std::vector<TransferId> expected_;  // two-sided: receives here
};

TEST_P(ProcessTransport, EveryByteArrives) {
  std::printf("%s\n", transport_->description().c_str());
  Open(PeerId(1));
  for (size_t bytes : {size_t{1}, size_t{7}, size_t{4096}, size_t{100001}, size_t{1} << 20, kRing})
    PushAndCheck(PeerId(1), 0, bytes, 0);
  PushAndCheck(PeerId(1), 12345, 54321, 777);
}

TEST_P(ProcessTransport, ManyPushesAtOnceArriveWhole) {
  Open(PeerId(1));
  constexpr size_t kSlot = 256 << 10;
  std::vector<TransferId> pushes;
  for (size_t at = 0; at < kRing; at += kSlot) {
    int64_t offset = static_cast<int64_t>(at);
    PeerExpects(offset, kSlot);
    auto push = transport_->Push(PeerId(1), ring_.region, {offset, kSlot}, remote_, offset);
    ASSERT_TRUE(push.ok()) << push.status();
    pushes.push_back(*push);
  }
  for (TransferId push : pushes) EXPECT_EQ(Wait(push), TransferState::kDone);
  process_->Say(absl::StrCat("sum 0 ", kRing));
  EXPECT_EQ(process_->Hear(transport_.get()), std::to_string(bytes_->Sum(ring_, 0, kRing)));
  EXPECT_EQ(transport_->Poll(pushes[0]), TransferState::kFailed);  // a final state is reported once
}

TEST_P(ProcessTransport, TheOtherDirectionArrivesToo) {
  Open(PeerId(1));
  Ring inbox = *transport_->AllocateRing(kRing, PeerId(1));
  process_->Say("fill 7");
  ASSERT_EQ(process_->Hear(transport_.get()), "ok");
  ExpectHere(inbox, kRing);
  process_->Say(absl::StrCat("push ", ToHex(transport_->ExportKey(inbox.region)), " ", kRing, " 1"));
  ASSERT_EQ(process_->Hear(transport_.get()), "ok");
  WaitExpected();
  process_->Say(absl::StrCat("sum 0 ", kRing));
  EXPECT_EQ(process_->Hear(transport_.get()), std::to_string(bytes_->Sum(inbox, 0, kRing)));
}

TEST_P(ProcessTransport, ProbeMeasuresBothDirections) {
  Open(PeerId(1));
  PeerExpects(0, 4 << 20, 9);
  RingProbe probe(transport_.get(), PeerId(1), ring_.region, remote_, 4 << 20, 8);
  std::optional<double> rate;
  while (!rate) {
    transport_->Progress();
    auto step = probe.Step(SteadyClock().Now());
    ASSERT_TRUE(step.ok()) << step.status();
    rate = *step;
  }
  Ring inbox = *transport_->AllocateRing(kRing, PeerId(1));
  ExpectHere(inbox, 4 << 20, 9);
  process_->Say(absl::StrCat("rate ", ToHex(transport_->ExportKey(inbox.region)), " ", 4 << 20));
  double back = std::stod(process_->Hear(transport_.get()));
  std::printf("%s: out %.2f GB/s, back %.2f GB/s\n", GetParam().name.c_str(), *rate / 1e9, back / 1e9);
  EXPECT_GT(*rate, 0);
  EXPECT_GT(back, 0);
}

TEST_P(ProcessTransport, KilledReceiverLeavesTheSenderWorking) {
  Open(PeerId(1));
  PushAndCheck(PeerId(1), 0, 1 << 20, 0);
  std::vector<TransferId> pushes;
  for (int i = 0; i < 8; ++i) {
    auto push = transport_->Push(PeerId(1), ring_.region, {0, kRing}, remote_, 0);
    if (push.ok()) pushes.push_back(*push);
    if (i == 1) process_->Kill();
  }
  if (GetParam().name == "Tcp") {  // a network tells; shared memory has nobody to tell it
    int failed = 0;
    for (TransferId push : pushes) failed += Wait(push) == TransferState::kFailed;
    EXPECT_GT(failed, 0);
    EXPECT_EQ(transport_->Push(PeerId(1), ring_.region, {0, 1}, remote_, 0).status().code(),
              absl::StatusCode::kUnavailable);
  }
  QuiesceSoon(PeerId(1));
  EXPECT_FALSE(transport_->Push(PeerId(1), ring_.region, {0, 1}, remote_, 0).ok());
  Open(PeerId(2));  // the same ring, another process
  PushAndCheck(PeerId(2), 0, kRing, 0);
}

TEST_P(ProcessTransport, KilledSenderLeavesTheReceiverWorking) {
  Open(PeerId(1));
  Ring inbox = *transport_->AllocateRing(kRing, PeerId(1));
  ExpectHere(inbox, kRing, 200);
  process_->Say(absl::StrCat("push ", ToHex(transport_->ExportKey(inbox.region)), " ", kRing, " 200"));
  absl::Time end = SteadyClock().Now() + absl::Milliseconds(100);
  while (SteadyClock().Now() < end) transport_->Progress();
  process_->Kill();
  QuiesceSoon(PeerId(1));
  transport_->ReleaseRing(inbox.region);
  Open(PeerId(2));
  PushAndCheck(PeerId(2), 0, kRing, 0);
}

// The proof that Quiesce and ReleaseRing give: a living peer that goes on pushing reaches nothing any more.
TEST_P(ProcessTransport, ALivingSenderCannotReachAReleasedRing) {
  Open(PeerId(1));
  Ring inbox = *transport_->AllocateRing(kRing, PeerId(1));
  ExpectHere(inbox, kRing, 400);
  process_->Say(absl::StrCat("push ", ToHex(transport_->ExportKey(inbox.region)), " ", kRing, " 400"));
  absl::Time end = SteadyClock().Now() + absl::Milliseconds(50);
  while (SteadyClock().Now() < end) transport_->Progress();
  if (device_rings()) {  // whoever mapped GPU memory can write it: only its end is a proof
    end = SteadyClock().Now() + absl::Milliseconds(500);
    while (SteadyClock().Now() < end)
      EXPECT_EQ(transport_->Quiesce(PeerId(1)).code(), absl::StatusCode::kUnavailable);
    process_->Kill();
  }
  QuiesceSoon(PeerId(1));
  transport_->ReleaseRing(inbox.region);
  // Memory that may well lie where the ring lay.
  Ring next = NewRing();
  bytes_->Fill(next, 99);
  uint64_t sum = bytes_->Sum(next, 0, kRing);
  auto other = std::move(process_);
  Open(PeerId(2));
  PushAndCheck(PeerId(2), 0, kRing, 0);
  end = SteadyClock().Now() + absl::Milliseconds(200);
  while (SteadyClock().Now() < end) transport_->Progress();
  EXPECT_EQ(bytes_->Sum(next, 0, kRing), sum);
}

TEST_P(ProcessTransport, MisuseIsAStatus) {
  EXPECT_EQ(transport_->Connect(PeerId(5), "nonsense").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(transport_->ImportKey(PeerId(5), "nonsense").status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(transport_->Connect(PeerId(5), "ucx-address:no line").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(transport_->AllocateRing(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(transport_->Quiesce(PeerId(77)).ok());
  EXPECT_EQ(transport_->Poll(TransferId(77)), TransferState::kFailed);
  Open(PeerId(1));
  EXPECT_EQ(transport_->ImportKey(PeerId(1), "nonsense").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(transport_->Push(PeerId(1), ring_.region, {0, kRing + 1}, remote_, 0).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(transport_->Push(PeerId(1), ring_.region, {0, 16}, remote_, kRing - 15).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(transport_->Push(PeerId(1), ring_.region, {-1, 16}, remote_, 0).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(transport_->Push(PeerId(2), ring_.region, {0, 16}, remote_, 0).status().code(),
            absl::StatusCode::kNotFound);
}

INSTANTIATE_TEST_SUITE_P(
    Paths, ProcessTransport,
    ::testing::Values(Path{"Tcp", "ucx", "cpu", "cpu"}, Path{"SharedMemory", "ucx-shm", "cpu", "cpu"},
                      Path{"OneGpu", "ucx", "cuda:0", "cuda:0"}, Path{"GpuToCpu", "ucx", "cuda:0", "cpu"},
                      Path{"CpuToGpu", "ucx", "cpu", "cuda:0"}, Path{"TwoGpus", "ucx", "cuda:0", "cuda:1"},
                      Path{"Nccl", "nccl", "cuda:0", "cuda:1"}),
    [](const auto& info) { return info.param.name; });

TEST(UcxOptions, TransportsThatWriteWithoutAKeyAreRefused) {
  for (const char* tls : {"all", "shm", "tcp,cma", "xpmem", "^cma", "tcp,"}) {
    UcxOptions options;
    options.tls = tls;
    EXPECT_EQ(UcxTransport::Create(options).status().code(), absl::StatusCode::kInvalidArgument) << tls;
  }
  UcxOptions options;
  options.tls = "carrier_pigeon";
  EXPECT_FALSE(UcxTransport::Create(options).ok());
}

TEST(Nccl, AnswersWhereItCannotWork) {
  EXPECT_EQ(MakeTransport("nccl", {}).status().code(), absl::StatusCode::kFailedPrecondition);
  auto cpu = *MakeBackend("cpu", {.threads = 1});
  EXPECT_EQ(MakeTransport("nccl", {.backend = cpu.get()}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  if (CountGpus() == 0) return;
  auto gpu = *MakeBackend("cuda:0", {});
  auto a = MakeTransport("nccl", {.backend = gpu.get()}), b = MakeTransport("nccl", {.backend = gpu.get()});
  if (!a.ok()) GTEST_SKIP() << a.status();
  std::printf("%s\n", (*a)->description().c_str());
  const absl::Status one_gpu = (*b)->Connect(PeerId(1), *(*a)->LocalAddress(PeerId(1)));
  EXPECT_EQ(one_gpu.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(one_gpu.message().find("one GPU"), std::string::npos);
}

TEST(Transports, UnknownNameListsTheKnown) {
  auto made = MakeTransport("smoke", {});
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(made.status().message().find("loopback, ucx, ucx-shm, nccl"), std::string::npos);
}

}  // namespace
}  // namespace sluice
