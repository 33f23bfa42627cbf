#include "tests/bench/bench_runs.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/bench/ceilings.h"

namespace sluice {
namespace {

constexpr double kLongEnough = 6;  // seconds of prefill after which no further round starts
constexpr int kWarmSteps = 3;      // the first finds memory and algorithms, the second is recorded

std::vector<int32_t> Ids(int n, int vocab) {
  std::vector<int32_t> ids;
  uint32_t state = 7;
  for (int i = 0; i < n; ++i) ids.push_back((state = state * 1664525u + 1013904223u) % std::min(vocab, 8000));
  return ids;
}

}  // namespace

absl::StatusOr<ResolvedGates> GatesOf(const ModelShape& shape, const std::string& preset, int prompt,
                                      const RunOptions& options) {
  CompressionSpec spec;
  spec.preset = preset;
  if (preset == "tsp") {
    spec.preset = "full";
    spec.propagation = PropagationKind::kTsp;
    spec.tsp_rate = 0.2;
    spec.window = 8;
    spec.pooling = Pooling{.kind = Pooling::kMax, .kernel = 7};
  } else if (preset != "full") {
    spec.budget_tokens = options.budget;
  }
  return ResolveFor(shape, spec, prompt, options.tokens);
}

absl::StatusOr<PrefillRun> RunPrefill(const Model& model, MeteredBackend& backend, const ResolvedGates& gates,
                                      int prompt, const RunOptions& options) {
  PrefillRun run{.gates = gates, .prompt = prompt, .kept = {}, .seconds = std::numeric_limits<double>::max()};
  const LocalRequest request{.ids = Ids(prompt, model.shape().vocab), .gates = gates};
  double spent = 0;
  for (int round = 0; round < options.rounds && spent < kLongEnough; ++round) {
    run.kept = {};
    backend.TakeGateSeconds();
    const double begin = BenchSeconds(options.threads);
    SLUICE_ASSIGN_OR_RETURN(std::vector<LocalPrefill> done, PrefillTogether(model, {request}));
    const double seconds = BenchSeconds(options.threads) - begin, gates_took = backend.TakeGateSeconds();
    spent += seconds;
    if (seconds < run.seconds) {
      run.seconds = seconds;
      run.gate_seconds = gates_took;
    }
    run.kept = std::move(done[0]);
  }
  return run;
}

absl::StatusOr<std::unique_ptr<DecodeBatch>> DecodeBatch::Create(const Model& model,
                                                                 const PrefillRun& prefill, int most,
                                                                 const RunOptions& options) {
  std::unique_ptr<DecodeBatch> batch(new DecodeBatch(model, prefill, options));
  // A reader of everything needs no bounds: all memory is pages. Bounds of one row, or of two, are half of
  // K,V.
  const int page = prefill.gates.selection.page;
  const double bounds_share = page == 0 ? 0 : page <= 2 ? 0.34 : 0.25;
  SLUICE_ASSIGN_OR_RETURN(batch->decoder_, LocalDecoder::Create(model, most, options.memory, bounds_share));
  return batch;
}

absl::Status DecodeBatch::Add() {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<SequenceKv> kv,
                          decoder_->Receive(prefill_.kept, prefill_.gates, prefill_.prompt));
  sequences_.push_back(std::move(kv));
  rows_.push_back({.kv = sequences_.back().get(),
                   .selection = prefill_.gates.selection.kind,
                   .token = Greedy(prefill_.kept.logits),
                   .position = LogicalLen(PromptEnd(prefill_.gates, prefill_.prompt)),
                   .wants_logits = false});
  if (CanGrow()) return absl::OkStatus();
  rows_.pop_back();
  sequences_.pop_back();
  return absl::ResourceExhaustedError(
      absl::StrCat("the KV memory holds ", size(), " sequences and the rows they will add"));
}

// Room in every head of every sequence for the rows of StepSeconds.
bool DecodeBatch::CanGrow() const {
  const int steps = kWarmSteps + options_.tokens * options_.rounds;
  const int64_t heads = int64_t{size()} * model_.kv_shape().n_layers * model_.kv_shape().n_kv_heads;
  const auto holds = [&](const PagePool& pool, int rows) {
    return pool.free_pages() >= heads * ((steps + rows - 1) / rows);
  };
  const SelectionGate& selection = prefill_.gates.selection;
  return holds(decoder_->cache().pages(), PagedKv::kPageRows) &&
         (selection.page == 0 || holds(decoder_->cache().chunks(), DecodeCache::ChunkRows(selection.page)));
}

absl::Status DecodeBatch::Step(bool blind) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<DecodeResult> results, decoder_->Step(rows_));
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (!blind) rows_[i].token = results[i].token;
    ++rows_[i].position;
  }
  return absl::OkStatus();
}

absl::StatusOr<double> DecodeBatch::StepSeconds(bool blind) {
  const int room = model_.shape().context - rows_[0].position.value() - kWarmSteps;
  const int tokens = std::min(options_.tokens, room / options_.rounds);
  if (tokens < 1)
    return absl::OutOfRangeError(absl::StrCat("a prompt of ", prefill_.prompt, " leaves no room for ",
                                              options_.rounds, " rounds in a context of ",
                                              model_.shape().context));
  for (int i = 0; i < kWarmSteps; ++i) SLUICE_RETURN_IF_ERROR(Step(blind));
  double best = std::numeric_limits<double>::max();
  for (int round = 0; round < options_.rounds; ++round) {
    const double begin = BenchSeconds(options_.threads);
    for (int i = 0; i < tokens; ++i) SLUICE_RETURN_IF_ERROR(Step(blind));
    best = std::min(best, (BenchSeconds(options_.threads) - begin) / tokens);
  }
  return best;
}

}  // namespace sluice
