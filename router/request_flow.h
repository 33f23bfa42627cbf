// Role: the life of one request as a state machine: which worker is called when, which token goes to the
// client, what happens when a worker fails. Why it exists: no socket, thread or clock, so every failure is a
// test in microseconds. RequestRun (request_run.h) feeds it events and carries out its actions.
// Threads: one owner.
//
//   pick (P,D) -> OpenDecode -> registered -> OpenPrefill -> first token -> handed off -> tokens -> generated
//
// A token is emitted once: `emitted` is the fence, in output indices, over all attempts. While P holds the
// kept set (until D's Commit) a new attempt goes to another D with reuse_kept; afterwards, or when P is lost,
// the prompt and the emitted tokens are prefilled again.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/cluster_view.h"

namespace sluice {

struct FlowOptions {
  absl::Duration pair_wait = absl::Seconds(15);     // for a lost worker's successor
  absl::Duration busy_wait = absl::Seconds(30);     // for room on some worker
  absl::Duration register_wait = absl::Seconds(5);  // for D to answer Generate
  absl::Duration report_wait = absl::Seconds(2);    // after the last token, for P's report
  absl::Duration first_backoff = absl::Milliseconds(50);
  absl::Duration max_backoff = absl::Seconds(1);
  int max_attempts = 8;  // that fail; waiting for room is not one
};

struct FlowRequest {
  RouteQuery route;
  int max_tokens = 0;
  int min_tokens = 0;
  std::set<int32_t> stop_ids;
  absl::Time deadline;
};

// A hand-off that came to nothing, as prefill reports it.
struct HandoffFailure {
  std::string reason;  // a name of common/handoff/result.h, or prefill's own
  std::string detail = {};
  bool retained = false;  // prefill still holds the kept set
  absl::Duration retry_after = absl::ZeroDuration();
};

enum class FlowStage { kQueued, kPrefill, kTransfer, kDecode };

// How generation ended.
struct FlowEnd {
  enum Reason { kStopId, kStopString, kLength, kContext };
  Reason reason = kLength;
  int32_t stop_id = -1;
};

// What to do. Calls are those of the current attempt; one call of each kind at most.
struct OpenDecode {
  uint32_t attempt;
  WorkerRef decode, prefill;
  int emitted;  // tokens of earlier attempts that end this attempt's prompt
};
struct OpenPrefill {
  uint32_t attempt;
  WorkerRef prefill, decode;
  bool reuse_kept;
  int emitted;
};
struct CancelDecode {};
struct CancelPrefill {};
struct EmitTokens {
  std::vector<int32_t> ids;  // in output order, each once
};
struct ShowProgress {
  FlowStage stage;
  int processed, total, cached;
};
struct WakeAt {
  absl::Time time;
};
struct Complete {
  FlowEnd end;
};
struct Fail {
  absl::Status status;
};
using FlowAction = std::variant<OpenDecode, OpenPrefill, CancelDecode, CancelPrefill, EmitTokens,
                                ShowProgress, WakeAt, Complete, Fail>;
using FlowActions = std::vector<FlowAction>;

// The cluster as a flow sees it.
class WorkerPicker {
 public:
  virtual ~WorkerPicker() = default;
  // As ClusterView::Pick.
  virtual absl::StatusOr<WorkerRef> Pick(WorkerRole role, const RouteQuery& query,
                                         const std::set<std::string>& excluded) = 0;
  virtual bool Usable(const WorkerRef& worker) = 0;
  virtual void Avoid(const WorkerRef& worker, absl::Duration how_long) = 0;
};

class RequestFlow {
 public:
  RequestFlow(FlowRequest request, const FlowOptions& options, WorkerPicker* picker);

  // Every method returns what to do, in order. After Complete or Fail there is nothing more.
  FlowActions Start(absl::Time now);
  FlowActions Wake(absl::Time now);  // at a WakeAt's time; earlier or later does no harm
  FlowActions Cancel();              // the client went
  FlowActions Abandon(absl::Status why);
  FlowActions StopString();  // the text of the emitted tokens ended at a stop string

