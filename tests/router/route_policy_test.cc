#include "router/policies/route_policy.h"

#include <gtest/gtest.h>

#include <set>

namespace sluice {
namespace {

Candidate Prefill(const std::string& name, int64_t tokens, double rate, int64_t cached = 0) {
  Candidate candidate;
  candidate.name = candidate.incarnation = name;
  candidate.tokens = tokens;
  candidate.tokens_per_second = rate;
  candidate.cached_tokens = cached;
  return candidate;
}

Candidate Decode(const std::string& name, int64_t pages_free, int requests, int reported) {
  Candidate candidate;
  candidate.name = candidate.incarnation = name;
  candidate.pages_total = 1000;
  candidate.pages_free = pages_free;
  candidate.requests = requests;
  candidate.reported_requests = reported;
  return candidate;
}

RouteQuery Prompt(int64_t tokens) {
  RouteQuery query;
  query.tokens = tokens;
  return query;
}

std::string Chosen(const RoutePolicy* policy, const RouteQuery& query, std::vector<Candidate> candidates) {
  return candidates[policy->Prefill(query, candidates)].name;
}
std::string ChosenDecode(std::vector<Candidate> candidates) {
  return candidates[LoadAwarePolicy()->Decode({}, candidates)].name;
}

TEST(RoutePolicies, HaveNamesOfTheirOwnAndTheFirstIsTheDefault) {
  std::set<std::string> names;
  for (const RoutePolicy* policy : RoutePolicies()) {
    EXPECT_TRUE(names.insert(policy->name()).second);
    EXPECT_EQ(FindRoutePolicy(policy->name()), policy);
  }
  EXPECT_EQ(names.size(), 4u);
  EXPECT_EQ(RoutePolicies()[0], CacheAwarePolicy());
  EXPECT_EQ(FindRoutePolicy("none"), nullptr);
}

TEST(LoadAware, GoesWhereThePromptIsComputedFirst) {
  // 3000 tokens at 1000 a second, or 5000 at 4000.
  EXPECT_EQ(Chosen(LoadAwarePolicy(), Prompt(1000), {Prefill("a", 2000, 1000), Prefill("b", 4000, 4000)}),
            "b");
  EXPECT_EQ(Chosen(LoadAwarePolicy(), Prompt(1000), {Prefill("a", 0, 1000), Prefill("b", 4000, 4000)}), "a");
}

TEST(LoadAware, AWorkerThatMeasuredNothingIsTakenForOneOfTheOthers) {
  EXPECT_EQ(Chosen(LoadAwarePolicy(), Prompt(100), {Prefill("a", 500, 1000), Prefill("b", 0, 0)}), "b");
  EXPECT_EQ(Chosen(LoadAwarePolicy(), Prompt(100), {Prefill("a", 0, 1000), Prefill("b", 500, 0)}), "a");
  EXPECT_EQ(Chosen(LoadAwarePolicy(), Prompt(100), {Prefill("a", 500, 0), Prefill("b", 0, 0)}), "b");
}

TEST(LoadAware, AmongEqualsTheOneWithFewerBytesOnTheirWay) {
  Candidate a = Prefill("a", 0, 1010), b = Prefill("b", 0, 1000);  // rates differ by noise
  EXPECT_EQ(Chosen(LoadAwarePolicy(), Prompt(1000), {a, b}), "a");
  a.bytes_in_flight = 1 << 20;
  EXPECT_EQ(Chosen(LoadAwarePolicy(), Prompt(1000), {a, b}), "b");
  b.tokens = 5000;  // that is no noise
  EXPECT_EQ(Chosen(LoadAwarePolicy(), Prompt(1000), {a, b}), "a");
  a.bytes_in_flight = b.tokens = 0;
  a.requests = 1;
  EXPECT_EQ(Chosen(LoadAwarePolicy(), Prompt(1000), {a, b}), "b");
}

TEST(LoadAware, DecodeGoesWhereLeastIsResident) {
  EXPECT_EQ(ChosenDecode({Decode("a", 200, 2, 2), Decode("b", 700, 5, 5)}), "b");
  // What was sent since the report counts as much as what is there.
  EXPECT_EQ(ChosenDecode({Decode("a", 600, 2, 2), Decode("b", 700, 8, 3)}), "a");
  // No pages known: requests.
  Candidate a = Decode("a", 0, 3, 0), b = Decode("b", 0, 1, 0);
  a.pages_total = b.pages_total = 0;
  EXPECT_EQ(ChosenDecode({a, b}), "b");
}

TEST(LoadAware, ABurstBetweenTwoReportsIsSpread) {
  std::vector<Candidate> workers = {Decode("a", 1000, 0, 0), Decode("b", 1000, 0, 0)};
  int seen[2] = {0, 0};
  for (int i = 0; i < 10; ++i) {
    const size_t chosen = LoadAwarePolicy()->Decode({}, workers);
    ++workers[chosen].requests;
    ++seen[chosen];
  }
  EXPECT_EQ(seen[0], 5);
  EXPECT_EQ(seen[1], 5);
}

TEST(CacheAware, PrefersWhoHoldsThePrefix) {
  EXPECT_EQ(Chosen(CacheAwarePolicy(), Prompt(1000), {Prefill("a", 0, 1000), Prefill("b", 500, 1000, 900)}),
            "b");
  EXPECT_EQ(Chosen(LoadAwarePolicy(), Prompt(1000), {Prefill("a", 0, 1000), Prefill("b", 500, 1000, 900)}),
            "a");
}

TEST(CacheAware, AQueueThatCostsMoreThanThePrefixSavesSendsItElsewhere) {
  EXPECT_EQ(Chosen(CacheAwarePolicy(), Prompt(1000), {Prefill("a", 0, 1000), Prefill("b", 1500, 1000, 900)}),
            "a");
}

TEST(CacheAware, WithoutAPrefixItGoesByLoad) {
  EXPECT_EQ(Chosen(CacheAwarePolicy(), Prompt(1000), {Prefill("a", 10, 0), Prefill("b", 0, 0)}), "b");
}

TEST(SessionAffinity, GoesHomeWhateverTheQueue) {
  RouteQuery query = Prompt(1000);
  query.home = SessionHome{"b", "b"};
  EXPECT_EQ(Chosen(SessionAffinityPolicy(), query, {Prefill("a", 0, 0), Prefill("b", 99999, 0)}), "b");
}

}  // namespace
}  // namespace sluice
