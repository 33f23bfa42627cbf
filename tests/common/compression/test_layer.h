// Role: one layer of one sequence on the CPU backend, as prefill shows it to the gates: hashed q and k,
// log-sum-exp from the attention op.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/compression/retention/retention_policy.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/workspace.h"

namespace sluice {

// Multiples of 1/64 in [-2, 2), exact in bf16; tests/golden/compression/make_selection.py has the same.
inline float HashedValue(uint32_t seed, uint32_t index) {
  uint32_t x = index + seed * 0x9E3779B1u;
  x = (x ^ x >> 16) * 0x85EBCA6Bu;
  x = (x ^ x >> 13) * 0xC2B2AE35u;
  x ^= x >> 16;
  return static_cast<float>(static_cast<int>(x & 255) - 128) / 64;
}

inline uint16_t ToBf16(float exact) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(exact) >> 16); }

struct TestLayerShape {
  int kv_heads = 2;
  int group = 1;
  int head_dim = 16;
  int n = 0;
  int held = 8;  // queries in the view
  int sliding_window = 0;
  int layer = 0;
};

class TestLayer {
 public:
  TestLayer(const TestLayerShape& shape, uint32_t seed)
      : shape_(shape),
        backend_(*NewCpuBackend({})),
        ops_(backend_->NewOps()),
        workspace_(backend_.get()),
        k_(static_cast<size_t>(shape.kv_heads) * shape.n * shape.head_dim),
        q_(static_cast<size_t>(shape.held) * shape.kv_heads * shape.group * shape.head_dim),
        out_(q_.size()),
        lse_(static_cast<size_t>(shape.kv_heads) * shape.group * shape.held),
        positions_(shape.n) {
    for (size_t i = 0; i < q_.size(); ++i) q_[i] = HashedValue(2 * seed, static_cast<uint32_t>(i));
    for (size_t i = 0; i < k_.size(); ++i)
      k_[i] = ToBf16(HashedValue(2 * seed + 1, static_cast<uint32_t>(i)));
    std::iota(positions_.begin(), positions_.end(), 0);
    const int64_t heads = shape.kv_heads * shape.group, d = shape.head_dim;
    view_.layer = LayerId(shape.layer);
    view_.n_tokens = shape.n;
    view_.sliding_window = shape.sliding_window;
    view_.positions = TensorView::Contiguous(positions_.data(), DType::kI32, {shape.kv_heads, shape.n});
    view_.positions.stride[0] = 0;
    view_.q_window = TensorView::Contiguous(q_.data(), DType::kF32, {shape.held, heads, d});
    view_.k = TensorView::Contiguous(k_.data(), DType::kBF16, {shape.kv_heads, shape.n, d});
    view_.window_lse = TensorView::Contiguous(lse_.data(), DType::kF32, {heads, shape.held});
    AttentionArgs args;
    args.q = view_.q_window;
    args.k = args.v = view_.k;
    args.out = TensorView::Contiguous(out_.data(), DType::kF32, {shape.held, heads, d});
    args.lse = view_.window_lse;
    args.positions = view_.positions;
    args.sliding_window = shape.sliding_window;
    ops_->Attention({&args, 1});
    SLUICE_CHECK(ops_->Sync().ok());
  }

  const LayerView& view() const { return view_; }
  Ops& ops() { return *ops_; }
  Workspace& workspace() { return workspace_; }
  // What an op wrote, on the host.
  template <class T>
  std::vector<T> Read(TensorView view) {
    size_t entries = 1;
    for (int d = 0; d < view.rank; ++d) entries *= view.shape[d];
    std::vector<T> out(entries);
    ops_->CopyOut(view, out.data());
    SLUICE_CHECK(ops_->Sync().ok());
    return out;
  }
  // The kept rows of each head.
  std::vector<std::vector<int32_t>> Rows(const LayerPlan& plan) {
    std::vector<int32_t> all(plan.rows.shape[0] * plan.rows.shape[1]);
    ops_->Copy(plan.rows,
               TensorView::Contiguous(all.data(), DType::kI32, {plan.rows.shape[0], plan.rows.shape[1]}));
    SLUICE_CHECK(ops_->Sync().ok());
    std::vector<std::vector<int32_t>> heads;
    for (size_t h = 0; h < plan.kept.size(); ++h) {
      const auto begin = all.begin() + h * plan.rows.shape[1];
      heads.emplace_back(begin, begin + plan.kept[h]);
    }
    return heads;
  }

 private:
  const TestLayerShape shape_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Ops> ops_;
  Workspace workspace_;
  std::vector<uint16_t> k_;
  std::vector<float> q_, out_, lse_;
  std::vector<int32_t> positions_;
  LayerView view_;
};

}  // namespace sluice
