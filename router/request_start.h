// Role: from a client's message to a RequestRun, whatever protocol it came by: admission, and what the work
// pool does with the message. Why it exists: every protocol asks the same core. Threads: any; nothing here
// blocks.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/request_run.h"
#include "sluice/v1/inference.pb.h"

namespace sluice {

// What a run does first, on the work pool: `read` fills the message, with ParseRequest's errors.
RequestRun::Planner PlannerOf(const RunServices* services,
                              std::function<absl::Status(v1::ChatRequest*)> read);
RequestRun::Planner PlannerOf(const RunServices* services,
                              std::function<absl::Status(v1::CompleteRequest*)> read);

// A run that is to be attached to its sink and started. authorization: the header's value. Null: it lets
// nobody in (as Authenticator::Admit says), or the router drains or is full; this is counted and was the
// sink's Finish.
std::shared_ptr<RequestRun> AdmitRun(const RunServices* services, const char* method, ReplySink* sink,
                                     std::optional<absl::Duration> timeout, absl::string_view authorization);

// On the work pool: `work`, which asks no worker, and then `answer` with its status. An error of
// Authenticator::Admit, or ResourceExhausted since as many are under way as requests may be in flight:
// neither.
absl::Status SubmitTextCall(const RunServices& services, absl::string_view authorization,
                            std::function<absl::Status()> work,
                            std::function<void(const absl::Status&)> answer);

}  // namespace sluice
