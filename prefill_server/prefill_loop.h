// Role: computes prompts, layer by layer: the queue, the passes under way, session history. After every layer
// it looks at its queue and at cancellations; finished layers go to the send loop while the next one
// computes. Threads: one of its own ("prefill"). Submit may be called by any thread.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/clock.h"
#include "common/base/queue.h"
#include "common/base/thread.h"
#include "common/engine/ranked_prefill.h"
#include "common/metrics/worker_metrics.h"
#include "common/model/ranked_model.h"
#include "prefill_server/prefill_job.h"
#include "prefill_server/prefix_tree.h"
#include "prefill_server/scheduler.h"
#include "prefill_server/send_loop.h"
#include "prefill_server/shadow.h"

namespace sluice {

struct PrefillLoopOptions {
  SchedulerOptions scheduler;
  int max_queue = 256;       // prompts that wait
  size_t work_bytes = 0;     // scratch and kept sets of prompts under way
  size_t history_bytes = 0;  // the prefix tree
};

class PrefillLoop {
 public:
  // shadow: null where nothing is measured.
  PrefillLoop(const RankedModel* model, SendLoop* send_loop, const PrefillLoopOptions& options,
              const Clock* clock, PrefillMetrics* metrics, std::unique_ptr<Shadow> shadow = nullptr);
  ~PrefillLoop();

  // ResourceExhausted: the queue is full, or the prompt can never fit (the text has the arithmetic).
  // FailedPrecondition: it asks to be measured, and nothing is here.
  absl::Status Submit(std::shared_ptr<PrefillJob> job);
  // Has the loop do something with the history between two layers. False: it has too much of that to do.
  bool WithHistory(std::function<void(PrefixTree&)> task) { return errands_.TryPush(std::move(task)); }
  void Stop();

  int queued() const { return queued_; }
  int64_t queued_tokens() const { return queued_tokens_ + running_tokens_; }  // not computed yet
  double tokens_per_second() const { return tokens_per_second_; }  // of the last prompts; 0: none yet
  int running() const { return running_; }
  const PrefixTree& history() const { return history_; }

 private:
  class Sequence;
  struct Pass;

  void Run();
  SchedulerState Look(std::vector<QueuedPrompt>* prompts) const;
  size_t BytesOf(const PrefillJob& job) const;
  size_t BytesInUse() const;
  void StartPass(const std::vector<int>& picked, bool is_long);
  void RunLayer(std::unique_ptr<Pass>* slot);
  void FinishPass(Pass* pass);
  void Rate(const Pass& pass);
  void Spare();
  void DropCancelled();
  void PublishMemory();

  const RankedModel* const model_;
  SendLoop* const send_loop_;
  const PrefillLoopOptions options_;
  const Clock* const clock_;
  PrefillMetrics* const metrics_;
  const std::unique_ptr<Shadow> shadow_;
  PrefixTree history_;
  BoundedQueue<std::shared_ptr<PrefillJob>> inbox_;
  BoundedQueue<std::function<void(PrefixTree&)>> errands_{1024};
  std::deque<std::shared_ptr<PrefillJob>> queue_;
  std::unique_ptr<Pass> long_pass_, short_pass_;
  bool long_pass_owed_ = false;
  // Kept sets that the send loop still holds: bytes go when the job does.
  std::vector<std::pair<std::weak_ptr<PrefillJob>, size_t>> handed_over_;
  std::atomic<int> queued_{0}, running_{0};
  std::atomic<int64_t> queued_tokens_{0}, running_tokens_{0};
  double rated_tokens_ = 0, rated_seconds_ = 0;  // of the last passes, the older the less
  std::atomic<double> tokens_per_second_{0};
  int64_t seen_evictions_ = 0, seen_forgotten_ = 0;
  std::atomic<bool> stopping_{false};
  NamedThread thread_;
};

}  // namespace sluice
