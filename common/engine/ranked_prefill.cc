#include "common/engine/ranked_prefill.h"

#include <utility>

#include "absl/memory/memory.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace sluice {

// What the passes of all ranks see of one sequence's history and sink.
class RankedPrefill::Ends {
 public:
  Ends(const RankedPrefillSequence& sequence, const RankedModel* model)
      : sink_(sequence.sink), shape_(model->kv_shape()), shares_(model->ranks()) {
    if (model->ranks() > 1) home_ = model->group().rank(0);
    for (int rank = 0; rank < model->ranks(); ++rank) {
      sinks_.push_back(std::make_unique<Sink>(this, rank));
      if (sequence.history != nullptr)
        histories_.push_back(std::make_unique<History>(sequence.history, rank));
    }
  }
  HistoryReader* history(int rank) const { return histories_.empty() ? nullptr : histories_[rank].get(); }
  PrefillSink* sink(int rank) const { return sinks_[rank].get(); }

 private:
  class History final : public HistoryReader {
   public:
    History(const RankedHistory* history, int rank) : history_(history), rank_(rank) {}
    int rows(LayerId layer) const override { return history_->rows(layer); }
    absl::Status Read(LayerId layer, TensorView k, TensorView v, TensorView positions,
                      Ops& ops) const override {
      return history_->Read(rank_, layer, k, v, positions, ops);
    }

   private:
    const RankedHistory* const history_;
    const int rank_;
  };

  class Sink final : public PrefillSink {
   public:
    Sink(Ends* ends, int rank) : ends_(ends), rank_(rank) {}
    bool wants_new_rows() const override { return ends_->sink_->wants_new_rows(); }
    absl::Status OnNewRows(LayerId layer, TensorView k, TensorView v, Ops& ops) override {
      return ends_->sink_->OnNewRows(rank_, layer, k, v, ops);
    }
    absl::Status OnKept(LayerId layer, KeptLayer kept) override {
      return ends_->Join(rank_, layer, std::move(kept));
    }

   private:
    Ends* const ends_;
    const int rank_;
  };

  // The last rank to come hands over all shares, while the others go on.
  absl::Status Join(int rank, LayerId layer, KeptLayer kept) {
    if (home_ == nullptr) return sink_->OnKept(layer, std::move(kept));
    std::vector<KeptLayer> shares;
    {
      MutexLock lock(&mu_);
      shares_[rank] = std::move(kept);
      if (++n_shares_ < shares_.size()) return absl::OkStatus();
      n_shares_ = 0;
      shares = std::exchange(shares_, std::vector<KeptLayer>(shares_.size()));
    }
    SLUICE_ASSIGN_OR_RETURN(KeptLayer joined, Joined(shares));
    return sink_->OnKept(layer, std::move(joined));
  }

  absl::StatusOr<KeptLayer> Joined(const std::vector<KeptLayer>& shares) const {
    KeptLayer joined;
    for (const KeptLayer& share : shares)
      joined.kept.insert(joined.kept.end(), share.kept.begin(), share.kept.end());
    const int64_t total = joined.total(), d = shape_.head_dim;
    SLUICE_ASSIGN_OR_RETURN(joined.k, home_->Allocate(total * shape_.row_bytes()));
    SLUICE_ASSIGN_OR_RETURN(joined.v, home_->Allocate(total * shape_.row_bytes()));
    SLUICE_ASSIGN_OR_RETURN(joined.positions, home_->Allocate(total * sizeof(int32_t)));
    const std::unique_ptr<Ops> ops = home_->NewOps();
    int64_t begin = 0;
    for (const KeptLayer& share : shares) {
      const int64_t n = share.total(), end = begin + n;
      const auto copy = [&](const Buffer& from, const Buffer& to) {
        ops->Copy(from.View(shape_.dtype, {n, d}), to.View(shape_.dtype, {total, d}).Slice(0, begin, end));
      };
      copy(share.k, joined.k);
      copy(share.v, joined.v);
      ops->Copy(share.positions.View(DType::kI32, {n}),
                joined.positions.View(DType::kI32, {total}).Slice(0, begin, end));
      begin = end;
    }
    SLUICE_RETURN_IF_ERROR(ops->Sync());
    return joined;
  }

  RankedSink* const sink_;
  const KvShape shape_;                              // of the whole model
  Backend* home_ = nullptr;                          // rank 0's; null: the only rank
  std::vector<std::unique_ptr<Sink>> sinks_;         // by rank
  std::vector<std::unique_ptr<History>> histories_;  // by rank; none without a history
  Mutex mu_;
  std::vector<KeptLayer> shares_ ABSL_GUARDED_BY(mu_);
  size_t n_shares_ ABSL_GUARDED_BY(mu_) = 0;
};

RankedPrefill::RankedPrefill(const RankedModel* model) : model_(model) {}
RankedPrefill::~RankedPrefill() = default;

absl::StatusOr<std::unique_ptr<RankedPrefill>> RankedPrefill::Create(
    const RankedModel* model, const std::vector<RankedPrefillSequence>& sequences) {
  auto prefill = absl::WrapUnique(new RankedPrefill(model));
  for (const RankedPrefillSequence& sequence : sequences)
    prefill->ends_.push_back(std::make_unique<Ends>(sequence, model));
  for (int rank = 0; rank < model->ranks(); ++rank) {
    std::vector<PrefillSequence> own;
    for (size_t i = 0; i < sequences.size(); ++i)
      own.push_back({.ids = sequences[i].ids,
                     .first_position = sequences[i].first_position,
                     .history = prefill->ends_[i]->history(rank),
                     .gates = sequences[i].gates,
                     .sink = prefill->ends_[i]->sink(rank),
                     .observer = sequences[i].observers.empty() ? nullptr : sequences[i].observers[rank]});
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<PrefillPass> pass,
                            PrefillPass::Create(&model->rank(rank), std::move(own)));
    prefill->passes_.push_back(std::move(pass));
  }
  prefill->errors_ = model->group().errors();
  return prefill;
}

absl::Status RankedPrefill::RunLayer() {
  // What the last layer queued may have been cut off with another pass's sums.
  if (errors_ != model_->group().errors())
    return absl::AbortedError("a rank of the model failed while this prompt was under way; try again");
  return model_->group().Run([&](int rank) { return passes_[rank]->RunLayer(); });
}

void RankedPrefill::Cancel(int sequence) {
  for (auto& pass : passes_) pass->Cancel(sequence);
}

size_t RankedPrefill::ScratchBytes(const RankedModel& model, int tokens, int history_rows) {
  return PrefillPass::ScratchBytes(model.rank(0), tokens, history_rows) * model.ranks();
}

}  // namespace sluice
