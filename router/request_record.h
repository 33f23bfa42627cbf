// Role: what one request has to tell: its stage, when things happened, what the workers reported; as metrics,
// as the figures of Done, as one line in the log. Why it exists: measuring is apart from what is measured.
// Threads: the run's strand.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/request_flow.h"
#include "router/request_plan.h"
#include "router/run_services.h"
#include "router/token_text.h"

namespace sluice {

class RequestRecord {
 public:
  // Accepted now. method: the RPC's name.
  RequestRecord(const RunServices* services, std::string method);

  absl::Time accepted() const { return accepted_; }
  const std::string& method() const { return method_; }

  void Paired();                                           // the first attempt's counts
  void FirstToken(const internal::v1::FirstToken& first);  // likewise
  void HandedOff(const internal::v1::HandedOff& handed_off) { handed_off_ = handed_off; }
  void Measured(const v1::CompressionLoss& loss) { loss_ = loss; }
  void Generated(const internal::v1::Generated& generated) { generated_ = generated; }
  void Emitted(size_t tokens);
  void DeltaSent();
  // Once per turn of a session: whose history it stood on.
  void TurnServed(bool away_from_home, const std::string& history_outcome);
  // Which gauge of requests in flight this one is in; nullopt: none.
  void ShowStage(std::optional<FlowStage> stage);

  // Usage, timings and compression.
  void Report(const RequestPlan& plan, int emitted, v1::Done* done) const;
  // Once. flow and text: null when the request ended before there were any.
  void Ended(const absl::Status& status, const RequestPlan& plan, const RequestFlow* flow,
             const TokenText* text);

 private:
  double SecondsSinceAccepted() const;
  void CountCancelled(FlowStage stage);
  void CountServed(const RequestPlan& plan, int emitted);

  const RunServices* const services_;
  const std::string method_;
  const absl::Time accepted_;
  std::optional<absl::Time> paired_, first_delta_, last_emitted_;
  std::optional<internal::v1::FirstToken> first_;
  internal::v1::HandedOff handed_off_;
  std::optional<v1::CompressionLoss> loss_;
  internal::v1::Generated generated_;
  std::optional<FlowStage> stage_;
};

}  // namespace sluice
