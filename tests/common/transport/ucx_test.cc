// UCX between two processes, over TCP and over shared memory: every byte, both directions, and kill -9.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/transport/probe.h"
#include "common/transport/transports.h"
#include "common/transport/ucx.h"
#include "tests/common/transport/ring_bytes.h"

extern char** environ;

namespace sluice {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// A ucx_peer process with its stdin and stdout.
class PeerProcess {
 public:
  explicit PeerProcess(const std::string& transport) {
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    for (int fd : {in[0], in[1], out[0], out[1]}) posix_spawn_file_actions_addclose(&actions, fd);
    std::string name = transport;
    char* argv[] = {const_cast<char*>("ucx_peer"), name.data(), nullptr};
    if (posix_spawn(&pid_, SLUICE_UCX_PEER, &actions, nullptr, argv, environ) != 0) std::abort();
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  ~PeerProcess() {
    Kill();
    close(in_);
    close(out_);
  }
  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void Say(const std::string& line) {
    std::string text = line + "\n";
    ASSERT_EQ(write(in_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // One line, while `progress` drives our side: the other end may need it.
  std::string Hear(KvTransport* progress) {
    absl::Time end = SteadyClock().Now() + kPatience;
    for (std::string line; SteadyClock().Now() < end;) {
      progress->Progress();
      fd_set set;
      FD_ZERO(&set);
      FD_SET(out_, &set);
      timeval none = {};
      if (select(out_ + 1, &set, nullptr, nullptr, &none) <= 0) continue;
      char c;
      if (read(out_, &c, 1) != 1) return "(end)";
      if (c == '\n') return line;
      line += c;
    }
    return "(silence)";
  }

 private:
  pid_t pid_ = 0;
  int in_ = -1, out_ = -1;
};

class Ucx : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr size_t kRing = 8 << 20;

  void SetUp() override {
    auto made = MakeTransport(GetParam(), {});
    ASSERT_TRUE(made.ok()) << made.status();
    transport_ = *std::move(made);
    ring_ = *transport_->AllocateRing(kRing);
    FillRing(ring_, 1);
  }

  // A new process, connected as `peer`; its ring's key in remote_.
  void Open(PeerId peer) {
    process_ = std::make_unique<PeerProcess>(GetParam());
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
    absl::Time end = SteadyClock().Now() + kPatience;
    while (SteadyClock().Now() < end) {
      transport_->Progress();
      TransferState state = transport_->Poll(transfer);
      if (state != TransferState::kPending) return state;
    }
    return TransferState::kPending;
  }

  void PushAndCheck(PeerId peer, int64_t from, size_t bytes, int64_t to) {
    auto push = transport_->Push(peer, ring_.region, {from, bytes}, remote_, to);
    ASSERT_TRUE(push.ok()) << push.status();
    ASSERT_EQ(Wait(*push), TransferState::kDone);
    process_->Say(absl::StrCat("sum ", to, " ", bytes));
    EXPECT_EQ(process_->Hear(transport_.get()), std::to_string(RingSum(ring_.data + from, bytes)));
  }

  void QuiesceSoon(PeerId peer) {
    absl::Time end = SteadyClock().Now() + kPatience;
    absl::Status status;
    while (!(status = transport_->Quiesce(peer)).ok() && SteadyClock().Now() < end) {
    }
    EXPECT_TRUE(status.ok()) << status;
  }

  std::unique_ptr<KvTransport> transport_;
  Ring ring_;
  RemoteRegionId remote_;
  std::unique_ptr<PeerProcess> process_;
};

TEST_P(Ucx, EveryByteArrives) {
  std::printf("%s\n", transport_->description().c_str());
  Open(PeerId(1));
  for (size_t bytes : {size_t{1}, size_t{7}, size_t{4096}, size_t{100001}, size_t{1} << 20, kRing})
    PushAndCheck(PeerId(1), 0, bytes, 0);
  PushAndCheck(PeerId(1), 12345, 54321, 777);
}

TEST_P(Ucx, ManyPushesAtOnceArriveWhole) {
  Open(PeerId(1));
  constexpr size_t kSlot = 256 << 10;
  std::vector<TransferId> pushes;
  for (size_t at = 0; at < kRing; at += kSlot) {
    int64_t offset = static_cast<int64_t>(at);
    auto push = transport_->Push(PeerId(1), ring_.region, {offset, kSlot}, remote_, offset);
    ASSERT_TRUE(push.ok()) << push.status();
    pushes.push_back(*push);
  }
  for (TransferId push : pushes) EXPECT_EQ(Wait(push), TransferState::kDone);
  process_->Say(absl::StrCat("sum 0 ", kRing));
  EXPECT_EQ(process_->Hear(transport_.get()), std::to_string(RingSum(ring_.data, kRing)));
  EXPECT_EQ(transport_->Poll(pushes[0]), TransferState::kFailed);  // a final state is reported once
}

TEST_P(Ucx, TheOtherDirectionArrivesToo) {
  Open(PeerId(1));
  Ring inbox = *transport_->AllocateRing(kRing);
  process_->Say("fill 7");
  ASSERT_EQ(process_->Hear(transport_.get()), "ok");
  process_->Say(absl::StrCat("push ", ToHex(transport_->ExportKey(inbox.region)), " ", kRing, " 1"));
  ASSERT_EQ(process_->Hear(transport_.get()), "ok");
  process_->Say(absl::StrCat("sum 0 ", kRing));
  EXPECT_EQ(process_->Hear(transport_.get()), std::to_string(RingSum(inbox.data, kRing)));
}

TEST_P(Ucx, ProbeMeasuresBothDirections) {
  Open(PeerId(1));
  RingProbe probe(transport_.get(), PeerId(1), ring_.region, remote_, 4 << 20, 8);
  std::optional<double> rate;
  while (!rate) {
    transport_->Progress();
    auto step = probe.Step(SteadyClock().Now());
    ASSERT_TRUE(step.ok()) << step.status();
    rate = *step;
  }
  Ring inbox = *transport_->AllocateRing(kRing);
  process_->Say(absl::StrCat("rate ", ToHex(transport_->ExportKey(inbox.region)), " ", 4 << 20));
  double back = std::stod(process_->Hear(transport_.get()));
  std::printf("%s: out %.2f GB/s, back %.2f GB/s\n", GetParam().c_str(), *rate / 1e9, back / 1e9);
  EXPECT_GT(*rate, 0);
  EXPECT_GT(back, 0);
}

TEST_P(Ucx, KilledReceiverLeavesTheSenderWorking) {
  Open(PeerId(1));
  PushAndCheck(PeerId(1), 0, 1 << 20, 0);
  std::vector<TransferId> pushes;
  for (int i = 0; i < 8; ++i) {
    auto push = transport_->Push(PeerId(1), ring_.region, {0, kRing}, remote_, 0);
    if (push.ok()) pushes.push_back(*push);
    if (i == 1) process_->Kill();
  }
  if (GetParam() == "ucx") {  // a network tells; shared memory has nobody to tell it
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

TEST_P(Ucx, KilledSenderLeavesTheReceiverWorking) {
  Open(PeerId(1));
  Ring inbox = *transport_->AllocateRing(kRing);
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
TEST_P(Ucx, ALivingSenderCannotReachAReleasedRing) {
  Open(PeerId(1));
  Ring inbox = *transport_->AllocateRing(kRing);
  process_->Say(absl::StrCat("push ", ToHex(transport_->ExportKey(inbox.region)), " ", kRing, " 400"));
  absl::Time end = SteadyClock().Now() + absl::Milliseconds(50);
  while (SteadyClock().Now() < end) transport_->Progress();
  QuiesceSoon(PeerId(1));
  transport_->ReleaseRing(inbox.region);
  // Memory that may well lie where the ring lay.
  Ring next = *transport_->AllocateRing(kRing);
  FillRing(next, 99);
  uint64_t sum = RingSum(next.data, kRing);
  auto other = std::move(process_);
  Open(PeerId(2));
  PushAndCheck(PeerId(2), 0, kRing, 0);
  end = SteadyClock().Now() + absl::Milliseconds(200);
  while (SteadyClock().Now() < end) transport_->Progress();
  EXPECT_EQ(RingSum(next.data, kRing), sum);
}

TEST_P(Ucx, MisuseIsAStatus) {
  EXPECT_EQ(transport_->Connect(PeerId(5), "nonsense").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(transport_->ImportKey(PeerId(5), "nonsense").status().code(),
            absl::StatusCode::kFailedPrecondition);
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

INSTANTIATE_TEST_SUITE_P(Paths, Ucx, ::testing::Values("ucx", "ucx-shm"),
                         [](const auto& info) { return info.param == "ucx" ? "Tcp" : "SharedMemory"; });

TEST(UcxOptions, TransportsThatWriteWithoutAKeyAreRefused) {
  for (const char* tls : {"all", "shm", "tcp,cma", "xpmem", "^cma", ""}) {
    UcxOptions options;
    options.tls = tls;
    EXPECT_EQ(UcxTransport::Create(options).status().code(), absl::StatusCode::kInvalidArgument) << tls;
  }
  UcxOptions options;
  options.tls = "carrier_pigeon";
  EXPECT_FALSE(UcxTransport::Create(options).ok());
}

TEST(Transports, UnknownNameListsTheKnown) {
  auto made = MakeTransport("smoke", {});
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(made.status().message().find("loopback, ucx, ucx-shm"), std::string::npos);
}

}  // namespace
}  // namespace sluice
