// Role: between RequestFlow's words and messages: its actions as requests to workers and events for the
// client, what workers report as its events' arguments. Threads: pure functions.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "router/request_flow.h"
#include "router/request_plan.h"
#include "sluice/internal/v1/worker.pb.h"
#include "sluice/v1/inference.pb.h"

namespace sluice {

// choice: which one, from 0. ids: all its tokens so far.
internal::v1::GenerateRequest GenerateRequestOf(const OpenDecode& open, const RequestPlan& plan, int choice,
                                                const std::string& handoff_id, absl::Span<const int32_t> ids);
internal::v1::PrefillRequest PrefillRequestOf(const OpenPrefill& open, const RequestPlan& plan, int choice,
                                              const std::string& handoff_id, absl::Span<const int32_t> ids);

FlowEnd EndOf(const internal::v1::Generated& generated);
HandoffFailure FailureOf(const internal::v1::HandoffFailed& failed);

v1::ChatEvent StartedEvent(const RequestPlan& plan, const std::string& model);
v1::ChatEvent ProgressEvent(const ShowProgress& progress);
v1::FinishReason FinishReasonOf(const FlowEnd& end, const RequestPlan& plan);

}  // namespace sluice
