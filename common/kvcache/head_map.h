// Role: which rank of a model holds a KV head, in every layer: contiguous runs of equal length, so that the
// query heads of a KV head are its rank's, too. Why: what crosses between servers counts heads over the whole
// model; each end maps them to its own ranks by this, whatever the other's number of ranks. Threads: plain
// values.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace sluice {

class HeadMap {
 public:
  // InvalidArgument unless every rank gets as many heads.
  static absl::StatusOr<HeadMap> Create(int n_kv_heads, int ranks) {
    if (ranks < 1 || n_kv_heads % ranks != 0)
      return absl::InvalidArgumentError(
          absl::StrCat(ranks, " ranks do not divide the model's ", n_kv_heads, " KV heads"));
    return HeadMap(n_kv_heads / ranks, ranks);
  }

  int ranks() const { return ranks_; }
  int per_rank() const { return per_rank_; }
  int rank_of(int head) const { return head / per_rank_; }
  int local(int head) const { return head % per_rank_; }  // its number on its rank
  int global(int rank, int local) const { return rank * per_rank_ + local; }

 private:
  HeadMap(int per_rank, int ranks) : per_rank_(per_rank), ranks_(ranks) {}
  int per_rank_, ranks_;
};

}  // namespace sluice
