// Role: what compression lost on one prompt: the prompt again, without any gate, as one reference for all
// methods; then a few greedy tokens of that, fed to its cache and to the compressed one side by side, with
// the request's selection. Why a second prefill: where propagation leaves rows behind, the request's own
// layers never see all of them; and nothing has to be held while the request itself is under way. Why steps:
// between two, the owner may let prompts run, or drop it. Threads: one loop, the one that runs the model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/ranked_decode.h"
#include "common/engine/ranked_prefill.h"
#include "common/engine/retained_mass.h"

namespace sluice {

struct CompressionLoss {
  // [n_layers], in [0, 1]: mean over heads and the prompt's last RetainedMass::kQueries tokens. Empty for
  // rerun, whose rows stand at other positions than the prompt's.
  std::vector<float> retained_mass;
  int top1_tokens = 0;  // fed to both caches; they end with the first end of sequence
  int top1_agreed = 0;  // after so many of them both name the same next token
  std::string skipped;  // why nothing was measured; empty: it was
};

struct MeasuredPrompt {
  std::vector<int32_t> ids;  // from position 0
  ResolvedGates gates;
  const std::vector<KeptLayer>* kept = nullptr;  // [n_layers] what they kept, on rank 0's device
};

class LossMeasurement {
 public:
  static constexpr int kTokens = 8;

  // Copies the kept rows into the cache. ResourceExhausted: the cache is too small for both, or the device is
  // full. decode is over cache; all three outlive it, and cache holds two sequences.
  static absl::StatusOr<std::unique_ptr<LossMeasurement>> Begin(const RankedModel* model, RankedCache* cache,
                                                                RankedDecode* decode,
                                                                const MeasuredPrompt& prompt);
  ~LossMeasurement();

  bool done() const { return done_; }
  // One layer of the prompt, or one token. After an error it must go.
  absl::Status Step();
  // When done.
  const CompressionLoss& loss() const { return loss_; }

  // Upper bound of what it takes beside the cache.
  static size_t WorkBytes(const RankedModel& model, int prompt_tokens);

 private:
  class LastLayer;
  LossMeasurement(const RankedModel* model, RankedCache* cache, RankedDecode* decode,
                  const MeasuredPrompt& prompt);
  absl::Status Start(const MeasuredPrompt& prompt);
  absl::StatusOr<std::unique_ptr<RankedSequence>> Reserve(const ResolvedGates& gates,
                                                          const std::vector<int>& rows);
  absl::Status Write(RankedSequence* kv, LayerId layer, const KeptLayer& rows,
                     const std::vector<std::vector<int32_t>>& positions);
  absl::Status Finish(RankedSequence* kv);
  absl::Status Sync();
  absl::Status RunLayer();
  absl::Status RunToken();
  void Take(int32_t token);

  const RankedModel* const model_;
  RankedCache* const cache_;
  RankedDecode* const decode_;
  const int length_;  // of the prompt
  const SelectionKind selection_;
  const bool same_positions_;       // kept rows stand where the prompt's do
  LogicalLen full_end_, kept_end_;  // the next token's position
  KeptRows kept_rows_;
  std::vector<std::vector<int32_t>> all_rows_;            // [n_kv_heads]
  std::vector<std::unique_ptr<RetainedMass>> observers_;  // by rank
  std::unique_ptr<LastLayer> last_layer_;
  std::unique_ptr<RankedPrefill> pass_;  // goes before what it borrows; null once it is done
  std::unique_ptr<RankedSequence> full_, kept_;
  int32_t token_ = 0;  // the next one fed
  bool done_ = false;
  CompressionLoss loss_;
};

}  // namespace sluice
