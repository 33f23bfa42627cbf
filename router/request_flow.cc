#include "router/request_flow.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/rpc/status_codec.h"

namespace sluice {
namespace {

constexpr absl::Duration kAvoidBusy = absl::Milliseconds(250);
constexpr absl::Duration kAvoidLost = absl::Seconds(1);
constexpr absl::Duration kRetryAfter = absl::Seconds(1);

// The request itself is at fault, or its computation: another worker would say the same.
bool IsFinal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kOutOfRange:
      return true;
    case absl::StatusCode::kInternal:
      return !ReasonOf(status).empty();
    default:
      return false;
  }
}

bool IsBusy(const absl::Status& status) { return status.code() == absl::StatusCode::kResourceExhausted; }

// A stream that ended well without its terminal event is a broken worker.
absl::Status Failure(const absl::Status& status, absl::string_view role) {
  if (!status.ok()) return status;
  return absl::UnavailableError(absl::StrCat("the ", role, " worker ended its stream early"));
}

}  // namespace

RequestFlow::RequestFlow(FlowRequest request, const FlowOptions& options, WorkerPicker* picker)
    : request_(std::move(request)), options_(options), picker_(picker) {}

FlowActions RequestFlow::Start(absl::Time now) {
  FlowActions out;
  attempt_ = 1;
  out.push_back(WakeAt{request_.deadline});
  TryPair(now, &out);
  return out;
}

void RequestFlow::TryPair(absl::Time now, FlowActions* out) {
  stage_ = FlowStage::kQueued;
  if (kept_at_.has_value() && !picker_->Usable(*kept_at_)) kept_at_.reset();
  absl::StatusOr<WorkerRef> prefill =
      kept_at_.has_value() ? *kept_at_ : picker_->Pick(WorkerRole::kPrefill, request_.route, {});
  absl::StatusOr<WorkerRef> decode = picker_->Pick(WorkerRole::kDecode, request_.route, excluded_);
  if (prefill.ok() && decode.ok()) {
    waiting_ = false;
    StartAttempt(*prefill, *decode, now, out);
    return;
  }
  absl::Status why = !prefill.ok() ? prefill.status() : decode.status();
  bool no_worker = why.code() == absl::StatusCode::kUnavailable;
  bool first = attempt_ == 1;
  bool never = !excluded_.empty() && prefill.ok() && !worker_lost_ && IsFinal(cause_);
  if (!waiting_) backoff_ = options_.first_backoff;
  waiting_ = true;
  GiveUpIn(no_worker || worker_lost_ ? options_.pair_wait : options_.busy_wait, now);
  if ((first && no_worker) || never || now >= *give_up_at_) return End(Fail{NoPair(why)}, out);
  next_try_ = std::min(now + backoff_, *give_up_at_);
  backoff_ = std::min(backoff_ * 2, options_.max_backoff);
  out->push_back(WakeAt{next_try_});
}

void RequestFlow::GiveUpIn(absl::Duration wait, absl::Time now) {
  if (!give_up_at_.has_value()) give_up_at_ = now + wait;
}

absl::Status RequestFlow::NoPair(const absl::Status& why) const {
  if (IsFinal(cause_)) return cause_;
  if (emitted_ > 0 && worker_lost_) {
    return WithReason(
        absl::AbortedError(absl::StrCat("a worker was lost (", cause_.message(), ") after ", emitted_,
                                        " tokens, and no pair can go on: ", why.message())),
        "WORKER_LOST");
  }
  absl::string_view cause = cause_.message();
  std::string text = absl::StrCat(why.message(), cause.empty() ? "" : "; last attempt: ", cause);
  absl::Status status(why.code(), text);
  return WithRetryAfter(WithReason(status, IsBusy(why) ? "WORKERS_BUSY" : "NO_READY_WORKER"), kRetryAfter);
}

void RequestFlow::StartAttempt(const WorkerRef& prefill, const WorkerRef& decode, absl::Time now,
                               FlowActions* out) {
  reuse_kept_ = kept_at_.has_value();
  if (!reuse_kept_) base_ = emitted_;
  prefill_ = prefill;
  decode_ = decode;
  prefill_call_ = Call::kNone;
  decode_call_ = Call::kOpen;
  first_seen_ = receiving_ = false;
  held_.clear();
  decode_lost_.reset();
  register_by_ = now + options_.register_wait;
  out->push_back(OpenDecode{attempt_, decode_, prefill_, base_});
  out->push_back(WakeAt{register_by_});
}

