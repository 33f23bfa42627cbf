// Role: one model over the ranks of a BackendGroup (tensor parallelism): a Model on each, of the same shape
// but for heads and MLP columns, of which it has its share. Norms, embedding and LM head are on every rank.
// Sums over ranks are inside Model::Finish, and where a gate sums over heads; so every rank holds the same
// hidden states and logits, bit for bit. Threads: as Model.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model.h"
#include "kernels/backend_group.h"

namespace sluice {

class RankedModel {
 public:
  // Ranks read and pack their shares at once. Errors as Model::Load; InvalidArgument says which numbers of
  // ranks divide the model. The group outlives the model. options.progress: of rank 0.
  static absl::StatusOr<std::unique_ptr<RankedModel>> Load(const ModelShape& shape,
                                                           const ModelWeights& weights, BackendGroup* group,
                                                           const LoadOptions& options);

  const ModelShape& shape() const { return shape_; }     // of the whole model
  const KvShape& kv_shape() const { return kv_shape_; }  // of the whole model
  const Model& rank(int rank) const { return *ranks_[rank]; }
  int ranks() const { return static_cast<int>(ranks_.size()); }
  BackendGroup& group() const { return *group_; }
  size_t weight_bytes() const;  // over all ranks

 private:
  RankedModel(const ModelShape& shape, BackendGroup* group) : shape_(shape), group_(group) {}
  const ModelShape shape_;
  KvShape kv_shape_;
  BackendGroup* const group_;
  std::vector<std::unique_ptr<Model>> ranks_;
};

}  // namespace sluice
