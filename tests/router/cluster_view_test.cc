#include "router/cluster_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

internal::v1::ModelIdentity Identity() {
  internal::v1::ModelIdentity identity;
  identity.set_name("m");
  identity.set_weights_hash("w");
  identity.set_layers(8);
  return identity;
}

internal::v1::WorkerReport Report(const std::string& name, const std::string& role, int life = 1) {
  internal::v1::WorkerReport report;
  report.set_name(name);
  report.set_role(role);
  report.set_address(name + ":1");
  report.set_incarnation(name + "-" + std::to_string(life));
  *report.mutable_model() = Identity();
  report.mutable_load()->set_ready(true);
  return report;
}

class ClusterViewTest : public testing::Test {
 protected:
  std::string Pick(WorkerRole role, const RouteQuery& query = {}) {
    absl::StatusOr<WorkerRef> worker = view.Pick(role, *SessionAffinityPolicy(), query, {}, now);
    return worker.ok() ? worker->name : std::string(absl::StatusCodeToString(worker.status().code()));
  }
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  ClusterView view{Identity(), {}};
};

TEST_F(ClusterViewTest, AnotherModelIsRefusedByTheNameOfTheField) {
  internal::v1::WorkerReport report = Report("p1", "prefill");
  report.mutable_model()->set_layers(9);
  absl::Status status = view.Register(report, now);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.layers: router has 8, worker has 9"));
  report = Report("p1", "prefill");
  report.mutable_model()->set_weights_hash("other");
  EXPECT_THAT(std::string(view.Register(report, now).message()), HasSubstr("weights_hash"));
}

