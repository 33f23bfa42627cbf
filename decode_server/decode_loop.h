// Role: continuous batching: every step runs one token of every running sequence, samples, streams, stops.
// Why: the only owner of running sequences, so nothing in it needs a lock.
// Threads: one of its own ("decode"). Start and Cancel may be called by any thread.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "common/base/clock.h"
#include "common/base/queue.h"
#include "common/base/thread.h"
#include "common/engine/ranked_decode.h"
#include "common/kvcache/ranked_cache.h"
#include "common/metrics/worker_metrics.h"
#include "decode_server/generation.h"

namespace sluice {

struct DecodeLoopOptions {
  int max_batch = 64;
  int max_queue = 1024;  // commands waiting for the loop
};

// A validated hand-off: everything a sequence needs to go on.
struct ReadySequence {
  std::shared_ptr<Generation> generation;
  std::unique_ptr<RankedSequence> kv;
  LogicalLen next_position;     // of first_token
  int32_t first_token = 0;      // sampled by prefill; output index = generation->emitted.size()
  std::vector<int> prompt_ids;  // distinct, only with a repetition penalty
};

class DecodeLoop {
 public:
  DecodeLoop(const RankedModel* model, RankedCache* cache, GenerationTable* table,
             const DecodeLoopOptions& options, const Clock* clock, DecodeMetrics* metrics);
  ~DecodeLoop();

  // False when the queue is full.
  bool Start(ReadySequence sequence);
  // Ends every generation with Unavailable and joins the thread.
  void Stop();

  int running() const { return running_count_; }
  int pages() const { return waiting_pages_ + running_pages_; }  // that its sequences hold

 private:
  struct Running {
    std::shared_ptr<Generation> generation;
    std::unique_ptr<RankedSequence> kv;
    LogicalLen position;  // of `token`
    int32_t token = 0;    // sampled, K,V not yet in the cache
    int index = 0;        // its output index
    SampleState state;
    absl::Time started;
    int steps = 0;
  };

  void Run();
  void Admit(ReadySequence sequence);
  void Step();
  void CountPages();
  void Finish(Running* running, const absl::Status& status, const GenerationEnd& end);
  // Chooses the sequences of the next step and makes room for their rows, preempting the youngest when empty.
  std::vector<Running*> PickBatch();

  const RankedModel* const model_;
  GenerationTable* const table_;
  const DecodeLoopOptions options_;
  const Clock* const clock_;
  DecodeMetrics* const metrics_;
  RankedDecode stepper_;
  BoundedQueue<ReadySequence> queue_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> running_count_{0};
  std::atomic<int> waiting_pages_{0}, running_pages_{0};
  std::vector<std::unique_ptr<Running>> running_;  // oldest first
  size_t next_ = 0;                                // round robin over running_ when it exceeds max_batch
  NamedThread thread_;
};

}  // namespace sluice
