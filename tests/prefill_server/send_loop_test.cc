#include "prefill_server/send_loop.h"

#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/rpc_server.h"
#include "common/transport/transports.h"
#include "kernels/cpu/cpu_backend.h"
#include "sluice/internal/v1/handoff.grpc.pb.h"

namespace sluice {
namespace {

// Counts who says hello, and answers nothing.
class SilentDecode final : public internal::v1::KvHandoff::Service {
 public:
  grpc::Status Connect(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<internal::v1::HandoffMessage, internal::v1::HandoffMessage>* stream) override {
    internal::v1::HandoffMessage message;
    while (stream->Read(&message)) hellos += message.has_hello();
    return grpc::Status::OK;
  }
  std::atomic<int> hellos{0};
};

class SendLoopTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<SendLoop>> Create(int ring_slots) {
    HandoffSenderOptions options;
    options.shape = {1, 1, 1, 64, DType::kBF16};
    options.ring_slots = ring_slots;
    return SendLoop::Create(options, *MakeTransport("loopback", {}), backend_.get(), &clock_, &metrics_,
                            &transfer_metrics_);
  }

  MetricsRegistry registry_{{"prefill", "m", "test"}};
  PrefillMetrics metrics_{&registry_, PrefillLabels{{"full"}, TransportNames()}};
  KvTransferMetrics transfer_metrics_{&registry_, FailureReasonNames()};
  const SteadyClock clock_{};
  const std::unique_ptr<Backend> backend_ = *NewCpuBackend({.threads = 1});
};

TEST_F(SendLoopTest, ARingThatCannotBeHadIsAnError) {
  auto loop = Create(0);
  EXPECT_TRUE(absl::IsInvalidArgument(loop.status())) << loop.status();
  EXPECT_NE(loop.status().message().find("ring_slots"), std::string::npos) << loop.status();
}

TEST_F(SendLoopTest, ADecodeServerThatIsKnownIsDialledOnceBeforeAPromptComes) {
  SilentDecode first, second;
  auto servers = {RpcServer::Start({"127.0.0.1:0", "listen"}, {&first}),
                  RpcServer::Start({"127.0.0.1:0", "listen"}, {&second})};
  std::vector<std::string> addresses;
  for (const auto& server : servers) {
    ASSERT_TRUE(server.ok()) << server.status();
    addresses.push_back(absl::StrCat("127.0.0.1:", (*server)->port()));
  }
  auto loop = Create(2);
  ASSERT_TRUE(loop.ok()) << loop.status();
  (*loop)->Know({addresses[0]});
  (*loop)->Know({addresses[0]});
  (*loop)->Know(addresses);
  for (absl::Time end = absl::Now() + absl::Seconds(10); absl::Now() < end;) {
    if (first.hellos > 0 && second.hellos > 0) break;
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(first.hellos, 1);
  EXPECT_EQ(second.hellos, 1);
  (*loop)->Stop();
}

}  // namespace
}  // namespace sluice
