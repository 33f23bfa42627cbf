// Role: a prefill pass over all ranks of a model: the same PrefillPass on each, layer by layer. Histories and
// new rows are each rank's own; a layer's kept rows are few, and are put together on rank 0's device, so that
// whoever sends or remembers them sees one device.
// Threads: one loop (the prefill loop); histories and sinks are called from the ranks' threads.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "common/engine/prefill_pass.h"
#include "common/model/ranked_model.h"

namespace sluice {

// K,V rows that precede a sequence's new tokens, on every rank.
class RankedHistory {
 public:
  virtual ~RankedHistory() = default;
  virtual int rows(LayerId layer) const = 0;
  // As HistoryReader::Read, of the rank's KV heads; ranks read at once.
  virtual absl::Status Read(int rank, LayerId layer, TensorView k, TensorView v, TensorView positions,
                            Ops& ops) const = 0;
};

class RankedSink {
 public:
  virtual ~RankedSink() = default;
  virtual bool wants_new_rows() const = 0;
  // As PrefillSink::OnNewRows, of the rank's KV heads; ranks write at once.
  virtual absl::Status OnNewRows(int rank, LayerId layer, TensorView k, TensorView v, Ops& ops) = 0;
  // A layer is final: the rows of all KV heads, on rank 0's device. Once per layer, in order.
  virtual absl::Status OnKept(LayerId layer, KeptLayer kept) = 0;
};

struct RankedPrefillSequence {
  std::vector<int32_t> ids;
  int first_position = 0;
  const RankedHistory* history = nullptr;  // null: none. Borrowed for the pass
  ResolvedGates gates;
  RankedSink* sink = nullptr;                      // borrowed for the pass
  std::vector<AttentionObserver*> observers = {};  // by rank, called at once; empty: none. Borrowed
};

// Functions as PrefillPass's.
class RankedPrefill {
 public:
  static absl::StatusOr<std::unique_ptr<RankedPrefill>> Create(
      const RankedModel* model, const std::vector<RankedPrefillSequence>& sequences);
  ~RankedPrefill();

  int layers_done() const { return passes_[0]->layers_done(); }
  bool done() const { return passes_[0]->done(); }
  absl::Status RunLayer();
  void Cancel(int sequence);
  absl::StatusOr<std::vector<float>> LastLogits(int sequence) { return passes_[0]->LastLogits(sequence); }
  absl::StatusOr<int32_t> LastBest(int sequence) const { return passes_[0]->LastBest(sequence); }
  absl::Duration gate_time(int sequence) const { return passes_[0]->gate_time(sequence); }

  static size_t ScratchBytes(const RankedModel& model, int tokens, int history_rows);  // of all ranks

 private:
  class Ends;
  explicit RankedPrefill(const RankedModel* model);
  const RankedModel* const model_;
  std::vector<std::unique_ptr<Ends>> ends_;           // by sequence
  std::vector<std::unique_ptr<PrefillPass>> passes_;  // by rank; destroyed before the ends they borrow
  int64_t errors_ = 0;                                // of the group's runs, when this pass began
};

}  // namespace sluice
