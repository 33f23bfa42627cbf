// Drains of workers and of the router: what runs ends, nothing new comes, sessions move.
#include <gmock/gmock.h>

#include <limits>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/status_codec.h"
#include "sluice/v1/admin.grpc.pb.h"
#include "tests/router/router_fixture.h"
#include "tests/support/patience.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Drained {
  grpc::Status status;
  std::vector<int> remaining;
};

class DrainTest : public RouterTest {
 protected:
  void StartRouterWithAdmin(std::vector<std::string> workers = {"p1", "p2", "d1", "d2"}) {
    StartRouter(nullptr, std::move(workers));
    admin_ = v1::Admin::NewStub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", router_->admin_port()),
                                                    grpc::InsecureChannelCredentials()));
  }
  static v1::DrainRequest Of(const std::string& worker, double seconds = 20) {
    v1::DrainRequest request;
    request.set_worker(worker);
    request.set_deadline_seconds(seconds);
    return request;
  }
  // on_first: after the first progress.
  Drained Drain(const v1::DrainRequest& request, std::function<void()> on_first = nullptr) {
    Drained drained;
    grpc::ClientContext context;
    auto reader = admin_->Drain(&context, request);
    for (v1::DrainProgress progress; reader->Read(&progress);) {
      drained.remaining.push_back(progress.remaining());
      if (drained.remaining.size() == 1 && on_first != nullptr) on_first();
    }
    drained.status = reader->Finish();
    return drained;
  }
  grpc::Status Undrain(const v1::UndrainRequest& request) {
    grpc::ClientContext context;
    v1::UndrainResponse response;
    return admin_->Undrain(&context, request, &response);
  }
  std::string StateOf(const std::string& name) {
    grpc::ClientContext context;
    v1::ListWorkersResponse response;
    EXPECT_TRUE(admin_->ListWorkers(&context, {}, &response).ok());
    for (const v1::Worker& worker : response.workers()) {
      if (worker.name() == name) return worker.state();
    }
    return "";
  }
  // The first request's workers do nothing until Release; the others serve.
  void HoldTheFirst() {
    workers_.SetScript([this](const FakeAttempt& attempt) {
      if (attempt.number > 1) return attempt.Serve(Reply("hello there"));
      MutexLock lock(&held_mu_);
      held_ = attempt;
    });
    Later([this] { first_ = Stream(Ask("hold")); });
    const absl::Time until = absl::Now() + kPatience * absl::Seconds(10);
    while (workers_.attempts().empty() && absl::Now() < until) absl::SleepFor(absl::Milliseconds(2));
    ASSERT_EQ(workers_.attempts().size(), 1u);
  }
  void Release() {
    std::optional<FakeAttempt> held;
    while (!held.has_value()) {
      MutexLock lock(&held_mu_);
      held = held_;
    }
    held->Serve(Reply("hello there"));
  }
  void AwaitTheFirst() {
    MutexLock lock(&later_mu_);
    for (std::thread& thread : later_) thread.join();
    later_.clear();
    ASSERT_TRUE(first_.status.ok()) << first_.status.error_message();
    EXPECT_EQ(first_.text, "hello there");
    EXPECT_EQ(first_.done.attempts(), 1);
  }

  std::unique_ptr<v1::Admin::Stub> admin_;
  Mutex held_mu_;
  std::optional<FakeAttempt> held_ ABSL_GUARDED_BY(held_mu_);
  SeenReply first_;
};

TEST_F(DrainTest, ADrainedWorkerEndsWhatItHasAndGetsNothingNew) {
  StartRouterWithAdmin();
  HoldTheFirst();
  const FakeAttempt first = workers_.attempts()[0];
  const Drained drained = Drain(Of(first.decode_name), [&] {
    EXPECT_EQ(StateOf(first.decode_name), "draining");
    EXPECT_EQ(metrics_.decode_workers.draining.Value(), 1);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(Stream(Ask("more")).status.ok());
    Release();
  });
  EXPECT_TRUE(drained.status.ok()) << drained.status.error_message();
  EXPECT_THAT(drained.remaining, ElementsAre(1, 0));
  AwaitTheFirst();
  const std::vector<FakeAttempt> attempts = workers_.attempts();
  ASSERT_EQ(attempts.size(), 5u);
  for (size_t i = 1; i < attempts.size(); ++i) EXPECT_NE(attempts[i].decode_name, first.decode_name);
  EXPECT_TRUE(workers_.draining(first.decode_name));
}