TEST_F(ClusterViewTest, AReportWithoutNameRoleOrAddressIsRefused) {
  internal::v1::WorkerReport report = Report("p1", "prefill");
  report.set_role("both");
  EXPECT_EQ(view.Register(report, now).code(), absl::StatusCode::kInvalidArgument);
  report = Report("", "prefill");
  EXPECT_EQ(view.Register(report, now).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ClusterViewTest, ANameBelongsToOneLiveWorkerOfARole) {
  ASSERT_TRUE(view.Register(Report("a", "prefill"), now).ok());
  EXPECT_EQ(view.Register(Report("a", "prefill", 2), now).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(view.Register(Report("a", "decode", 3), now).ok());
  EXPECT_TRUE(view.Leave("a-1", now));
  EXPECT_TRUE(view.Register(Report("a", "prefill", 2), now).ok());
  EXPECT_EQ(view.List(now).size(), 2u);  // the lost life is forgotten
}

TEST_F(ClusterViewTest, TheLeaseRunsOutUnlessRenewed) {
  ASSERT_TRUE(view.Register(Report("a", "prefill"), now).ok());
  now += absl::Seconds(9);
  internal::v1::WorkerLoad load;
  load.set_ready(true);
  ASSERT_TRUE(view.Renew("a-1", load, now).ok());
  now += absl::Seconds(9);
  EXPECT_THAT(view.Expire(now), ElementsAre());
  now += absl::Seconds(1);
  EXPECT_THAT(view.Expire(now), ElementsAre("a-1"));
  EXPECT_EQ(Pick(WorkerRole::kPrefill), "UNAVAILABLE");
  EXPECT_EQ(view.Renew("a-1", load, now).code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(view.Leave("a-1", now));
  EXPECT_EQ(view.Count(WorkerRole::kPrefill, WorkerState::kLost), 1);
  now += absl::Minutes(10);
  view.Expire(now);
  EXPECT_TRUE(view.List(now).empty());
}

TEST_F(ClusterViewTest, AJoiningWorkerIsNotPicked) {
  internal::v1::WorkerReport report = Report("a", "decode");
  report.mutable_load()->set_ready(false);
  ASSERT_TRUE(view.Register(report, now).ok());
  EXPECT_EQ(Pick(WorkerRole::kDecode), "UNAVAILABLE");
  internal::v1::WorkerLoad load;
  load.set_ready(true);
  ASSERT_TRUE(view.Renew("a-1", load, now).ok());
  EXPECT_EQ(Pick(WorkerRole::kDecode), "a");
}

TEST_F(ClusterViewTest, LoadIsTheLargerOfReportedAndOwn) {
  ASSERT_TRUE(view.Register(Report("a", "decode"), now).ok());
  ASSERT_TRUE(view.Register(Report("b", "decode"), now).ok());
  EXPECT_EQ(Pick(WorkerRole::kDecode), "a");
  view.AddLoad("a-1", 1, 0);
  EXPECT_EQ(Pick(WorkerRole::kDecode), "b");
  internal::v1::WorkerLoad load;
  load.set_ready(true);
  load.set_running(1);
  load.set_queued(1);
  ASSERT_TRUE(view.Renew("b-1", load, now).ok());
  EXPECT_EQ(Pick(WorkerRole::kDecode), "a");
}

TEST_F(ClusterViewTest, PrefillLoadCountsTokens) {
  ASSERT_TRUE(view.Register(Report("a", "prefill"), now).ok());
  ASSERT_TRUE(view.Register(Report("b", "prefill"), now).ok());
  view.AddLoad("a-1", 1, 100000);
  view.AddLoad("b-1", 5, 500);
  EXPECT_EQ(Pick(WorkerRole::kPrefill), "b");
}

TEST_F(ClusterViewTest, TokensAheadAreOursAndThoseOfOtherRouters) {
  ASSERT_TRUE(view.Register(Report("a", "prefill"), now).ok());
  const auto ahead = [&] { return view.Candidates(WorkerRole::kPrefill, {}, {}, now)[0].tokens; };
  view.AddLoad("a-1", 1, 1000);
  internal::v1::WorkerLoad load;
  load.set_ready(true);
  load.set_queued_tokens(1500);
  ASSERT_TRUE(view.Renew("a-1", load, now).ok());
  EXPECT_EQ(ahead(), 1500);
  view.AddLoad("a-1", -1, -1000);  // known at once, whatever the last report said
  EXPECT_EQ(ahead(), 500);
  view.AddLoad("a-1", 1, 200);
  EXPECT_EQ(ahead(), 700);
}

TEST_F(ClusterViewTest, ASpeedIsThatOfTheLastRepliesWhileThereAreRequests) {
  ASSERT_TRUE(view.Register(Report("d", "decode"), now).ok());
  const auto speed = [&] { return view.Candidates(WorkerRole::kDecode, {}, {}, now)[0].seconds_per_token; };
  view.TellSpeed("d-1", 10, absl::Seconds(1));
  EXPECT_EQ(speed(), 0) << "an idle worker is as fast as it can be, which nobody knows";
  view.AddLoad("d-1", 1, 0);
  EXPECT_DOUBLE_EQ(speed(), 0.1);
  for (int i = 0; i < 20; ++i) view.TellSpeed("d-1", 10, absl::Seconds(2));
  EXPECT_NEAR(speed(), 0.2, 0.01);
  view.TellSpeed("d-1", 0, absl::Seconds(9));
  EXPECT_NEAR(speed(), 0.2, 0.01);
}

TEST_F(ClusterViewTest, AWorkerThatIsLostHoldsNoPrefix) {
  ASSERT_TRUE(view.Register(Report("a", "prefill"), now).ok());
  const std::vector<uint64_t> prefix = {1, 2};
  RouteQuery query;
  query.prefix = prefix;
  view.RememberPrefix(prefix, "a-1");
  EXPECT_EQ(view.Candidates(WorkerRole::kPrefill, query, {}, now)[0].cached_tokens, 2 * kPrefixBlock);
  ASSERT_TRUE(view.Leave("a-1", now));
  view.RememberPrefix(prefix, "a-1");  // a reply that was on its way
  ASSERT_TRUE(view.Register(Report("a", "prefill"), now).ok());
  EXPECT_EQ(view.Candidates(WorkerRole::kPrefill, query, {}, now)[0].cached_tokens, 0);
}

TEST_F(ClusterViewTest, ASessionGoesHomeUnlessHomeIsAnotherLife) {
  ASSERT_TRUE(view.Register(Report("a", "prefill"), now).ok());
  ASSERT_TRUE(view.Register(Report("b", "prefill"), now).ok());
  view.AddLoad("b-1", 9, 9000);
  EXPECT_EQ(Pick(WorkerRole::kPrefill, {SessionHome{"b", "b-1"}}), "b");
  EXPECT_EQ(Pick(WorkerRole::kPrefill, {SessionHome{"b", "b-0"}}), "a");
}

TEST_F(ClusterViewTest, AnAvoidedWorkerRestsUntilItsTime) {
  ASSERT_TRUE(view.Register(Report("a", "decode"), now).ok());
  view.Avoid("a-1", now + absl::Seconds(1));
  EXPECT_EQ(Pick(WorkerRole::kDecode), "RESOURCE_EXHAUSTED");
  now += absl::Seconds(1);
  EXPECT_EQ(Pick(WorkerRole::kDecode), "a");
}

TEST(RoutePolicies, EveryPolicyIsFoundByItsName) {
  for (const RoutePolicy* policy : RoutePolicies()) EXPECT_EQ(FindRoutePolicy(policy->name()), policy);
  EXPECT_EQ(FindRoutePolicy("nonsense"), nullptr);
}

internal::v1::WorkerLoad Load(bool draining, int running = 0) {
  internal::v1::WorkerLoad load;
  load.set_ready(true);
  load.set_draining(draining);
  load.set_running(running);
  return load;
}

TEST_F(ClusterViewTest, AnOrderHoldsUntilTheWorkerAgrees) {
  ASSERT_TRUE(view.Register(Report("a", "prefill"), now).ok());
  const WorkerRef a{"a", "a-1", "a:1"};
  EXPECT_EQ(view.Draining("a-1").stage, DrainState::kOff);
  EXPECT_EQ(*view.Order("a", true), "a-1");
  EXPECT_EQ(view.OrdersFor("a-1").drain, true);
  EXPECT_TRUE(view.OrdersFor("a-1").draining);
  EXPECT_EQ(view.Draining("a-1").stage, DrainState::kAsked);
  EXPECT_EQ(Pick(WorkerRole::kPrefill), "UNAVAILABLE");
  EXPECT_TRUE(view.Usable(a, now));  // for what it has
  // A report that left before the order came.
  ASSERT_TRUE(view.Renew("a-1", Load(false, 2), now).ok());
  EXPECT_EQ(view.Draining("a-1").stage, DrainState::kAsked);
  ASSERT_TRUE(view.Renew("a-1", Load(true, 2), now).ok());
  EXPECT_EQ(view.OrdersFor("a-1").drain, std::nullopt);
  EXPECT_EQ(view.Draining("a-1").stage, DrainState::kOn);
  EXPECT_EQ(view.Draining("a-1").remaining, 2);
  view.AddLoad("a-1", 3, 0);  // this router gave it more than it has told of yet
  EXPECT_EQ(view.Draining("a-1").remaining, 3);
  // Undrained through another router.
  ASSERT_TRUE(view.Renew("a-1", Load(false), now).ok());
  EXPECT_EQ(view.Draining("a-1").stage, DrainState::kOff);
  EXPECT_EQ(Pick(WorkerRole::kPrefill), "a");
}

TEST_F(ClusterViewTest, AWorkerThatDrainsByItselfGetsNothingAndAnUndrainIsAnOrder) {
  internal::v1::WorkerReport report = Report("a", "decode");
  *report.mutable_load() = Load(true);
  ASSERT_TRUE(view.Register(report, now).ok());
  EXPECT_EQ(view.Count(WorkerRole::kDecode, WorkerState::kDraining), 1);
  EXPECT_EQ(Pick(WorkerRole::kDecode), "UNAVAILABLE");
  EXPECT_EQ(*view.Order("a-1", false), "a-1");
  EXPECT_EQ(view.OrdersFor("a-1").drain, false);
  ASSERT_TRUE(view.Renew("a-1", Load(false), now).ok());
  EXPECT_EQ(view.OrdersFor("a-1").drain, std::nullopt);
  EXPECT_EQ(Pick(WorkerRole::kDecode), "a");
  view.Leave("a-1", now);
  EXPECT_EQ(view.Draining("a-1").stage, DrainState::kGone);
}

TEST_F(ClusterViewTest, AnOrderIsForOneWorker) {
  ASSERT_TRUE(view.Register(Report("a", "prefill"), now).ok());
  ASSERT_TRUE(view.Register(Report("a", "decode", 2), now).ok());
  const absl::Status several = view.Order("a", true).status();
  EXPECT_EQ(several.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(several.message()), HasSubstr("a-1, a-2"));
  EXPECT_EQ(view.Order("b", true).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*view.Order("a-2", true), "a-2");
  EXPECT_EQ(Pick(WorkerRole::kPrefill), "a");
  EXPECT_EQ(Pick(WorkerRole::kDecode), "UNAVAILABLE");
}

}  // namespace
}  // namespace sluice
