// Role: a decode step over all ranks of a model: the same DecodeStepper on each, over its cache. Logits are
// the same on all ranks; rank 0's are read. Threads: one loop (the decode loop).
#pragma once

#include <memory>
#include <vector>

#include "common/engine/decode_step.h"
#include "common/kvcache/ranked_cache.h"
#include "common/model/ranked_model.h"

namespace sluice {

// As DecodeRow, but for kv.
struct RankedDecodeRow {
  RankedSequence* kv = nullptr;
  SelectionKind selection = SelectionKind::kDense;
  int32_t token = 0;
  LogicalLen position;
  const SampleRule* rule = nullptr;
  bool wants_logits = true;
};

class RankedDecode {
 public:
  RankedDecode(const RankedModel* model, RankedCache* cache);  // both outlive it

  // The queues of the steps: RankedSequence::ReserveAppend takes them.
  const RankQueues& queues() const { return queues_; }

  // As DecodeStepper::Run. After an error with several ranks the rows' sequences may differ between ranks:
  // they must go.
  absl::StatusOr<std::vector<DecodeResult>> Run(absl::Span<const RankedDecodeRow> rows);

 private:
  const RankedModel* const model_;
  std::vector<std::unique_ptr<DecodeStepper>> steppers_;  // by rank
  RankQueues queues_;
};

}  // namespace sluice
