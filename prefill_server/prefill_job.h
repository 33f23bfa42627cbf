// Role: one prompt on a prefill server, from its request to the end of its hand-off. A job outlives an
// attempt: when decode dies, the router sends a new attempt for the same job, served from the kept set
// without a new prefill. Threads: the request is immutable. `kept`, `seal` and `timings` are written by the
// prefill loop and read by the transfer loop after it was told. Events and cancellation: any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/compression/resolved_gates.h"
#include "common/engine/logprobs.h"
#include "common/engine/loss_measurement.h"
#include "common/engine/sampler.h"
#include "common/handoff/messages.h"
#include "common/handoff/result.h"
#include "common/handoff/sender.h"
#include "prefill_server/prefix_tree.h"

namespace sluice {

struct FirstToken {
  int32_t id = 0;
  std::optional<TokenLogprobs> logprobs;  // if asked for
  StopReason stop = StopReason::kNone;    // not kNone: the turn ends here and nothing is handed off
  absl::Duration queued, computed;
  int cached_tokens = 0;
  std::string history_outcome;  // "warm", "cold"; empty without a session
};

struct HandedOff {
  int kept_min = 0;
  double kept_mean = 0;
  size_t bytes_full = 0, bytes_kept = 0;
  int64_t wire_bytes = 0;
  absl::Duration exposed;  // last layer's kept rows ready -> Commit
};

// Where a job's events go. Implemented by the RPC's stream; any thread. At most one terminal.
class PrefillEvents {
 public:
  virtual ~PrefillEvents() = default;
  virtual void OnProgress(bool running, int layers_done, int layers, int cached_tokens) = 0;
  virtual void OnFirstToken(const FirstToken& token) = 0;    // terminal when token.stop is not kNone
  virtual void OnHandedOff(const HandedOff& result) = 0;     // terminal, unless the request asks to measure
  virtual void OnMeasured(const CompressionLoss& loss) = 0;  // terminal, behind OnHandedOff
  virtual void OnHandoffFailed(HandoffReason reason, const std::string& detail, bool retained,
                               absl::Duration retry_after) = 0;  // terminal
  virtual void OnError(const absl::Status& status) = 0;          // terminal
};

struct Attempt {
  uint32_t number = 0;
  std::string decode_address;
  std::string decode_incarnation;
  absl::Time deadline;
  std::shared_ptr<PrefillEvents> events;
};

struct PrefillRequest {
  std::string handoff_id;
  std::vector<int32_t> prompt_ids;
  ResolvedGates gates;
  SamplingParams sampling;
  int emitted = 0;  // the last prompt ids are output already
  std::string session_id, parent_turn_id, turn_id;
  std::string partition;  // of the prefix tree
  bool measure = false;   // what compression lost; its events end with that
};

class PrefillJob {
 public:
  PrefillJob(PrefillRequest request, Attempt attempt, absl::Time arrived)
      : request(std::move(request)), arrived(arrived), attempt_(std::move(attempt)) {}

  const PrefillRequest request;
  const absl::Time arrived;

  // Prefill loop, then read-only. layers[l] is valid once the transfer loop was told of layer l.
  std::shared_ptr<PrefixTree::KeptSet> kept = std::make_shared<PrefixTree::KeptSet>();
  std::vector<int> ceilings;  // [n_layers * n_kv_heads]
  SealInfo seal;

  HandoffKey key() const {
    MutexLock lock(&mu_);
    return {request.handoff_id, attempt_.number};
  }
  Attempt attempt() const {
    MutexLock lock(&mu_);
    return attempt_;
  }
  // A later attempt takes over; it hears of a first token that is known already. False: not a later one.
  bool Attach(Attempt attempt);

  void Progress(bool running, int layers_done, int layers, int cached_tokens);
  void SetFirstToken(const FirstToken& token);
  std::optional<FirstToken> first_token() const;
  void SetHandedOff(const HandedOff& result);
  bool handed_off() const;
  // Where the request asks for it: at once, or behind a hand-off that is not over.
  void SetLoss(const CompressionLoss& loss);

  std::atomic<bool> cancelled{false};

 private:
  mutable Mutex mu_;
  Attempt attempt_ ABSL_GUARDED_BY(mu_);
  std::optional<FirstToken> first_token_ ABSL_GUARDED_BY(mu_);
  bool handed_off_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<CompressionLoss> loss_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
