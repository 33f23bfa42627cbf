// Role: a paged cache as kernels see it: where the rows and the bounds of a (slot, KV head) lie. All lengths
// and tables are read on the GPU. Threads: passed to kernels by value; lives as long as the cache.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/device.cuh"

namespace sluice {

// A table [n_slots, n_kv_heads, ...] i32.
struct SlotTable {
  int32_t* data = nullptr;
  int64_t slot_stride = 0, head_stride = 0;

  SlotTable() = default;
  explicit SlotTable(const TensorView& t)
      : data(static_cast<int32_t*>(t.data)), slot_stride(t.stride[0]), head_stride(t.stride[1]) {}
  __device__ int32_t* At(int slot, int head) const { return data + slot * slot_stride + head * head_stride; }
};

struct HsaSettings {
  int page;      // rows of a page; 0: the slot keeps no bounds
  int channels;  // k1
  int tokens;    // k2
  int sums;      // 1: value sums are kept
};

// Pages of 2 * 64 rows of d values: K, then V. Row r of a head lies in "place" page * 128 + r % 64; its V is
// 64 rows further.
struct PagedCache {
  void* pages;
  void* chunks;
  const int32_t* slots;
  SlotTable page_table, kept_len, row_begin, chunk_table;
  const int32_t* hsa;
  int64_t hsa_stride;
  float* value_sums;
  int64_t sums_slot_stride, sums_head_stride;
  int heads, d;
  int max_pages, max_chunks;

  explicit PagedCache(const PagedKv& c)
      : pages(c.pages),
        chunks(c.chunks),
        slots(static_cast<const int32_t*>(c.slots.data)),
        page_table(c.page_table),
        kept_len(c.kept_len),
        row_begin(c.row_begin),
        chunk_table(c.chunk_table),
        hsa(static_cast<const int32_t*>(c.hsa.data)),
        hsa_stride(c.hsa.stride[0]),
        value_sums(static_cast<float*>(c.value_sums.data)),
        sums_slot_stride(c.value_sums.stride[0]),
        sums_head_stride(c.value_sums.stride[1]),
        heads(c.n_kv_heads),
        d(c.head_dim),
        max_pages(static_cast<int>(c.page_table.shape[2])),
        max_chunks(c.hsa.empty() ? 0 : static_cast<int>(c.chunk_table.shape[2])) {}

  __device__ HsaSettings Hsa(int slot) const {
    if (hsa == nullptr) return {0, 0, 0, 0};
    const int32_t* s = hsa + slot * hsa_stride;
    return {s[0], s[1], s[2], s[3]};
  }
  __device__ float* ValueSums(int slot, int head) const {
    return value_sums + slot * sums_slot_stride + head * sums_head_stride;
  }
  __device__ int Length(int slot, int head) const { return *kept_len.At(slot, head); }
  __device__ int Begin(int slot, int head) const {
    return row_begin.data == nullptr ? 0 : *row_begin.At(slot, head);
  }
  __device__ int Place(int slot, int head, int row) const {
    return page_table.At(slot, head)[row / PagedKv::kPageRows] * (2 * PagedKv::kPageRows) +
           row % PagedKv::kPageRows;
  }
  template <class T>
  __device__ T* K(int place) const {
    return static_cast<T*>(pages) + int64_t{place} * d;
  }
  template <class T>
  __device__ T* V(int place) const {
    return K<T>(place) + PagedKv::kPageRows * d;
  }
  // 64 values, one for each page of a run of 64 pages: the bound of a channel. With one-row pages a chunk
  // has two runs of 64 rows instead of minima and maxima.
  template <class T>
  __device__ T* BoundsLine(int slot, int head, int page_rows, int run, int channel, bool max) const {
    const int chunk = page_rows == 1 ? run / 2 : run, half = page_rows == 1 ? run % 2 : max;
    return static_cast<T*>(chunks) +
           ((chunk_table.At(slot, head)[chunk] * int64_t{2} + half) * d + channel) * PagedKv::kChunkPages;
  }
};

}  // namespace sluice
