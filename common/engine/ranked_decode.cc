#include "common/engine/ranked_decode.h"

#include <utility>

#include "common/base/status.h"

namespace sluice {

RankedDecode::RankedDecode(const RankedModel* model, RankedCache* cache) : model_(model) {
  for (int rank = 0; rank < model->ranks(); ++rank) {
    steppers_.push_back(std::make_unique<DecodeStepper>(&model->rank(rank), &cache->rank(rank)));
    queues_.push_back(&steppers_.back()->ops());
  }
}

absl::StatusOr<std::vector<DecodeResult>> RankedDecode::Run(absl::Span<const RankedDecodeRow> rows) {
  std::vector<DecodeResult> results;
  SLUICE_RETURN_IF_ERROR(model_->group().Run([&](int rank) -> absl::Status {
    std::vector<DecodeRow> own;
    for (const RankedDecodeRow& row : rows)
      own.push_back({.kv = &row.kv->rank(rank),
                     .selection = row.selection,
                     .token = row.token,
                     .position = row.position,
                     .rule = rank == 0 ? row.rule : nullptr,
                     .wants_logits = row.wants_logits && rank == 0});
    absl::StatusOr<std::vector<DecodeResult>> result = steppers_[rank]->Run(own);
    if (result.ok() && rank == 0) results = *std::move(result);
    return result.status();
  }));
  return results;
}

}  // namespace sluice
