// Role: one decoder-only transformer on one device, cut where the gates need it: between a layer's K,V and
// its attention. Attention itself is the caller's: prefill and decode differ only there. Threads: immutable
// after Load; any number of loops, each with its own Ops and Workspace.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/strong_id.h"
#include "common/kvcache/kv_shape.h"
#include "common/model/model_shape.h"
#include "common/model/model_weights.h"
#include "kernels/backend.h"
#include "kernels/workspace.h"

namespace sluice {

struct LoadOptions {
  DType kv_dtype = DType::kBF16;         // kF32 only in tests
  std::function<void(double)> progress;  // 0..1, from the loading thread; may be empty
};

class Model {
 public:
  // ResourceExhausted states the arithmetic when the weights cannot fit. The backend outlives the model; the
  // weights are read once. One rank of a model: `shape` and `weights` OfRank, and a backend of a group.
  static absl::StatusOr<std::unique_ptr<Model>> Load(const ModelShape& shape, const ModelWeights& weights,
                                                     Backend* backend, const LoadOptions& options);
  ~Model();

  const ModelShape& shape() const { return shape_; }
  const KvShape& kv_shape() const { return kv_shape_; }
  Backend* backend() const { return backend_; }
  size_t weight_bytes() const { return weight_bytes_; }

  // Views into a row of Qkv's output.
  struct QkvViews {
    TensorView q;  // [n, n_q_heads, head_dim]
    TensorView k;  // [n, n_kv_heads, head_dim]
    TensorView v;  // [n, n_kv_heads, head_dim]
  };

  // hidden [n, hidden] f32 = embedding rows of ids [n] i32.
  void Embed(TensorView ids, TensorView hidden, Ops& ops) const;

  // Input norm, projections, biases, q/k norm and RoPE at positions [n] i32. Keys come without the mean over
  // all positions of their rotated bias, which no softmax sees (deploy/adr/0006-centred-keys.md). The views
  // live in the workspace.
  absl::StatusOr<QkvViews> Qkv(LayerId layer, TensorView hidden, TensorView positions, Ops& ops,
                               Workspace& workspace) const;

  // hidden += o_proj(attention); hidden += mlp(norm(hidden)), both summed over ranks. attention [n,
  // n_q_heads, head_dim] f32 or, without gaps, attention_dtype().
  absl::Status Finish(LayerId layer, TensorView attention, TensorView hidden, Ops& ops,
                      Workspace& workspace) const;

  DType attention_dtype() const { return ProductInput(shape_.n_q_heads * shape_.head_dim); }

  // Final norm and head. hidden [n, hidden], logits [n, vocab] f32.
  absl::Status Logits(TensorView hidden, TensorView logits, Ops& ops, Workspace& workspace) const;

 private:
  struct Layer;
  friend class ModelLoader;
  Model() = default;
  DType ProductInput(int64_t cols) const;  // what products of so many columns read fastest

  ModelShape shape_;
  KvShape kv_shape_;
  Backend* backend_ = nullptr;
  size_t weight_bytes_ = 0;
  int rank_ = 0;
  std::unique_ptr<Matrix> embedding_;
  std::unique_ptr<Matrix> head_;  // null: tied
  Buffer final_norm_;             // [hidden] f32
  Buffer cos_sin_;                // [context, head_dim] f32
  std::vector<Layer> layers_;
};

}  // namespace sluice