void RequestFlow::DropDecode(FlowActions* out) {
  if (decode_call_ == Call::kOpen) out->push_back(CancelDecode{});
  decode_call_ = Call::kDone;
}

void RequestFlow::DropCalls(FlowActions* out) {
  DropDecode(out);
  if (prefill_call_ == Call::kOpen || measuring_) out->push_back(CancelPrefill{});
  prefill_call_ = Call::kDone;
  measuring_ = false;
}

void RequestFlow::End(FlowAction terminal, FlowActions* out) {
  DropCalls(out);
  ended_ = true;
  out->push_back(std::move(terminal));
}

void RequestFlow::Retry(const absl::Status& cause, bool lost, absl::Time now, FlowActions* out) {
  DropCalls(out);
  ++attempt_;
  cause_ = cause;
  worker_lost_ = lost;
  if (lost) {
    give_up_at_.reset();  // the number of attempts is the bound
    if (++failed_attempts_ >= options_.max_attempts) {
      absl::Status why = absl::UnavailableError(absl::StrCat(failed_attempts_, " attempts failed"));
      return End(Fail{absl::IsDataLoss(cause) ? cause : NoPair(why)}, out);
    }
  } else if (IsBusy(cause)) {
    GiveUpIn(options_.busy_wait, now);
    if (now >= *give_up_at_)
      return End(Fail{NoPair(absl::ResourceExhaustedError("no worker has room"))}, out);
  }
  TryPair(now, out);
}

absl::Status RequestFlow::OutOfTime() const {
  if (emitted_ > 0 && waiting_ && worker_lost_) return NoPair(absl::DeadlineExceededError("no time is left"));
  return absl::DeadlineExceededError("the request's deadline has passed");
}

FlowActions RequestFlow::Wake(absl::Time now) {
  FlowActions out;
  if (ended_) return out;
  bool complete = end_.has_value() && emitted_ > base_;
  if (complete && (now >= report_by_ || now >= request_.deadline)) {
    End(Complete{*end_}, &out);
  } else if (now >= request_.deadline) {
    End(Fail{OutOfTime()}, &out);
  } else if (waiting_) {
    if (now >= next_try_) TryPair(now, &out);
  } else if (prefill_call_ == Call::kNone && decode_call_ == Call::kOpen && now >= register_by_) {
    DropDecode(&out);
    DecodeLost(absl::UnavailableError(absl::StrCat("decode ", decode_.name, " does not answer")), now, &out);
  }
  return out;
}

FlowActions RequestFlow::Cancel() { return Abandon(absl::CancelledError("cancelled by the client")); }

FlowActions RequestFlow::Abandon(absl::Status why) {
  FlowActions out;
  if (!ended_) End(Fail{std::move(why)}, &out);
  return out;
}

FlowActions RequestFlow::StopString() {
  FlowActions out;
  if (ended_) return out;
  end_ = FlowEnd{FlowEnd::kStopString};
  held_.clear();
  DropDecode(&out);
  // Prefill, if it still runs, ends by itself: its report is waited for.
  if (prefill_call_ != Call::kOpen && !measuring_) End(Complete{*end_}, &out);
  return out;
}

FlowActions RequestFlow::Registered(uint32_t attempt) {
  FlowActions out;
  if (Stale(attempt) || prefill_call_ != Call::kNone || decode_call_ != Call::kOpen) return out;
  prefill_call_ = Call::kOpen;
  out.push_back(OpenPrefill{attempt_, prefill_, decode_, reuse_kept_, base_});
  return out;
}

FlowActions RequestFlow::Progress(uint32_t attempt, bool running, int layers_done, int layers, int cached) {
  FlowActions out;
  if (Stale(attempt) || first_seen_) return out;
  stage_ = running ? FlowStage::kPrefill : FlowStage::kQueued;
  out.push_back(ShowProgress{stage_, layers_done, layers, cached});
  return out;
}

bool RequestFlow::Ends(int32_t id, int index) const {
  if (index + 1 >= request_.max_tokens) return true;
  return index + 1 > request_.min_tokens && request_.stop_ids.count(id) > 0;
}

void RequestFlow::Emit(std::vector<int32_t> ids, FlowActions* out) {
  if (ids.empty()) return;
  emitted_ += static_cast<int>(ids.size());
  last_emitted_ = ids.back();
  out->push_back(EmitTokens{std::move(ids)});
}

