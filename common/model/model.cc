#include "common/model/model.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/model/model_layer.h"

namespace sluice {
namespace {

TensorView Vector(const Buffer& buffer, int64_t n) {
  return buffer.data() == nullptr ? TensorView() : buffer.View(DType::kF32, {n});
}

// [n, width] seen as [n, heads, head_dim], from column `begin` on.
TensorView Heads(TensorView rows, int64_t begin, int64_t heads, int64_t head_dim) {
  TensorView view = rows.Slice(1, begin, begin + heads * head_dim);
  view.rank = 3;
  view.shape = {rows.shape[0], heads, head_dim, 0};
  view.stride = {rows.stride[0], head_dim, 1, 0};
  return view;
}

// [n, heads, head_dim], contiguous in a row, seen as [n, heads * head_dim].
TensorView Flat(TensorView heads) {
  TensorView view = heads;
  view.rank = 2;
  view.shape = {heads.shape[0], heads.shape[1] * heads.shape[2], 0, 0};
  view.stride = {heads.stride[0], 1, 0, 0};
  return view;
}

}  // namespace

Model::~Model() = default;

DType Model::ProductInput(int64_t cols) const {
  return cols % 64 == 0 ? backend_->product_input() : DType::kF32;
}

void Model::Embed(TensorView ids, TensorView hidden, Ops& ops) const { ops.Embed(*embedding_, ids, hidden); }

absl::StatusOr<Model::QkvViews> Model::Qkv(LayerId layer, TensorView hidden, TensorView positions, Ops& ops,
                                           Workspace& workspace) const {
  const Layer& weights = layers_[layer.value()];
  const int64_t n = hidden.shape[0], d = shape_.head_dim;
  const int64_t n_q = shape_.n_q_heads, n_kv = shape_.n_kv_heads;
  SLUICE_ASSIGN_OR_RETURN(TensorView qkv, workspace.Take(DType::kF32, {n, weights.qkv->rows()}));
  const int64_t chunk_rows = std::min(n, backend_->rows_at_once());
  SLUICE_ASSIGN_OR_RETURN(TensorView normed,
                          workspace.Take(ProductInput(shape_.hidden), {chunk_rows, shape_.hidden}));
  // q and k lie side by side: one rotation turns both.
  const TensorView turned = Heads(qkv, 0, n_q + n_kv, d),
                   cos_sin = cos_sin_.View(DType::kF32, {shape_.context, d});
  const TensorView center = weights.key_center.data() == nullptr
                                ? TensorView()
                                : weights.key_center.View(DType::kF32, {n_q + n_kv, d});
  const TensorView bias = Vector(weights.qkv_bias, weights.qkv->rows());
  for (int64_t begin = 0; begin < n; begin += chunk_rows) {
    const int64_t end = std::min(n, begin + chunk_rows);
    const TensorView rows = normed.Slice(0, 0, end - begin), out = qkv.Slice(0, begin, end);
    ops.RmsNorm(hidden.Slice(0, begin, end), Vector(weights.attention_norm, shape_.hidden), shape_.rms_eps,
                rows);
    if (shape_.qk_norm) {
      ops.MatMul(rows, *weights.qkv, bias, /*accumulate=*/false, out);
    } else {
      ops.RotatedMatMul(rows, *weights.qkv, bias, out, turned.Slice(0, begin, end),
                        positions.Slice(0, begin, end), cos_sin, center);
    }
  }
  const QkvViews views = {.q = Heads(qkv, 0, n_q, d),
                          .k = Heads(qkv, n_q * d, n_kv, d),
                          .v = Heads(qkv, (n_q + n_kv) * d, n_kv, d)};
  if (shape_.qk_norm) {
    ops.RmsNorm(views.q, Vector(weights.q_norm, d), shape_.rms_eps, views.q);
    ops.RmsNorm(views.k, Vector(weights.k_norm, d), shape_.rms_eps, views.k);
    ops.Rope(turned, positions, cos_sin, center);
  }
  return views;
}

absl::Status Model::Finish(LayerId layer, TensorView attention, TensorView hidden, Ops& ops,
                           Workspace& workspace) const {
  const Layer& weights = layers_[layer.value()];
  const int64_t n = hidden.shape[0], c = shape_.intermediate,
                chunk_rows = std::min(n, backend_->rows_at_once());
  SLUICE_ASSIGN_OR_RETURN(TensorView normed,
                          workspace.Take(ProductInput(shape_.hidden), {chunk_rows, shape_.hidden}));
  SLUICE_ASSIGN_OR_RETURN(TensorView gate_up, workspace.Take(DType::kF32, {chunk_rows, 2 * c}));
  SLUICE_ASSIGN_OR_RETURN(TensorView inner, workspace.Take(ProductInput(c), {chunk_rows, c}));
  const TensorView attended = Flat(attention);
  for (int64_t begin = 0; begin < n; begin += chunk_rows) {
    const int64_t end = std::min(n, begin + chunk_rows), rows = end - begin;
    const TensorView chunk = hidden.Slice(0, begin, end);
    // One rank adds to the residual, the others set: the sum over ranks has it once.
    ops.MatMul(attended.Slice(0, begin, end), *weights.o, TensorView(), /*accumulate=*/rank_ == 0, chunk);
    ops.AllReduce(chunk);
    ops.RmsNorm(chunk, Vector(weights.mlp_norm, shape_.hidden), shape_.rms_eps, normed.Slice(0, 0, rows));
    ops.GatedMatMul(normed.Slice(0, 0, rows), *weights.gate_up, gate_up.Slice(0, 0, rows),
                    inner.Slice(0, 0, rows));
    ops.MatMul(inner.Slice(0, 0, rows), *weights.down, TensorView(), /*accumulate=*/rank_ == 0, chunk);
    ops.AllReduce(chunk);
  }
  return absl::OkStatus();
}

absl::Status Model::Logits(TensorView hidden, TensorView logits, Ops& ops, Workspace& workspace) const {
  const int64_t n = hidden.shape[0];
  SLUICE_ASSIGN_OR_RETURN(TensorView normed, workspace.Take(ProductInput(shape_.hidden), {n, shape_.hidden}));
  ops.RmsNorm(hidden, Vector(final_norm_, shape_.hidden), shape_.rms_eps, normed);
  ops.MatMul(normed, head_ != nullptr ? *head_ : *embedding_, TensorView(), /*accumulate=*/false, logits);
  return absl::OkStatus();
}

}  // namespace sluice
