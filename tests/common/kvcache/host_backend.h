// Role: a naive backend on host memory for tests of the cache: the ops that move rows, one loop each.
// Everything else is a bug of the test.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>

#include "common/base/status.h"
#include "kernels/backend.h"

namespace sluice {

class HostOps final : public Ops {
 public:
  int uploads = 0;  // CopyIn and Copy calls

  absl::Status Sync() override { return absl::OkStatus(); }
  void CopyIn(const void* host, TensorView dst) override {
    ++uploads;
    std::memcpy(dst.data, host, Entries(dst) * DTypeSize(dst.dtype));
  }
  void CopyOut(TensorView src, void* host) override {
    std::memcpy(host, src.data, Entries(src) * DTypeSize(src.dtype));
  }
  void Copy(TensorView src, TensorView dst) override {
    ++uploads;
    SLUICE_CHECK(src.rank == 2 && src.shape == dst.shape && src.dtype == DType::kI32);
    for (int i = 0; i < src.shape[0]; ++i) {
      for (int j = 0; j < src.shape[1]; ++j) {
        dst.as<int32_t>()[i * dst.stride[0] + j * dst.stride[1]] =
            src.as<int32_t>()[i * src.stride[0] + j * src.stride[1]];
      }
    }
  }
  void ScatterKv(TensorView k, TensorView v, const PagedKv& cache, int slot, int kv_head,
                 int row_begin) override {
    for (int i = 0; i < k.shape[0]; ++i) {
      float* page = Row(cache, slot, kv_head, row_begin + i);
      for (int d = 0; d < cache.head_dim; ++d) {
        page[d] = k.as<float>()[i * k.stride[0] + d];
        page[PagedKv::kPageRows * cache.head_dim + d] = v.as<float>()[i * v.stride[0] + d];
      }
    }
  }
  void AppendKv(TensorView k, TensorView v, const PagedKv& cache) override {
    for (int b = 0; b < k.shape[0]; ++b) {
      const int slot = cache.slots.as<int32_t>()[b];
      for (int h = 0; h < cache.n_kv_heads; ++h) {
        int32_t& kept = cache.kept_len.as<int32_t>()[slot * cache.kept_len.stride[0] + h];
        ScatterKv(k.At(b).Slice(0, h, h + 1), v.At(b).Slice(0, h, h + 1), cache, slot, h, kept++);
      }
    }
  }

  void Embed(const Matrix&, TensorView, TensorView) override { std::abort(); }
  void RmsNorm(TensorView, TensorView, float, TensorView) override { std::abort(); }
  void MatMul(TensorView, const Matrix&, TensorView, bool, TensorView) override { std::abort(); }
  void Rope(TensorView, TensorView, TensorView) override { std::abort(); }
  void SwiGlu(TensorView, TensorView) override { std::abort(); }
  void StoreKv(TensorView, TensorView, TensorView, TensorView) override { std::abort(); }
  void Attention(absl::Span<const AttentionArgs>) override { std::abort(); }
  void WindowScores(const WindowScoresArgs&) override { std::abort(); }
  void Pool(TensorView, const Pooling&, TensorView) override { std::abort(); }
  void SumHeads(TensorView, TensorView) override { std::abort(); }
  void SelectTop(TensorView, int, int, TensorView) override { std::abort(); }
  void GatherRows(TensorView, TensorView, TensorView) override { std::abort(); }
  void GatherKv(TensorView, TensorView, TensorView, TensorView, absl::Span<const int>, TensorView, TensorView,
                TensorView) override {
    std::abort();
  }
  void PagedAttention(TensorView, const PagedKv&, TensorView) override { std::abort(); }
  void HsaAttention(TensorView, const PagedKv&, TensorView) override { std::abort(); }

  // K of a row; its V lies kPageRows * head_dim floats behind.
  static float* Row(const PagedKv& cache, int slot, int kv_head, int row) {
    const TensorView& table = cache.page_table;
    const int32_t page = table.as<int32_t>()[slot * table.stride[0] + kv_head * table.stride[1] +
                                             row / PagedKv::kPageRows * table.stride[2]];
    SLUICE_CHECK(page >= 0);
    return static_cast<float*>(cache.pages) +
           (2 * PagedKv::kPageRows * static_cast<int64_t>(page) + row % PagedKv::kPageRows) * cache.head_dim;
  }

 private:
  static size_t Entries(TensorView view) {
    size_t n = 1;
    for (int d = view.rank - 1; d >= 0; --d) {
      SLUICE_CHECK(view.shape[d] == 1 || view.stride[d] == static_cast<int64_t>(n));
      n *= view.shape[d];
    }
    return n;
  }
};

class HostBackend final : public Backend {
 public:
  std::string description() const override { return "host"; }
  DeviceMemory memory() const override { return {}; }
  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    return Buffer(std::aligned_alloc(64, (bytes + 63) / 64 * 64), bytes, std::free);
  }
  absl::StatusOr<std::unique_ptr<Matrix>> PackMatrix(int64_t, int64_t, const ReadRows&) override {
    std::abort();
  }
  std::unique_ptr<Ops> NewOps() override { return std::make_unique<HostOps>(); }
};

}  // namespace sluice
