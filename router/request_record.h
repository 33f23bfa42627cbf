// Role: what one request has to tell: its stage, and what was measured of its choices; as metrics, as the
// figures of Done, as one line in the log. Why it exists: measuring is apart from what is measured.
// Threads: the run's strand.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/choice_run.h"
#include "router/request_flow.h"
#include "router/request_plan.h"
#include "router/run_services.h"

namespace sluice {

class RequestRecord {
 public:
  using Choices = std::vector<std::unique_ptr<ChoiceRun>>;

  // Accepted now. method: the RPC's name.
  RequestRecord(const RunServices* services, std::string method);

  absl::Time accepted() const { return accepted_; }
  const std::string& method() const { return method_; }

  // Once per turn of a session: whose history it stood on.
  void TurnServed(bool away_from_home, const std::string& history_outcome);
  // Which gauge of requests in flight this one is in; nullopt: none.
  void ShowStage(std::optional<FlowStage> stage);

  // Usage, timings and compression.
  void Report(const RequestPlan& plan, const Choices& choices, v1::Done* done) const;
  // Once. No choices: the request ended before there were any.
  void Ended(const absl::Status& status, const RequestPlan& plan, const Choices& choices, FlowStage stage);

 private:
  double SecondsSinceAccepted() const;
  void CountCancelled(FlowStage stage);
  void CountServed(const RequestPlan& plan, const Choices& choices);

  const RunServices* const services_;
  const std::string method_;
  const absl::Time accepted_;
  std::optional<FlowStage> stage_;
};

}  // namespace sluice
