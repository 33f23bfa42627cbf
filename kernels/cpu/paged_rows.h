// Role: where rows and bounds of a paged cache lie in host memory. Copies nothing; lives as long as the
// cache.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/bf16.h"
#include "kernels/op_checks.h"

namespace sluice {

// The rows of one (slot, KV head).
class PagedRows {
 public:
  PagedRows(const PagedKv& cache, int slot, int kv_head)
      : pages_(static_cast<char*>(cache.pages)),
        table_(TableRow(cache.page_table, slot, kv_head)),
        row_bytes_(cache.head_dim * DTypeSize(cache.dtype)) {}

  char* k(int row) const { return Page(row) + row % PagedKv::kPageRows * row_bytes_; }
  char* v(int row) const { return k(row) + PagedKv::kPageRows * row_bytes_; }
  size_t row_bytes() const { return row_bytes_; }

  // [head_dim] of a slot that keeps them.
  static float* ValueSums(const PagedKv& cache, int slot, int kv_head) {
    return static_cast<float*>(cache.value_sums.data) + slot * cache.value_sums.stride[0] +
           kv_head * cache.value_sums.stride[1];
  }

  static int32_t* TableRow(const TensorView& table, int slot, int kv_head) {
    return static_cast<int32_t*>(table.data) + slot * table.stride[0] + kv_head * table.stride[1];
  }

 private:
  char* Page(int row) const {
    return pages_ +
           table_[row / PagedKv::kPageRows] * (2 * PagedKv::kPageRows * static_cast<int64_t>(row_bytes_));
  }
  char* pages_;
  const int32_t* table_;
  size_t row_bytes_;
};

// sums[c] += value c of a V row, for c < d.
template <class Sum>
void AddValueRow(const char* v, DType dtype, int d, Sum* sums) {
  for (int c = 0; c < d; ++c)
    sums[c] += dtype == DType::kBF16 ? Bf16ToFloat(reinterpret_cast<const uint16_t*>(v)[c])
                                     : reinterpret_cast<const float*>(v)[c];
}

// The bounds of one (slot, KV head), when HSA pages hold `page` rows.
class PageBounds {
 public:
  PageBounds(const PagedKv& cache, int slot, int kv_head, int page)
      : chunks_(static_cast<char*>(cache.chunks)),
        table_(PagedRows::TableRow(cache.chunk_table, slot, kv_head)),
        element_(DTypeSize(cache.dtype)),
        head_dim_(cache.head_dim),
        page_(page) {}

  // Lines hold one value for each of 64 pages; with one-row pages a chunk has two runs of 64 rows instead of
  // minima and maxima.
  int n_lines_of_pages(int n_pages) const {
    return (n_pages + PagedKv::kChunkPages - 1) / PagedKv::kChunkPages;
  }
  char* line(int run, int channel, bool max) const {
    const int chunk = page_ == 1 ? run / 2 : run;
    const int half = page_ == 1 ? run % 2 : max;
    return chunks_ +
           ((table_[chunk] * int64_t{2} + half) * head_dim_ + channel) * PagedKv::kChunkPages * element_;
  }

  // Sets or widens the bounds of row's page by the row itself. T: float or uint16_t (bf16).
  template <class T>
  void Add(int row, const T* k) const {
    const int page = row / page_, run = page / PagedKv::kChunkPages, column = page % PagedKv::kChunkPages;
    T* low = reinterpret_cast<T*>(line(run, 0, false)) + column;
    if (page_ == 1) {
      for (int d = 0; d < head_dim_; ++d) low[d * PagedKv::kChunkPages] = k[d];
      return;
    }
    T* high = reinterpret_cast<T*>(line(run, 0, true)) + column;
    const bool first = row % page_ == 0;
    for (int d = 0; d < head_dim_; ++d) {
      T& a = low[d * PagedKv::kChunkPages];
      T& b = high[d * PagedKv::kChunkPages];
      if (first || Value(k[d]) < Value(a)) a = k[d];
      if (first || Value(k[d]) > Value(b)) b = k[d];
    }
  }

 private:
  static float Value(float x) { return x; }
  static float Value(uint16_t x) { return Bf16ToFloat(x); }

  char* chunks_;
  const int32_t* table_;
  size_t element_;
  int head_dim_;
  int page_;
};

struct HsaSettings {
  int page;      // rows of a page; 0: the slot keeps no bounds
  int channels;  // k1
  int tokens;    // k2
  bool sums;     // value sums are kept
};

inline HsaSettings HsaOf(const PagedKv& cache, int slot) {
  if (cache.hsa.empty()) return {0, 0, 0, false};
  const int32_t* hsa = static_cast<const int32_t*>(cache.hsa.data) + slot * cache.hsa.stride[0];
  return {hsa[0], hsa[1], hsa[2], hsa[3] != 0};
}

}  // namespace sluice
