// Role: quality telemetry: on a share of the prompts that are compressed, and on those that ask for it,
// measures what compression lost (common/engine/loss_measurement.h). Owns the KV memory that this takes, the
// prompts that wait for it, and their deadlines. Why it delays nobody: a prompt is measured after its own
// hand-off, only while no prompt runs or waits, one layer or token at a time; what it holds of the memory for
// prompts goes as soon as a prompt lacks it.
// Threads: the prefill loop.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/engine/loss_measurement.h"
#include "common/metrics/worker_metrics.h"
#include "prefill_server/prefill_job.h"

namespace sluice {

struct ShadowOptions {
  double rate = 0;          // of compressed prompts that are measured, [0, 1]
  size_t memory_bytes = 0;  // KV of one prompt, full and compressed, over all ranks
};

class Shadow {
 public:
  // After its prefill, for prompts that were drawn. Those that ask have their request's deadline.
  static constexpr absl::Duration kDeadline = absl::Seconds(60);
  static constexpr size_t kMaxWaiting = 16;

  // Errors name the option.
  static absl::StatusOr<std::unique_ptr<Shadow>> Create(const RankedModel* model,
                                                        const ShadowOptions& options, const Clock* clock,
                                                        PrefillMetrics* metrics);

  // Once of every prompt whose hand-off follows.
  void Offer(std::shared_ptr<PrefillJob> job);

  // Lets go of prompts that are cancelled or too late. Every round of the loop.
  void Tend();
  bool due() const;  // Step has something to do
  // Begins a measurement, or runs one layer or one token of it. free_bytes: of the memory for prompts.
  void Step(size_t free_bytes);
  bool running() const { return current_ != nullptr; }  // between two steps
  // Of the memory for prompts, that a measurement holds now.
  size_t work_bytes() const { return work_bytes_; }
  // A prompt lacks memory: gives up whatever holds some.
  void GiveWay();
  void Stop();

 private:
  struct Picked {
    std::shared_ptr<PrefillJob> job;
    absl::Time deadline;
  };

  Shadow(const RankedModel* model, const ShadowOptions& options, const Clock* clock, PrefillMetrics* metrics)
      : model_(model), options_(options), clock_(clock), metrics_(metrics) {}
  void Begin(Picked next, size_t free_bytes);
  void Publish();
  void Skip(PrefillJob& job, const std::string& reason);
  void SkipCurrent(const std::string& reason);
  void EndCurrent(const absl::Status& status);

  const RankedModel* const model_;
  const ShadowOptions options_;
  const Clock* const clock_;
  PrefillMetrics* const metrics_;
  std::unique_ptr<RankedCache> cache_;
  std::unique_ptr<RankedDecode> decode_;
  uint64_t draws_ = 0;
  std::deque<Picked> waiting_;
  Picked picked_;  // of current_
  std::unique_ptr<LossMeasurement> current_;
  size_t work_bytes_ = 0;
  absl::Duration spent_;  // on current_
};

}  // namespace sluice
