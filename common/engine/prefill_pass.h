// Role: the layer-major prefill of one long prompt or of several short ones: every sequence goes through
// layer l before any enters l + 1. After a layer's attention, each sequence's retention gate picks the rows
// that leave; at the propagation layer, its propagation gate picks the rows that go on. Rows whose results
// nobody reads are not computed. Sequences whose propagation restarts go first, up to their layers, and
// nothing of that leaves; then their chosen tokens and everybody else go through all layers. Why resumable:
// between two layers the owner may send what is finished, cancel a sequence, or let another pass run.
// Threads: one loop (the prefill loop).
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/compression/resolved_gates.h"
#include "common/compression/retention/retention_policy.h"
#include "common/kvcache/kept_layer.h"
#include "common/model/model.h"

namespace sluice {

// K,V rows that precede a sequence's new tokens.
class HistoryReader {
 public:
  virtual ~HistoryReader() = default;
  // Layers may differ: an evicted history that went through propagation holds fewer rows in later layers.
  virtual int rows(LayerId layer) const = 0;
  // Copies all rows of a layer. k, v [n_kv_heads, rows, head_dim] KV dtype; positions [n_kv_heads, rows] i32.
  virtual absl::Status Read(LayerId layer, TensorView k, TensorView v, TensorView positions,
                            Ops& ops) const = 0;
};

// Receives what a pass produces, from the pass's thread.
class PrefillSink {
 public:
  virtual ~PrefillSink() = default;
  // True: OnNewRows is called. Only sequences whose history is kept.
  virtual bool wants_new_rows() const = 0;
  // The new tokens' full K,V of a layer, [n_kv_heads, n, head_dim], before any gate; valid during the call.
  virtual absl::Status OnNewRows(LayerId layer, TensorView k, TensorView v, Ops& ops) = 0;
  // A layer is final: its rows lie in memory. Called once per layer, in order.
  virtual absl::Status OnKept(LayerId layer, KeptLayer kept) = 0;
};

// Sees what a sequence's layers attend with, from the pass's thread. For measurement: nothing depends on it.
class AttentionObserver {
 public:
  virtual ~AttentionObserver() = default;
  virtual int queries() const = 0;  // at the sequence's end, that it reads; at least one
  // Of a layer that leaves, before its gates choose: q_window and window_lse hold queries() rows, more where
  // a gate reads more, fewer where there are fewer. Valid during the call.
  virtual absl::Status OnAttention(const LayerView& view, Ops& ops, Workspace& workspace) = 0;
};

struct PrefillSequence {
  std::vector<int32_t> ids;                // new tokens, at least one
  int first_position = 0;                  // RoPE position of ids[0]
  const HistoryReader* history = nullptr;  // null: none. Borrowed for the pass
  ResolvedGates gates;
  PrefillSink* sink = nullptr;            // borrowed for the pass
  AttentionObserver* observer = nullptr;  // null: none. Borrowed for the pass
};

class PrefillPass {
 public:
  // Sequences share matrix products; the caller decides what to batch. InvalidArgument says which sequence
  // and what is wrong with it. The model outlives the pass.
  static absl::StatusOr<std::unique_ptr<PrefillPass>> Create(const Model* model,
                                                             std::vector<PrefillSequence> sequences);
  ~PrefillPass();

  int layers_done() const;  // of those that leave
  bool done() const;        // all layers, or no sequence left
  // An error ends the pass for all its sequences. Errors of histories and sinks come out here too: a sink
  // that must not harm its neighbours keeps its error to itself, and the owner cancels the sequence.
  absl::Status RunLayer();
  // The sequence takes no part in later layers; its sink is not called again.
  void Cancel(int sequence);

  // After done(): the logits of the sequence's last token, [vocab], and the id of the largest one as
  // Ops::ArgMax has it, which is there without them. InternalError: there is none.
  absl::StatusOr<std::vector<float>> LastLogits(int sequence);
  absl::StatusOr<int32_t> LastBest(int sequence) const;

  // What the gates took of this thread's time to choose the sequence's rows and gather them. Of a GPU, whose
  // queue runs behind, it says nothing.
  absl::Duration gate_time(int sequence) const;

  // Upper bound of the bytes that a pass over `tokens` new tokens after `history_rows` rows needs beyond the
  // weights and the kept layers: one layer's K,V, hidden states and scratch.
  static size_t ScratchBytes(const Model& model, int tokens, int history_rows);

 private:
  struct Impl;
  explicit PrefillPass(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Position of the token after a prompt: its length, or that of what `rerun` leaves of it.
int PromptEnd(const ResolvedGates& gates, int prompt_tokens);

// Rows that OnKept will deliver at most, [n_layers * n_kv_heads]: what prefill offers and decode reserves.
std::vector<int> KeptCeilings(const KvShape& shape, const ResolvedGates& gates, int prompt_rows);

}  // namespace sluice