TEST_F(DrainTest, ASessionMovesFromItsDrainedHomeAndUndrainTakesTheWorkerBack) {
  StartRouterWithAdmin();
  grpc::ClientContext context;
  v1::Session session;
  ASSERT_TRUE(sessions_->CreateSession(&context, v1::CreateSessionRequest(), &session).ok());
  ASSERT_TRUE(Stream(AskIn(session.id(), "one")).status.ok());
  const std::string home = workers_.attempts()[0].prefill_name;
  const Drained drained = Drain(Of(home));
  ASSERT_TRUE(drained.status.ok()) << drained.status.error_message();
  EXPECT_THAT(drained.remaining, ElementsAre(0));
  for (const char* text : {"two", "three"}) ASSERT_TRUE(Stream(AskIn(session.id(), text)).status.ok());
  EXPECT_NE(workers_.attempts()[1].prefill_name, home);
  EXPECT_EQ(workers_.attempts()[2].prefill_name, workers_.attempts()[1].prefill_name);

  v1::UndrainRequest back;
  back.set_worker(home);
  ASSERT_TRUE(Undrain(back).ok());
  AwaitWorkers(2, 2);
  EXPECT_EQ(StateOf(home), "ready");
  const absl::Time until = absl::Now() + kPatience * absl::Seconds(10);
  while (workers_.draining(home) && absl::Now() < until) absl::SleepFor(absl::Milliseconds(2));
  EXPECT_FALSE(workers_.draining(home));
}

TEST_F(DrainTest, ADrainHoldsWhenItsTimeIsOver) {
  StartRouterWithAdmin();
  HoldTheFirst();
  const std::string name = workers_.attempts()[0].prefill_name;
  const Drained drained = Drain(Of(name, 0.2));
  EXPECT_EQ(drained.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(drained.status.error_message(), HasSubstr("1 requests are left"));
  EXPECT_THAT(drained.remaining, ElementsAre(1));
  EXPECT_EQ(StateOf(name), "draining");
  Release();
  AwaitTheFirst();
}

TEST_F(DrainTest, TheLastWorkerOfARoleMayBeDrained) {
  StartRouterWithAdmin({"p1", "d1"});
  ASSERT_TRUE(Drain(Of("d1")).status.ok());
  const SeenReply reply = Stream(Ask("hi"));
  EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(reply.status.error_message(), HasSubstr("no ready decode worker, 1 draining"));
  EXPECT_TRUE(RetryAfterOf(FromGrpcStatus(reply.status)).has_value());
}

TEST_F(DrainTest, AStoppedWorkerEndsWhatItHas) {
  StartRouterWithAdmin();
  HoldTheFirst();
  const std::string name = workers_.attempts()[0].decode_name;
  std::thread stop([&] { workers_.Stop(name); });
  AwaitWorkers(2, 1);
  EXPECT_TRUE(Stream(Ask("more")).status.ok());
  Release();
  AwaitTheFirst();
  stop.join();
  EXPECT_EQ(StateOf(name), "lost");
}

TEST_F(DrainTest, ADrainedRouterRefusesWhatIsNewAndComesBack) {
  StartRouterWithAdmin();
  HoldTheFirst();
  v1::DrainRequest request;
  request.set_router(true);
  const Drained drained = Drain(request, [&] {
    const SeenReply refused = Stream(Ask("more"));
    EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(ReasonOf(FromGrpcStatus(refused.status)), "DRAINING");
    EXPECT_TRUE(RetryAfterOf(FromGrpcStatus(refused.status)).has_value());
    EXPECT_EQ(metrics_.ready.Value(), 0);
    Release();
  });
  EXPECT_TRUE(drained.status.ok()) << drained.status.error_message();
  EXPECT_THAT(drained.remaining, ElementsAre(1, 0));
  AwaitTheFirst();
  v1::UndrainRequest back;
  back.set_router(true);
  ASSERT_TRUE(Undrain(back).ok());
  EXPECT_EQ(metrics_.ready.Value(), 1);
  EXPECT_TRUE(Stream(Ask("more")).status.ok());
}

TEST_F(DrainTest, AWrongTargetOrTimeIsRefused) {
  StartRouterWithAdmin();
  Drained drained = Drain(Of("p9"));
  EXPECT_EQ(drained.status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(drained.status.error_message(), HasSubstr("there are: d1, d2, p1, p2"));
  EXPECT_EQ(Drain({}).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  for (double seconds : {0.0, -1.0, 1e6, std::numeric_limits<double>::quiet_NaN()}) {
    drained = Drain(Of("p1", seconds));
    EXPECT_EQ(drained.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << seconds;
  }
  EXPECT_EQ(StateOf("p1"), "ready");
  EXPECT_EQ(Undrain({}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(metrics_.ready.Value(), 1);
}

}  // namespace
}  // namespace sluice
