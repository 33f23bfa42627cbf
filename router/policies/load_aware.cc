// Prefill: where the prompt would be computed first, by the tokens ahead of it and the rate that each worker
// measured. Decode: where the least of the KV memory will be taken, as a step reads what is resident.
#include <algorithm>

#include "router/policies/expected_time.h"

namespace sluice {
namespace {

// Until a worker has reported with requests on it: a request takes so small a share of its pages.
constexpr double kFirstShare = 1.0 / 64;

// Of the pages, with what was sent there since the last report and this request.
double ShareTaken(const Candidate& worker) {
  if (worker.pages_total <= 0) return worker.requests * kFirstShare;
  const double total = static_cast<double>(worker.pages_total);
  const double taken = total - static_cast<double>(worker.pages_free);
  const double each = worker.reported_requests > 0 ? taken / worker.reported_requests : total * kFirstShare;
  return (taken + (worker.requests - worker.reported_requests + 1) * each) / total;
}

class LoadAware final : public RoutePolicy {
 public:
  const char* name() const override { return "load_aware"; }

  size_t Prefill(const RouteQuery& query, absl::Span<const Candidate> candidates) const override {
    return Soonest(PrefillSeconds(query, candidates, false), candidates);
  }

  size_t Decode(const RouteQuery& query, absl::Span<const Candidate> candidates) const override {
    const auto best =
        std::min_element(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
          const double left = ShareTaken(a), right = ShareTaken(b);
          return left != right ? left < right : a.requests < b.requests;
        });
    return best - candidates.begin();
  }
};

}  // namespace

const RoutePolicy* LoadAwarePolicy() {
  static const LoadAware policy;
  return &policy;
}

}  // namespace sluice
