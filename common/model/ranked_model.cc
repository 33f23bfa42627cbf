#include "common/model/ranked_model.h"

#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace sluice {
namespace {

bool Divides(int ranks, const ModelShape& shape) {
  return shape.n_kv_heads % ranks == 0 && shape.intermediate % ranks == 0;
}

absl::Status CheckRanks(const ModelShape& shape, int ranks) {
  if (Divides(ranks, shape)) return absl::OkStatus();
  std::vector<int> good;
  for (int n = 1; n <= shape.n_kv_heads; ++n)
    if (Divides(n, shape)) good.push_back(n);
  return absl::InvalidArgumentError(absl::StrCat(ranks, " ranks do not divide the model's ", shape.n_kv_heads,
                                                 " KV heads and ", shape.intermediate, " MLP columns; use ",
                                                 absl::StrJoin(good, ", ")));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankedModel>> RankedModel::Load(const ModelShape& shape,
                                                               const ModelWeights& weights,
                                                               BackendGroup* group,
                                                               const LoadOptions& options) {
  const int n = group->size();
  SLUICE_RETURN_IF_ERROR(CheckRanks(shape, n));
  auto model = absl::WrapUnique(new RankedModel(shape, group));
  model->ranks_.resize(n);
  const ModelShape share = shape.OfRank(n);
  SLUICE_RETURN_IF_ERROR(group->Run([&](int rank) -> absl::Status {
    LoadOptions own = options;
    if (rank > 0) own.progress = nullptr;
    SLUICE_ASSIGN_OR_RETURN(model->ranks_[rank],
                            Model::Load(share, weights.OfRank(rank, n), group->rank(rank), own));
    return absl::OkStatus();
  }));
  model->kv_shape_ = model->ranks_[0]->kv_shape();
  model->kv_shape_.n_q_heads = shape.n_q_heads;
  model->kv_shape_.n_kv_heads = shape.n_kv_heads;
  return model;
}

size_t RankedModel::weight_bytes() const {
  size_t sum = 0;
  for (const auto& rank : ranks_) sum += rank->weight_bytes();
  return sum;
}

}  // namespace sluice
