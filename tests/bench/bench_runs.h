// Role: the runs that model_bench times: prefill of one prompt, decode steps of a batch that shares that
// prompt's kept rows, and as many such sequences as a memory holds. Threads: one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/metered_backend.h"
#include "tests/support/local_engine.h"

namespace sluice {

struct RunOptions {
  int threads = 2;    // of the clock: see BenchSeconds
  int budget = 512;   // kept tokens, where a preset has a budget
  int tokens = 64;    // of a decode round
  int rounds = 3;     // the fastest counts
  size_t memory = 0;  // bytes of KV pages, bounds and tables
};

// Gates of a preset, or of "tsp": propagation alone, as FastKV sets it (a fifth, window 8, pooling over 7).
absl::StatusOr<ResolvedGates> GatesOf(const ModelShape& shape, const std::string& preset, int prompt,
                                      const RunOptions& options);

struct PrefillRun {
  ResolvedGates gates;
  int prompt = 0;
  LocalPrefill kept;
  double seconds = 0;
  double gate_seconds = 0;  // of the same round: see MeteredBackend
};
absl::StatusOr<PrefillRun> RunPrefill(const Model& model, MeteredBackend& backend, const ResolvedGates& gates,
                                      int prompt, const RunOptions& options);

// Sequences that start where one prefill ended. `prefill` outlives it.
class DecodeBatch {
 public:
  static absl::StatusOr<std::unique_ptr<DecodeBatch>> Create(const Model& model, const PrefillRun& prefill,
                                                             int most, const RunOptions& options);
  // ResourceExhausted: the memory holds no further one with the rows that StepSeconds adds.
  absl::Status Add();
  int size() const { return static_cast<int>(rows_.size()); }
  // Of a step. blind: tokens stay what they are, because the logits mean nothing.
  absl::StatusOr<double> StepSeconds(bool blind);

 private:
  DecodeBatch(const Model& model, const PrefillRun& prefill, const RunOptions& options)
      : model_(model), prefill_(prefill), options_(options) {}
  absl::Status Step(bool blind);
  bool CanGrow() const;

  const Model& model_;
  const PrefillRun& prefill_;
  const RunOptions options_;
  std::unique_ptr<LocalDecoder> decoder_;
  std::vector<std::unique_ptr<SequenceKv>> sequences_;
  std::vector<DecodeRow> rows_;
};

}  // namespace sluice
