// Role: the KV memory of a decode server whose model has several ranks: one DecodeCache on each, holding the
// KV heads of its rank. Sequences take the same steps on all of them; heads are counted over the whole model.
// Threads: as DecodeCache.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/kvcache/decode_cache.h"
#include "common/kvcache/head_map.h"
#include "common/kvcache/sequence_kv.h"
#include "kernels/backend_group.h"

namespace sluice {

// One queue of every rank, in order.
using RankQueues = std::vector<Ops*>;

class RankedSequence;

class RankedCache {
 public:
  // options.memory_bytes: of all ranks together. Errors as DecodeCache's and HeadMap's.
  static absl::StatusOr<std::unique_ptr<RankedCache>> Create(const BackendGroup& group, const KvShape& shape,
                                                             DecodeCacheOptions options);

  // rows[layer * n_kv_heads + head]; all or nothing, as DecodeCache::NewSequence.
  absl::StatusOr<std::unique_ptr<RankedSequence>> NewSequence(std::array<int32_t, 4> selection,
                                                              absl::Span<const int> rows);

  const KvShape& shape() const { return shape_; }  // of the whole model
  const HeadMap& heads() const { return heads_; }
  DecodeCache& rank(int rank) const { return *ranks_[rank]; }
  int max_rows() const { return ranks_[0]->max_rows(); }

  // Over all ranks.
  struct Pieces {
    int total = 0;
    int free = 0;
    size_t bytes = 0;  // of one
    int used() const { return total - free; }
  };
  Pieces pages() const;
  Pieces chunks() const;

 private:
  RankedCache(const KvShape& shape, const HeadMap& heads) : shape_(shape), heads_(heads) {}
  Pieces SumOf(const PagePool& (DecodeCache::*pool_of)() const) const;
  const KvShape shape_;
  const HeadMap heads_;
  std::vector<std::unique_ptr<DecodeCache>> ranks_;
};

// Functions as SequenceKv's.
class RankedSequence {
 public:
  SequenceKv& rank(int rank) const { return *ranks_[rank]; }
  int pages() const;
  absl::Status Write(LayerId layer, int kv_head, int row_begin, TensorView k, TensorView v,
                     absl::Span<const int32_t> positions, const RankQueues& queues);
  void FinishWrites(int growth, const RankQueues& queues);
  // A rank may have taken pages when another could not: they serve the next try.
  absl::Status ReserveAppend(const RankQueues& queues);

 private:
  friend class RankedCache;
  explicit RankedSequence(const RankedCache* cache) : cache_(cache) {}
  const RankedCache* const cache_;
  std::vector<std::unique_ptr<SequenceKv>> ranks_;
};

}  // namespace sluice
