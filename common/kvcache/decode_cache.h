// Role: all KV memory of a decode server: the page pool, the pool of bounds, the device tables that map
// (slot, layer, KV head, page) to pages, and the sequences that own them.
// Why: kept rows are ragged over layers and heads, so a page belongs to one (layer, KV head).
// Threads: DecodeCache::NewSequence, the destructor of SequenceKv and the counters: any thread. Everything
// else of a SequenceKv belongs to one loop at a time: the transfer loop until it is ready, the decode loop
// afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
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
  size_t memory_bytes = 0;     // pages and bounds together
  double bounds_share = 0.25;  // of memory_bytes, for chunks of bounds
};

class DecodeCache {
 public:
  static absl::StatusOr<std::unique_ptr<DecodeCache>> Create(Backend* backend, const KvShape& shape,
                                                             const DecodeCacheOptions& options);

  // selection: {p, k1, k2} for PagedKv::hsa; p = 0: no bounds. rows[layer * n_kv_heads + head]: rows to
  // reserve. All or nothing: ResourceExhausted says what is short.
  absl::StatusOr<std::unique_ptr<SequenceKv>> NewSequence(std::array<int32_t, 3> selection,
                                                          absl::Span<const int> rows);

  // The view that ops take, for one layer; `slots` [batch] i32 on the device.
  PagedKv View(LayerId layer, TensorView slots) const;

  const KvShape& shape() const { return shape_; }
  int free_slots() const;
  const PagePool& pages() const { return *pages_; }
  const PagePool& chunks() const { return *chunks_; }
  size_t memory_bytes() const;

 private:
  friend class SequenceKv;
  DecodeCache() = default;
  KvShape shape_;
  DecodeCacheOptions options_;
  int max_pages_ = 0;  // per (slot, layer, head)
  int max_chunks_ = 0;
  std::unique_ptr<PagePool> pages_, chunks_;
  Buffer page_table_, chunk_table_, kept_len_, row_begin_, hsa_;
  mutable Mutex mu_;
  std::vector<int> free_slots_ ABSL_GUARDED_BY(mu_);
};

// One sequence's rows. Gives everything back when destroyed.
class SequenceKv {
 public:
  ~SequenceKv();
  int slot() const { return slot_; }
  int kept(LayerId layer, int kv_head) const;  // rows in the cache

  // Copies rows [row_begin, row_begin + n) of one head into pages and rebuilds bounds. k, v [n, head_dim] KV
  // dtype. positions: [n] host, RoPE positions of the rows. Rows of a head come in ascending order, without
  // gaps.
  absl::Status Write(LayerId layer, int kv_head, int row_begin, TensorView k, TensorView v,
                     absl::Span<const int32_t> positions, Ops& ops);

  // Gives back reserved pages beyond rows-in-cache + `growth` rows. Called when all rows have arrived.
  void Trim(int growth);

  // Makes room for one more row in every (layer, head); ResourceExhausted when the pool is empty (nothing
  // changed).
  absl::Status ReserveAppend(Ops& ops);
  // After the step: AppendKv ran once in every layer. position: of the appended token.
  void Appended(int32_t position);

  // First readable row of windowed layers for a query at `position`; uploads when it changed.
  void SetWindow(LayerId layer, int sliding_window, int32_t position, Ops& ops);

 private:
  friend class DecodeCache;
  SequenceKv() = default;
  DecodeCache* cache_ = nullptr;
  int slot_ = -1;
  std::array<int32_t, 3> selection_ = {};
  struct Head {
    std::vector<PageId> pages;
    std::vector<PageId> chunks;
    std::vector<int32_t> positions;  // [rows]
  };
  std::vector<Head> heads_;  // [n_layers * n_kv_heads]
};

}  // namespace sluice
