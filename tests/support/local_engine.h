// Role: prefill and decode of whole requests in one process, without servers or wire: what engine tests and
// equalities are stated in. Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/compression/compression_spec.h"
#include "common/compression/resolved_gates.h"
#include "common/engine/decode_step.h"
#include "common/engine/prefill_pass.h"
#include "common/kvcache/decode_cache.h"
#include "common/kvcache/sequence_kv.h"
#include "common/model/model.h"

namespace sluice {

// Keeps all that a pass delivers for one sequence.
class CollectingSink final : public PrefillSink {
 public:
  explicit CollectingSink(const Model* model, bool wants_new_rows = false)
      : model_(model), wants_new_rows_(wants_new_rows) {}
  bool wants_new_rows() const override { return wants_new_rows_; }
  absl::Status OnNewRows(LayerId layer, TensorView k, TensorView v, Ops& ops) override;
  absl::Status OnKept(LayerId layer, KeptLayer kept) override;

  std::vector<KeptLayer> kept;       // [n_layers]
  std::vector<Buffer> new_k, new_v;  // [n_layers] of [n_kv_heads, new_rows, head_dim]
  int new_rows = 0;

 private:
  const Model* const model_;
  const bool wants_new_rows_;
};

// The new rows that a sink collected, as the history of a later turn. The sink outlives it.
class CollectedHistory final : public HistoryReader {
 public:
  CollectedHistory(const Model* model, const CollectingSink* sink, int first_position = 0)
      : model_(model), sink_(sink), first_position_(first_position) {}
  int rows(LayerId) const override { return sink_->new_rows; }
  absl::Status Read(LayerId layer, TensorView k, TensorView v, TensorView positions, Ops& ops) const override;

 private:
  const Model* const model_;
  const CollectingSink* const sink_;
  const int first_position_;
};

// Rows of a kept layer's head, in order.
std::vector<int32_t> KeptPositions(const Model& model, const KeptLayer& layer, int kv_head);

// A single request's gates, resolved as the router does.
absl::StatusOr<ResolvedGates> ResolveFor(const ModelShape& shape, const CompressionSpec& spec,
                                         int prompt_tokens, int max_tokens);

struct LocalRequest {
  std::vector<int32_t> ids = {};
  ResolvedGates gates = {};
  const HistoryReader* history = nullptr;
  int first_position = 0;
};

struct LocalPrefill {
  std::unique_ptr<CollectingSink> sink;
  std::vector<float> logits;  // of the last token
};

// One pass over all requests.
absl::StatusOr<std::vector<LocalPrefill>> PrefillTogether(const Model& model,
                                                          const std::vector<LocalRequest>& requests,
                                                          bool wants_new_rows = false);

// A decode cache and a stepper over it.
class LocalDecoder {
 public:
  static absl::StatusOr<std::unique_ptr<LocalDecoder>> Create(const Model& model, int n_slots = 16,
                                                              size_t memory_bytes = size_t{512} << 20,
                                                              double bounds_share = 0.25);
  // Moves the kept rows into the cache.
  absl::StatusOr<std::unique_ptr<SequenceKv>> Receive(const LocalPrefill& prefill, const ResolvedGates& gates,
                                                      int prompt_rows);
  absl::StatusOr<std::vector<DecodeResult>> Step(absl::Span<const DecodeRow> rows);
  DecodeCache& cache() { return *cache_; }

 private:
  explicit LocalDecoder(const Model& model) : model_(model) {}
  const Model& model_;
  std::unique_ptr<DecodeCache> cache_;
  std::unique_ptr<DecodeStepper> stepper_;
};

int32_t Greedy(absl::Span<const float> logits);

// Two ways to compute logits, each off by a quarter at most, may part at a token that is worth less than this
// more than the other's.
inline constexpr float kUndecided = 0.5f;

// Greedy tokens, each with the logits of which it is the best.
struct GreedyRun {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;
  // How much more its i-th token is worth to it than another.
  float MarginOver(size_t i, int32_t token) const { return logits[i][tokens[i]] - logits[i][token]; }
};
// Up to n tokens after `prefill`, which is of `request`; to_end: no further than the end of the answer.
absl::StatusOr<GreedyRun> DecodeGreedily(const Model& model, const LocalPrefill& prefill,
                                         const LocalRequest& request, int n, bool to_end);

// n greedy tokens of every request: one prefill pass, then decode steps of one batch.
absl::StatusOr<std::vector<std::vector<int32_t>>> GenerateTogether(const Model& model,
                                                                   const std::vector<LocalRequest>& requests,
                                                                   int n);
absl::StatusOr<std::vector<int32_t>> Generate(const Model& model, const LocalRequest& request, int n);

}  // namespace sluice
