// One worker and several routers: all hear of a drain, whoever orders it.
#include "common/rpc/router_links.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/rpc_server.h"
#include "sluice/internal/v1/worker.grpc.pb.h"
#include "tests/support/patience.h"

namespace sluice {
namespace {

using internal::v1::RegistryReply;

// A router that answers each report, as told.
class Registry final : public internal::v1::WorkerRegistry::Service {
 public:
  Registry() { server = *RpcServer::Start({"127.0.0.1:0", "--test"}, {this}); }
  ~Registry() override { server->Stop(absl::ZeroDuration()); }

  std::string address() const { return absl::StrCat("127.0.0.1:", server->port()); }
  grpc::Status Register(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<RegistryReply, internal::v1::WorkerReport>* stream) override {
    internal::v1::WorkerReport report;
    for (; stream->Read(&report); ++reports) {
      draining = report.load().draining();
      RegistryReply reply;
      reply.set_lease_seconds(0.15);
      reply.set_order(order);
      reply.set_draining(draining && knows);
      reply.add_decode_addresses(decode);
      stream->Write(reply);
    }
    return grpc::Status::OK;
  }

  std::atomic<RegistryReply::Order> order{RegistryReply::NONE};
  std::atomic<bool> knows{true}, draining{false};
  std::atomic<int> reports{0};
  std::string decode = "d";
  std::unique_ptr<RpcServer> server;
};

bool Until(const std::function<bool()>& holds) {
  const absl::Time end = absl::Now() + kPatience * absl::Seconds(10);
  while (!holds() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(2));
  return holds();
}

class RouterLinksTest : public testing::Test {
 protected:
  std::unique_ptr<RouterLinks> Connect(const std::vector<std::string>& routers) {
    internal::v1::WorkerReport identity;
    identity.set_name("p0");
    auto load = [this] {
      internal::v1::WorkerLoad now;
      now.set_running(running);
      return now;
    };
    return std::make_unique<RouterLinks>(routers, identity, load, [this](std::vector<std::string> addresses) {
      MutexLock lock(&mu);
      decodes = std::move(addresses);
    });
  }
  std::vector<std::string> Decodes() {
    MutexLock lock(&mu);
    return decodes;
  }

  std::atomic<int> running{0};
  Mutex mu;
  std::vector<std::string> decodes ABSL_GUARDED_BY(mu);
  Registry a, b;
};

TEST_F(RouterLinksTest, AnOrderOfOneRouterReachesAll) {
  auto links = Connect({a.address(), b.address()});
  ASSERT_TRUE(Until([&] { return a.reports > 0 && b.reports > 0; }));
  EXPECT_FALSE(b.draining);
  a.order = RegistryReply::DRAIN;
  EXPECT_TRUE(Until([&] { return a.draining && b.draining; }));
  EXPECT_TRUE(links->draining());
  a.order = RegistryReply::NONE;
  b.order = RegistryReply::UNDRAIN;
  EXPECT_TRUE(Until([&] { return !a.draining && !b.draining; }));
}

TEST_F(RouterLinksTest, DecodeWorkersOfAllRoutersAreKnown) {
  b.decode = "e";
  auto links = Connect({a.address(), b.address()});
  EXPECT_TRUE(Until([&] { return Decodes() == std::vector<std::string>{"d", "e"}; }));
}

TEST_F(RouterLinksTest, DrainWaitsForEveryRouterAndForWhatRuns) {
  b.knows = false;
  running = 2;
  auto links = Connect({a.address(), b.address()});
  ASSERT_TRUE(Until([&] { return a.reports > 0 && b.reports > 0; }));
  EXPECT_EQ(links->Drain(absl::Milliseconds(50)), 2);
  EXPECT_TRUE(Until([&] { return a.draining && b.draining; }));
  a.order = RegistryReply::UNDRAIN;  // too late
  running = 0;
  std::atomic<bool> over{false};
  std::thread drain([&] {
    EXPECT_EQ(links->Drain(kPatience * absl::Seconds(10)), 0);
    over = true;
  });
  const int reports = b.reports;
  EXPECT_TRUE(Until([&] { return b.reports > reports + 2; }));
  EXPECT_FALSE(over);
  b.knows = true;
  EXPECT_TRUE(Until([&] { return over.load(); }));
  drain.join();
  EXPECT_TRUE(links->draining());
}

TEST_F(RouterLinksTest, ARouterThatIsGoneIsNotWaitedFor) {
  std::string nobody;
  {
    Registry gone;
    nobody = gone.address();
  }
  auto links = Connect({a.address(), nobody});
  ASSERT_TRUE(Until([&] { return a.reports > 0; }));
  const absl::Time began = absl::Now();
  EXPECT_EQ(links->Drain(absl::Minutes(1)), 0);
  EXPECT_LT(absl::Now() - began, kPatience * absl::Seconds(10));
}

}  // namespace
}  // namespace sluice
