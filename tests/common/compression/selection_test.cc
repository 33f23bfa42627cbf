// The selectors over a real cache: hsa at its identity setting reads what dense reads, and bounds that grew
// row by row are the bounds of rows that came at once.
#include <cstring>

#include "common/compression/selection/selector.h"
#include "common/kvcache/decode_cache.h"
#include "common/kvcache/sequence_kv.h"
#include "gtest/gtest.h"
#include "tests/common/compression/test_layer.h"

namespace sluice {
namespace {

using Selection = std::array<int32_t, 4>;

constexpr int kDim = 16, kKvHeads = 2, kGroup = 3;

class SelectionTest : public ::testing::Test {
 protected:
  SelectionTest() : backend_(*NewCpuBackend({})), ops_(backend_->NewOps()) {
    DecodeCacheOptions options;
    options.n_slots = 3;
    options.max_rows = 640;
    options.memory_bytes = 2 << 20;
    cache_ = *DecodeCache::Create(
        backend_.get(),
        {.n_layers = 1, .n_q_heads = kKvHeads * kGroup, .n_kv_heads = kKvHeads, .head_dim = kDim}, options);
  }

  // Rows [0, written) arrive from prefill, rows [written, n) are decoded.
  std::unique_ptr<SequenceKv> Sequence(Selection selection, int written, int n) {
    auto kv = *cache_->NewSequence(selection, {written, written});
    std::vector<int32_t> positions(written);
    std::iota(positions.begin(), positions.end(), 0);
    for (int head = 0; head < kKvHeads; ++head) {
      std::vector<uint16_t> k, v;
      for (int row = 0; row < written; ++row) {
        for (int d = 0; d < kDim; ++d) {
          k.push_back(ToBf16(Value(1, head, row, d)));
          v.push_back(ToBf16(Value(2, head, row, d)));
        }
      }
      SLUICE_CHECK(
          kv->Write(LayerId(0), head, 0, TensorView::Contiguous(k.data(), DType::kBF16, {written, kDim}),
                    TensorView::Contiguous(v.data(), DType::kBF16, {written, kDim}), positions, *ops_)
              .ok());
      SLUICE_CHECK(ops_->Sync().ok());
    }
    kv->FinishWrites(0, *ops_);
    int32_t slot = kv->slot();
    for (int row = written; row < n; ++row) {
      SLUICE_CHECK(kv->ReserveAppend(*ops_).ok());
      std::vector<float> k, v;
      for (int head = 0; head < kKvHeads; ++head) {
        for (int d = 0; d < kDim; ++d) {
          k.push_back(Value(1, head, row, d));
          v.push_back(Value(2, head, row, d));
        }
      }
      ops_->AppendKv(TensorView::Contiguous(k.data(), DType::kF32, {1, kKvHeads, kDim}),
                     TensorView::Contiguous(v.data(), DType::kF32, {1, kKvHeads, kDim}), View(&slot));
      SLUICE_CHECK(ops_->Sync().ok());
      kv->Appended(row);
    }
    return kv;
  }

  std::vector<float> Attend(SelectionKind kind, const SequenceKv& kv, int layer = 2) {
    std::vector<float> q(kKvHeads * kGroup * kDim), out(q.size());
    for (size_t i = 0; i < q.size(); ++i) q[i] = HashedValue(3, static_cast<uint32_t>(i));
    int32_t slot = kv.slot();
    SelectorOf(kind).Attend(
        LayerId(layer), TensorView::Contiguous(q.data(), DType::kF32, {1, kKvHeads * kGroup, kDim}),
        View(&slot), *ops_, TensorView::Contiguous(out.data(), DType::kF32, {1, kKvHeads * kGroup, kDim}));
    SLUICE_CHECK(ops_->Sync().ok());
    return out;
  }

  // The bounds of HSA page `page` of a head: head_dim minima, then maxima.
  std::vector<uint16_t> Bounds(const SequenceKv& kv, int head, int page) {
    const PagedKv view = cache_->View(LayerId(0), TensorView());
    const int32_t chunk = view.chunk_table.as<int32_t>()[kv.slot() * view.chunk_table.stride[0] +
                                                         head * view.chunk_table.stride[1] + page / 64];
    const uint16_t* bounds = static_cast<const uint16_t*>(view.chunks) + int64_t{2} * kDim * 64 * chunk;
    std::vector<uint16_t> out;
    for (int row = 0; row < 2 * kDim; ++row) out.push_back(bounds[row * 64 + page % 64]);
    return out;
  }

  PagedKv View(int32_t* slot) {
    return cache_->View(LayerId(0), TensorView::Contiguous(slot, DType::kI32, {1}));
  }
  static float Value(int what, int head, int row, int d) {
    return HashedValue(what, static_cast<uint32_t>((head * 1000 + row) * kDim + d));
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<DecodeCache> cache_;
};

TEST_F(SelectionTest, ParametersAreTheGatesNumbers) {
  const SelectionGate gate = {.kind = SelectionKind::kHsa, .page = 3, .channels = 61, .tokens = 128};
  EXPECT_EQ(SelectorOf(SelectionKind::kHsa).parameters(gate), (Selection{3, 61, 128}));
  EXPECT_EQ(SelectorOf(SelectionKind::kDense).parameters(gate), (Selection{0, 0, 0}));
}

TEST_F(SelectionTest, HsaThatReadsEveryRowEqualsDense) {
  for (int n : {1, 5, 64, 129, 300}) {
    for (int page : {1, 3}) {
      const auto kv = Sequence({page, kDim, 300}, std::max(1, n - 3), n);
      const std::vector<float> dense = Attend(SelectionKind::kDense, *kv),
                               hsa = Attend(SelectionKind::kHsa, *kv);
      for (size_t i = 0; i < dense.size(); ++i) EXPECT_NEAR(hsa[i], dense[i], 1e-5) << n << " page " << page;
    }
  }
}

TEST_F(SelectionTest, HsaThatReadsFewRowsDiffers) {
  const auto kv = Sequence({3, 8, 16}, 300, 300);
  EXPECT_NE(Attend(SelectionKind::kHsa, *kv), Attend(SelectionKind::kDense, *kv));
}

TEST_F(SelectionTest, BoundsThatGrewEqualBoundsThatWereBuilt) {
  for (int page : {2, 3, 7}) {
    for (int n = 1; n <= 5 * page; ++n) {
      const auto grown = Sequence({page, 4, 8}, 1, n), built = Sequence({page, 4, 8}, n, n);
      for (int head = 0; head < kKvHeads; ++head) {
        for (int j = 0; j < (n + page - 1) / page; ++j) {
          ASSERT_EQ(Bounds(*grown, head, j), Bounds(*built, head, j))
              << "p " << page << " n " << n << " page " << j;
        }
      }
      EXPECT_EQ(Attend(SelectionKind::kHsa, *grown), Attend(SelectionKind::kHsa, *built));
    }
  }
}

}  // namespace
}  // namespace sluice