  // Worker events; those of an earlier attempt change nothing.
  FlowActions Registered(uint32_t attempt);
  FlowActions Progress(uint32_t attempt, bool running, int layers_done, int layers, int cached);
  FlowActions FirstToken(uint32_t attempt, int32_t id, bool ends, bool stopped, absl::Time now);
  // measuring: Measured follows, and the end waits for it.
  FlowActions HandedOff(uint32_t attempt, bool measuring, absl::Time now);
  FlowActions Measured(uint32_t attempt, absl::Time now);
  FlowActions HandoffFailed(uint32_t attempt, const HandoffFailure& failure, absl::Time now);
  FlowActions PrefillEnded(uint32_t attempt, const absl::Status& status, absl::Time now);
  FlowActions Receiving(uint32_t attempt);
  FlowActions Tokens(uint32_t attempt, int index, const std::vector<int32_t>& ids, absl::Time now);
  FlowActions Generated(uint32_t attempt, const FlowEnd& end, absl::Time now);
  FlowActions DecodeEnded(uint32_t attempt, const absl::Status& status, absl::Time now);
  FlowActions WorkerLost(const std::string& incarnation, absl::Time now);

  FlowStage stage() const { return stage_; }
  bool ended() const { return ended_; }
  uint32_t attempt() const { return attempt_; }
  int emitted() const { return emitted_; }
  int first_index() const { return base_; }  // output index of this attempt's first token

 private:
  enum class Call { kNone, kOpen, kDone };  // of this attempt
  bool Stale(uint32_t attempt) const { return ended_ || attempt != attempt_; }
  // True: `id` at output index `index` ends generation.
  bool Ends(int32_t id, int index) const;

  void TryPair(absl::Time now, FlowActions* out);
  void StartAttempt(const WorkerRef& prefill, const WorkerRef& decode, absl::Time now, FlowActions* out);
  // Gives the attempt up and looks for another pair. lost: a worker failed; else it only had no room.
  void Retry(const absl::Status& cause, bool lost, absl::Time now, FlowActions* out);
  void DropCalls(FlowActions* out);
  void DropDecode(FlowActions* out);
  void Emit(std::vector<int32_t> ids, FlowActions* out);
  void MaybeComplete(absl::Time now, FlowActions* out);
  void DecodeLost(const absl::Status& status, absl::Time now, FlowActions* out);
  void PrefillLost(const absl::Status& status, absl::Time now, FlowActions* out);
  void End(FlowAction terminal, FlowActions* out);
  void GiveUpIn(absl::Duration wait, absl::Time now);  // from the first call on
  absl::Status NoPair(const absl::Status& why) const;
  absl::Status OutOfTime() const;

  const FlowRequest request_;
  const FlowOptions options_;
  WorkerPicker* const picker_;

  FlowStage stage_ = FlowStage::kQueued;
  bool ended_ = false;
  uint32_t attempt_ = 0;
  int failed_attempts_ = 0;
  int emitted_ = 0;  // tokens given to the client: the fence
  int32_t last_emitted_ = -1;

  // The attempt.
  WorkerRef prefill_, decode_;
  int base_ = 0;  // emitted tokens in this attempt's prompt
  bool reuse_kept_ = false;
  Call prefill_call_ = Call::kNone, decode_call_ = Call::kNone;
  bool first_seen_ = false, receiving_ = false;
  bool measuring_ = false;      // P has handed off, and what it measures is waited for
  std::vector<int32_t> held_;   // D's tokens from output index emitted_ + 1 on, before P's first token
  std::optional<FlowEnd> end_;  // D said so, or P's first token did
  absl::Time register_by_;
  absl::Time report_by_ = absl::InfiniteFuture();
  std::optional<absl::Status> decode_lost_;  // while P's answer decides how to go on

  // Between attempts.
  std::optional<WorkerRef> kept_at_;  // this P holds the kept set of prompt + base_
  std::set<std::string> excluded_;    // decode workers that can never serve this request
  absl::Status cause_;                // why the last attempt was given up
  bool worker_lost_ = false;          // that was the loss of a worker
  bool waiting_ = false;
  // Of a wait that began with the first lack of a pair or of room, and goes on over attempts that get no
  // further.
  std::optional<absl::Time> give_up_at_;
  absl::Time next_try_;
  absl::Duration backoff_;
};

}  // namespace sluice
