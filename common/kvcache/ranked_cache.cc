#include "common/kvcache/ranked_cache.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<RankedCache>> RankedCache::Create(const BackendGroup& group,
                                                                 const KvShape& shape,
                                                                 DecodeCacheOptions options) {
  SLUICE_ASSIGN_OR_RETURN(const HeadMap heads, HeadMap::Create(shape.n_kv_heads, group.size()));
  auto cache = absl::WrapUnique(new RankedCache(shape, heads));
  options.memory_bytes /= group.size();
  for (int rank = 0; rank < group.size(); ++rank) {
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<DecodeCache> own,
                            DecodeCache::Create(group.rank(rank), shape.OfRank(group.size()), options));
    cache->ranks_.push_back(std::move(own));
  }
  return cache;
}

absl::StatusOr<std::unique_ptr<RankedSequence>> RankedCache::NewSequence(std::array<int32_t, 4> selection,
                                                                         absl::Span<const int> rows) {
  SLUICE_CHECK(rows.size() == static_cast<size_t>(shape_.n_layers) * shape_.n_kv_heads);
  auto sequence = absl::WrapUnique(new RankedSequence(this));
  for (int rank = 0; rank < heads_.ranks(); ++rank) {
    std::vector<int> own;
    for (int layer = 0; layer < shape_.n_layers; ++layer)
      for (int h = 0; h < heads_.per_rank(); ++h)
        own.push_back(rows[layer * shape_.n_kv_heads + heads_.global(rank, h)]);
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<SequenceKv> kv, ranks_[rank]->NewSequence(selection, own));
    sequence->ranks_.push_back(std::move(kv));
  }
  return sequence;
}

RankedCache::Pieces RankedCache::SumOf(const PagePool& (DecodeCache::*pool_of)() const) const {
  Pieces sum;
  for (const auto& rank : ranks_) {
    const PagePool& pool = ((*rank).*pool_of)();
    sum = {sum.total + pool.total_pages(), sum.free + pool.free_pages(), pool.page_bytes()};
  }
  return sum;
}

RankedCache::Pieces RankedCache::pages() const { return SumOf(&DecodeCache::pages); }
RankedCache::Pieces RankedCache::chunks() const { return SumOf(&DecodeCache::chunks); }

int RankedSequence::pages() const {
  int held = 0;
  for (const auto& rank : ranks_) held += rank->pages();
  return held;
}

absl::Status RankedSequence::Write(LayerId layer, int kv_head, int row_begin, TensorView k, TensorView v,
                                   absl::Span<const int32_t> positions, const RankQueues& queues) {
  if (kv_head < 0 || kv_head >= cache_->shape().n_kv_heads)
    return absl::InvalidArgumentError(
        absl::StrCat("KV head ", kv_head, ": the model has ", cache_->shape().n_kv_heads));
  const HeadMap& heads = cache_->heads();
  const int rank = heads.rank_of(kv_head);
  return ranks_[rank]->Write(layer, heads.local(kv_head), row_begin, k, v, positions, *queues[rank]);
}

void RankedSequence::FinishWrites(int growth, const RankQueues& queues) {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank]->FinishWrites(growth, *queues[rank]);
}

absl::Status RankedSequence::ReserveAppend(const RankQueues& queues) {
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    SLUICE_RETURN_IF_ERROR(ranks_[rank]->ReserveAppend(*queues[rank]));
  return absl::OkStatus();
}

}  // namespace sluice
