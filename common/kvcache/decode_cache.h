// Role: all KV memory of a decode server: the page pool, the pool of bounds, and the device tables that map
// (slot, layer, KV head, page) to pages. A slot is a sequence's row in every table.
// Why: kept rows are ragged over layers and heads, so a page belongs to one (layer, KV head); and tables that
// stay on the device let a decode step upload nothing but its slots.
// Threads: any. The tables' contents are written by the owner of each SequenceKv, slot by slot.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/base/strong_id.h"
#include "common/kvcache/kv_shape.h"
#include "common/kvcache/page_pool.h"
#include "kernels/backend.h"

namespace sluice {

class SequenceKv;

struct DecodeCacheOptions {
  int n_slots = 64;            // sequences resident at once
  int max_rows = 0;            // rows per (layer, head) a sequence may ever hold: the context length
  size_t memory_bytes = 0;     // tables, pages and bounds together
  double bounds_share = 0.25;  // of what the tables leave, for chunks of bounds; 0: no HSA, Quest, SparQ
  std::vector<int> sliding_windows;  // [n_layers], 0: none in that layer; empty: none in any
};

class DecodeCache {
 public:
  // InvalidArgument names the option; ResourceExhausted when the device cannot give memory_bytes.
  static absl::StatusOr<std::unique_ptr<DecodeCache>> Create(Backend* backend, const KvShape& shape,
                                                             const DecodeCacheOptions& options);

  // selection: {p, k1, k2, value sums} as in PagedKv::hsa; p = 0: no bounds. rows[layer * n_kv_heads + head]:
  // rows to reserve. All or nothing: ResourceExhausted says what is short, InvalidArgument what can never
  // fit. The cache outlives its sequences.
  absl::StatusOr<std::unique_ptr<SequenceKv>> NewSequence(std::array<int32_t, 4> selection,
                                                          absl::Span<const int> rows);

  // The view that ops take, for one layer; `slots` [batch] i32 on the device.
  PagedKv View(LayerId layer, TensorView slots) const;

  const KvShape& shape() const { return shape_; }
  int max_rows() const { return options_.max_rows; }
  int free_slots() const;
  const PagePool& pages() const { return *pages_; }
  const PagePool& chunks() const { return *chunks_; }

  // Rows that one chunk of bounds covers; 0 for p = 0 (see PagedKv::kChunkPages).
  static int ChunkRows(int hsa_page);

 private:
  friend class SequenceKv;
  DecodeCache() = default;
  void GiveSlot(int slot);
  int sliding_window(int layer) const {
    return options_.sliding_windows.empty() ? 0 : options_.sliding_windows[layer];
  }

  KvShape shape_;
  DecodeCacheOptions options_;
  std::unique_ptr<PagePool> pages_, chunks_;
  Buffer tables_memory_;
  // Read only where a head has rows.
  TensorView page_table_;   // [n_slots, n_layers, n_kv_heads, max_pages] i32
  TensorView chunk_table_;  // [n_slots, n_layers, n_kv_heads, max_chunks] i32
  TensorView kept_len_;     // [n_slots, n_layers, n_kv_heads] i32
  TensorView row_begin_;    // [n_slots, n_layers, n_kv_heads] i32
  TensorView hsa_;          // [n_slots, 4] i32
  TensorView value_sums_;   // [n_slots, n_layers, n_kv_heads, head_dim] f32
  TensorView staging_;      // [n_slots, n_layers, n_kv_heads] i32: one column of a table on its way
  mutable Mutex mu_;
  std::vector<int> free_slots_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
