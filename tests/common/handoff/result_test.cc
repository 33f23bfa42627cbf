#include "common/handoff/result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "common/metrics/kv_transfer_metrics.h"

namespace sluice {
namespace {

using ::testing::UnorderedElementsAre;

TEST(FailureReasonsTest, EachHasItsOwnCounterAndNoneIsOther) {
  MetricsRegistry registry({"decode", "needle", "test"});
  const KvTransferMetrics metrics(&registry, FailureReasonNames());
  const double other = metrics.failures.At("no such reason").Value();
  std::set<std::string> names;
  for (int i = 1; i <= static_cast<int>(HandoffReason::kNotRetained); ++i) {
    const absl::string_view name = ReasonName(static_cast<HandoffReason>(i));
    names.emplace(name);
    metrics.failures.At(name).Increment();
    EXPECT_EQ(metrics.failures.At(name).Value(), 1) << name;
  }
  EXPECT_EQ(metrics.failures.At("no such reason").Value(), other);
  EXPECT_EQ(names.size(), static_cast<size_t>(HandoffReason::kNotRetained));
  EXPECT_EQ(names.count("none"), 0u);
}

// What dashboards and clients know them by.
TEST(FailureReasonsTest, NamesStay) {
  EXPECT_THAT(
      FailureReasonNames(),
      UnorderedElementsAre("busy", "incompatible", "too_large", "stale", "offer_timeout", "no_progress",
                           "lease_expired", "deadline", "peer_lost", "integrity", "transport", "aborted",
                           "peer_aborted", "superseded", "offer_refused", "not_retained"));
}

}  // namespace
}  // namespace sluice
