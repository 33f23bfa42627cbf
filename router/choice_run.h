// Role: one answer to a request: feeds its RequestFlow with what workers and timers do, carries out what the
// flow decides, and makes text of the tokens. Why it exists: a request may ask for several answers to its
// prompt; each has its own pair of workers, its own attempts and its own fence, and all are one reply.
// Threads: the request's strand.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "router/choice_record.h"
#include "router/reply_logprobs.h"
#include "router/request_flow.h"
#include "router/request_plan.h"
#include "router/run_services.h"
#include "router/strand.h"
#include "router/token_text.h"
#include "router/worker_call.h"

namespace sluice {

class ChoiceRun {
 public:
  // The request. The choice is a part of it.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual std::shared_ptr<void> Hold() = 0;  // who has it keeps the request, and this choice with it
    virtual Strand* strand() = 0;
    virtual bool paused() const = 0;  // the client has much to read
    virtual void Send(v1::ChatEvent event) = 0;
    virtual void HistoryAt(const WorkerRef& prefill, const internal::v1::FirstToken& first) = 0;
    virtual void StageMayHaveChanged() = 0;
    // One of them, once and last.
    virtual void ChoiceEnded() = 0;
    virtual void ChoiceFailed(const absl::Status& status) = 0;
  };

  // plan and owner outlive it. index: of the choice.
  ChoiceRun(const RunServices* services, const RequestPlan* plan, int index, absl::Time deadline,
            StopMatcher stops, Owner* owner);

  void Start();
  void WorkerLost(const std::string& incarnation);
  void Abandon(const absl::Status& why);  // ChoiceFailed follows, unless it has ended
  void SetPaused(bool paused);

  bool ended() const { return end_.has_value(); }
  FlowStage stage() const { return flow_.stage(); }
  int attempts() const { return static_cast<int>(flow_.attempt()); }
  const TokenText& text() const { return text_; }
  const ChoiceRecord& record() const { return record_; }
  // After ChoiceEnded.
  v1::Choice Outcome() const;

 private:
  std::shared_ptr<ChoiceRun> Self() { return {owner_->Hold(), this}; }
  void Act(const FlowActions& actions);
  void Open(const OpenDecode& open);
  void Open(const OpenPrefill& open);
  void OnDecodeEvent(uint32_t attempt, const internal::v1::GenerateEvent& event);
  void TellSpeed(const WorkerRef& decode, const internal::v1::Generated& generated);
  void OnPrefillEvent(uint32_t attempt, const internal::v1::PrefillEvent& event);
  // Of tokens from output index `index` on. False: the worker left out what was asked for.
  bool TakeLogprobs(uint32_t attempt, int index, int tokens,
                    absl::Span<const internal::v1::TokenLogprobs* const> logprobs);
  void Emit(const std::vector<int32_t>& ids);
  void SendDelta(const TokenText::Piece& piece);
  void WakeAtTime(absl::Time time);

  const RunServices* const services_;
  const RequestPlan& plan_;
  const int index_;
  const absl::Time deadline_;
  Owner* const owner_;
  const std::string handoff_id_;
  ChoiceRecord record_;
  TokenText text_;
  RequestFlow flow_;
  std::optional<ReplyLogprobs> logprobs_;  // if asked for
  std::shared_ptr<WorkerCall<internal::v1::PrefillEvent>> prefill_call_;
  std::shared_ptr<WorkerCall<internal::v1::GenerateEvent>> decode_call_;
  bool held_back_ = false;  // decode was, by the client, at some time
  std::optional<int> matched_stop_;
  std::optional<FlowEnd> end_;
};

}  // namespace sluice
