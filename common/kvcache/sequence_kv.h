// Role: the rows of one sequence in a DecodeCache: its slot, its pages, and the host's copy of its lengths.
// Life: NewSequence reserves; Write() per (layer, head); FinishWrites() once; then per decoded token
// ReserveAppend(), AdvanceWindows(), AppendKv and attention in every layer, Appended().
// Threads: one loop at a time: the transfer loop until FinishWrites has been synced, the decode loop
// afterwards. Destroy it (any thread) only when the ops that read its slot have been synced.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/strong_id.h"
#include "common/kvcache/decode_cache.h"
#include "kernels/backend.h"

namespace sluice {

class SequenceKv {
 public:
  ~SequenceKv();  // gives slot, pages and chunks back
  SequenceKv(const SequenceKv&) = delete;
  SequenceKv& operator=(const SequenceKv&) = delete;

  int slot() const { return slot_; }
  int kept(LayerId layer, int kv_head) const;  // rows in the cache
  int pages() const;                           // held, over all layers and heads

  // Copies rows [row_begin, row_begin + n) of one head into pages and builds their bounds. k, v [n, head_dim]
  // KV dtype, alive until ops is synced. positions: [n] host, RoPE positions of the rows. Rows of a head come
  // in ascending order, without gaps. InvalidArgument, with nothing changed, when a peer breaks that or sends
  // more rows than were reserved.
  absl::Status Write(LayerId layer, int kv_head, int row_begin, TensorView k, TensorView v,
                     absl::Span<const int32_t> positions, Ops& ops);

  // All rows have arrived: gives back what `growth` more rows per head do not need, shows decode the lengths,
  // and adds up the values where their sums are kept. Again after a step that failed: the device forgets the
  // rows that some layers may have appended.
  void FinishWrites(int growth, Ops& ops);

  // Makes room for one more row in every (layer, head). ResourceExhausted when a pool is empty, OutOfRange at
  // max_rows; nothing changed then.
  absl::Status ReserveAppend(Ops& ops);

  // Sets the first row that a query at `position` may read in every layer with a sliding window.
  void AdvanceWindows(int32_t position, Ops& ops);

  // After the step: AppendKv ran once in every layer. position: of the appended token.
  void Appended(int32_t position);

 private:
  friend class DecodeCache;
  struct Head {
    int rows = 0;
    int32_t last_position = -1;
    std::vector<PageId> pages;
    std::vector<PageId> chunks;
    std::vector<int32_t> positions;  // [rows] in layers with a sliding window, else empty
  };

  SequenceKv(DecodeCache* cache, int slot, std::array<int32_t, 4> selection);
  absl::Status Reserve(absl::Span<const int> rows);
  Head& head(int layer, int kv_head) { return heads_[layer * cache_->shape_.n_kv_heads + kv_head]; }
  void UploadSlot(Ops& ops);
  void UploadLengths(Ops& ops);
  void UploadColumn(TensorView table, std::vector<PageId> Head::*ids, size_t column, Ops& ops);
  void UploadRowBegin(Ops& ops);

  DecodeCache* const cache_;
  const int slot_;
  const std::array<int32_t, 4> selection_;
  bool uploaded_ = false;
  std::vector<Head> heads_;         // [n_layers * n_kv_heads]
  std::vector<int32_t> row_begin_;  // same order, as on the device
};

}  // namespace sluice