FlowActions RequestFlow::FirstToken(uint32_t attempt, int32_t id, bool ends, bool stopped, absl::Time now) {
  FlowActions out;
  if (Stale(attempt) || first_seen_ || prefill_call_ != Call::kOpen) return out;
  first_seen_ = true;
  if (emitted_ == base_) Emit({id}, &out);
  if (ends) {
    end_ = FlowEnd{stopped ? FlowEnd::kStopId : FlowEnd::kLength, stopped ? id : -1};
    held_.clear();
    DropDecode(&out);
  } else if (stage_ != FlowStage::kDecode) {
    stage_ = FlowStage::kTransfer;
    out.push_back(ShowProgress{stage_, 0, 0, 0});
  }
  Emit(std::exchange(held_, {}), &out);
  MaybeComplete(now, &out);
  return out;
}

FlowActions RequestFlow::HandedOff(uint32_t attempt, bool measuring, absl::Time now) {
  FlowActions out;
  if (Stale(attempt) || prefill_call_ != Call::kOpen) return out;
  prefill_call_ = Call::kDone;
  measuring_ = measuring;
  if (measuring_) report_by_ = absl::InfiniteFuture();  // until the request's deadline
  kept_at_.reset();
  give_up_at_.reset();
  if (decode_lost_.has_value()) {
    Retry(*decode_lost_, true, now, &out);
  } else if (emitted_ == base_) {
    Retry(absl::InternalError("prefill handed off without a first token"), true, now, &out);
  } else {
    MaybeComplete(now, &out);
  }
  return out;
}

FlowActions RequestFlow::Measured(uint32_t attempt, absl::Time now) {
  FlowActions out;
  if (Stale(attempt) || !std::exchange(measuring_, false)) return out;
  MaybeComplete(now, &out);
  return out;
}

FlowActions RequestFlow::HandoffFailed(uint32_t attempt, const HandoffFailure& failure, absl::Time now) {
  FlowActions out;
  if (Stale(attempt) || prefill_call_ != Call::kOpen) return out;
  prefill_call_ = Call::kDone;
  if (end_.has_value() && emitted_ > base_) {
    MaybeComplete(now, &out);
    return out;
  }
  // D has it all, only its Commit did not arrive.
  if (receiving_ && emitted_ > base_ && !decode_lost_.has_value()) return out;
  kept_at_.reset();
  if (failure.retained) kept_at_ = prefill_;
  std::string text = absl::StrCat("hand-off to decode ", decode_.name, ": ", failure.reason,
                                  failure.detail.empty() ? "" : ", ", failure.detail);
  if (failure.reason == "busy") {
    picker_->Avoid(decode_, std::max(failure.retry_after, kAvoidBusy));
    Retry(absl::ResourceExhaustedError(text), false, now, &out);
  } else if (failure.reason == "too_large" || failure.reason == "incompatible") {
    absl::string_view remedy =
        failure.reason == "too_large"
            ? "lower compression.budget_tokens or stopping.max_tokens, or give decode more "
              "KV memory"
            : "change compression.preset";
    excluded_.insert(decode_.incarnation);
    Retry(absl::FailedPreconditionError(absl::StrCat(text, "; ", remedy)), false, now, &out);
  } else {
    picker_->Avoid(decode_, kAvoidLost);
    absl::Status cause =
        failure.reason == "integrity" ? absl::DataLossError(text) : absl::UnavailableError(text);
    Retry(decode_lost_.value_or(cause), true, now, &out);
  }
  return out;
}

FlowActions RequestFlow::PrefillEnded(uint32_t attempt, const absl::Status& status, absl::Time now) {
  FlowActions out = Measured(attempt, now);  // it never will
  if (Stale(attempt) || prefill_call_ != Call::kOpen) return out;
  prefill_call_ = Call::kDone;
  PrefillLost(Failure(status, "prefill"), now, &out);
  return out;
}

void RequestFlow::PrefillLost(const absl::Status& status, absl::Time now, FlowActions* out) {
  bool has_first = emitted_ > base_;
  if (has_first && end_.has_value()) return MaybeComplete(now, out);
  if (has_first && receiving_ && !decode_lost_.has_value()) return;  // D has it all
  bool kept_gone = reuse_kept_ && (status.code() == absl::StatusCode::kNotFound || IsFinal(status));
  kept_at_.reset();
  if (kept_gone) {
    absl::Status gone = absl::UnavailableError(absl::StrCat("prefill ", prefill_.name, " kept nothing"));
    return Retry(gone, true, now, out);
  }
  if (IsFinal(status)) return End(Fail{status}, out);
  if (absl::IsDeadlineExceeded(status)) return End(Fail{OutOfTime()}, out);
  picker_->Avoid(prefill_, IsBusy(status) ? kAvoidBusy : kAvoidLost);
  Retry(status, !IsBusy(status), now, out);
}

