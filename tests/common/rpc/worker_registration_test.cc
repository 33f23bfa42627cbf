// A worker finds a router that starts after it, and one that starts again.
#include "common/rpc/worker_registration.h"

#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/rpc_server.h"
#include "sluice/internal/v1/worker.grpc.pb.h"

namespace sluice {
namespace {

// Answers each report with a lease.
class Registry final : public internal::v1::WorkerRegistry::Service {
 public:
  grpc::Status Register(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<internal::v1::RegistryReply, internal::v1::WorkerReport>* stream) override {
    internal::v1::WorkerReport report;
    internal::v1::RegistryReply reply;
    reply.set_lease_seconds(30);
    for (bool first = true; stream->Read(&report); first = false) {
      if (first && report.name() == "p0") ++registered;
      stream->Write(reply);
    }
    ++left;
    return grpc::Status::OK;
  }
  std::atomic<int> registered{0}, left{0};
};

bool WaitFor(const std::atomic<int>& value, int wanted) {
  for (absl::Time end = absl::Now() + absl::Seconds(10); value < wanted && absl::Now() < end;) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  return value >= wanted;
}

std::unique_ptr<RpcServer> Serve(Registry* registry, int port) {
  RpcServerOptions options;
  options.address = absl::StrCat("127.0.0.1:", port);
  options.flag = "--test";
  absl::StatusOr<std::unique_ptr<RpcServer>> server = RpcServer::Start(options, {registry});
  EXPECT_TRUE(server.ok()) << server.status();
  return server.ok() ? *std::move(server) : nullptr;
}

TEST(WorkerRegistrationTest, TheFirstAttemptsAreQuickAndARouterThatComesLateIsFound) {
  Registry registry;
  const int port = Serve(&registry, 0)->port();  // free again
  std::atomic<int> attempts{0};
  internal::v1::WorkerReport identity;
  identity.set_name("p0");
  const absl::Time start = absl::Now();
  WorkerRegistration registration(absl::StrCat("127.0.0.1:", port), identity, [&] {
    ++attempts;
    return internal::v1::WorkerLoad();
  });
  ASSERT_TRUE(WaitFor(attempts, 4));  // after 0, 50, 150 and 350 ms
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));

  auto server = Serve(&registry, port);
  ASSERT_TRUE(WaitFor(registry.registered, 1));
  const int needed = attempts;
  server->Stop(absl::ZeroDuration());
  server = Serve(&registry, port);
  ASSERT_TRUE(WaitFor(registry.registered, 2));
  EXPECT_LE(attempts - needed, 8);

  registration.Stop();
  EXPECT_TRUE(WaitFor(registry.left, 2));
  EXPECT_EQ(registry.registered, 2);
}

}  // namespace
}  // namespace sluice