FlowActions RequestFlow::Receiving(uint32_t attempt) {
  FlowActions out;
  if (Stale(attempt) || receiving_ || decode_call_ != Call::kOpen) return out;
  receiving_ = true;
  give_up_at_.reset();
  stage_ = FlowStage::kDecode;
  if (!end_.has_value()) out.push_back(ShowProgress{stage_, 0, 0, 0});
  return out;
}

FlowActions RequestFlow::Tokens(uint32_t attempt, int index, const std::vector<int32_t>& ids,
                                absl::Time now) {
  FlowActions out;
  if (Stale(attempt) || end_.has_value() || decode_call_ != Call::kOpen) return out;
  bool waits_for_first = emitted_ == base_;
  int next = emitted_ + (waits_for_first ? 1 : 0) + static_cast<int>(held_.size());
  if (index > next) {
    DropDecode(&out);
    DecodeLost(
        absl::UnavailableError(absl::StrCat("decode ", decode_.name, " skipped tokens: sent output index ",
                                            index, ", next is ", next)),
        now, &out);
    return out;
  }
  size_t known = std::min<size_t>(next - index, ids.size());
  held_.insert(held_.end(), ids.begin() + known, ids.end());
  if (!waits_for_first) Emit(std::exchange(held_, {}), &out);
  return out;
}

FlowActions RequestFlow::Generated(uint32_t attempt, const FlowEnd& end, absl::Time now) {
  FlowActions out;
  if (Stale(attempt) || end_.has_value() || decode_call_ != Call::kOpen) return out;
  decode_call_ = Call::kDone;
  end_ = end;
  MaybeComplete(now, &out);
  return out;
}

void RequestFlow::MaybeComplete(absl::Time now, FlowActions* out) {
  if (ended_ || !end_.has_value() || emitted_ == base_) return;
  if (measuring_) return;
  if (prefill_call_ != Call::kOpen) return End(Complete{*end_}, out);
  if (report_by_ == absl::InfiniteFuture()) {
    report_by_ = now + options_.report_wait;
    out->push_back(WakeAt{report_by_});
  }
}

FlowActions RequestFlow::DecodeEnded(uint32_t attempt, const absl::Status& status, absl::Time now) {
  FlowActions out;
  if (Stale(attempt) || decode_call_ != Call::kOpen) return out;
  decode_call_ = Call::kDone;
  DecodeLost(Failure(status, "decode"), now, &out);
  return out;
}

void RequestFlow::DecodeLost(const absl::Status& status, absl::Time now, FlowActions* out) {
  bool has_first = emitted_ > base_;
  if (has_first && Ends(last_emitted_, emitted_ - 1)) {  // only the farewell is missing
    bool stop = request_.stop_ids.count(last_emitted_) > 0;
    end_ = FlowEnd{stop ? FlowEnd::kStopId : FlowEnd::kLength, stop ? last_emitted_ : -1};
    return MaybeComplete(now, out);
  }
  if (IsFinal(status)) return End(Fail{status}, out);
  if (absl::IsDeadlineExceeded(status)) return End(Fail{OutOfTime()}, out);
  picker_->Avoid(decode_, IsBusy(status) ? kAvoidBusy : kAvoidLost);
  if (prefill_call_ == Call::kOpen) {
    decode_lost_ = status;
    return;
  }
  Retry(status, !IsBusy(status), now, out);
}

FlowActions RequestFlow::WorkerLost(const std::string& incarnation, absl::Time now) {
  FlowActions out;
  if (ended_) return out;
  if (measuring_ && prefill_.incarnation == incarnation) {
    out.push_back(CancelPrefill{});
    measuring_ = false;
    MaybeComplete(now, &out);
  } else if (prefill_call_ == Call::kOpen && prefill_.incarnation == incarnation) {
    out.push_back(CancelPrefill{});
    prefill_call_ = Call::kDone;
    PrefillLost(absl::UnavailableError(absl::StrCat("prefill ", prefill_.name, " lost its lease")), now,
                &out);
  } else if (decode_call_ == Call::kOpen && decode_.incarnation == incarnation) {
    DropDecode(&out);
    DecodeLost(absl::UnavailableError(absl::StrCat("decode ", decode_.name, " lost its lease")), now, &out);
  }
  return out;
}

}  // namespace sluice
