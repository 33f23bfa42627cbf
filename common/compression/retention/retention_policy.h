// Role: the retention gate: which K,V rows of a layer leave for decode, per KV head.
// Why: one file per method, one line in retention_policies.cc.
// Threads: stateless, shared by all loops.
#pragma once

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "common/base/strong_id.h"
#include "common/compression/resolved_gates.h"
#include "kernels/backend.h"
#include "kernels/workspace.h"

namespace sluice {

struct LayerPlan {
  TensorView rows;  // [n_kv_heads, capacity] i32 row numbers of the view, ascending; from the workspace;
                    // stride 0 over heads when shared
  std::vector<int> kept;  // [n_kv_heads]
};

// What a gate may see of one layer of one sequence; valid during the call.
struct LayerView {
  LayerId layer;
  int n_tokens = 0;        // rows here; fewer than the prompt after propagation
  TensorView positions;    // [n_kv_heads, n_tokens] i32 original positions; stride 0 over heads when shared
  TensorView q_window;     // [window, n_q_heads, head_dim] f32 after RoPE: the last rows; each gate reads its
                           // own last ones
  TensorView k;            // [n_kv_heads, n_tokens, head_dim] KV dtype after RoPE
  TensorView window_lse;   // [n_q_heads, window] f32 from the attention op
  int sliding_window = 0;  // 0: none
  const LayerPlan* leader = nullptr;  // of the layer whose rows this one may keep as well; null: none
};

class RetentionPolicy {
 public:
  virtual ~RetentionPolicy() = default;
  // Query rows at the end of the prompt whose log-sum-exp the policy reads.
  virtual int window(const RetentionGate& gate) const { return gate.observation.window; }
  // The smallest budget that the gate's other numbers allow.
  virtual int LeastBudget(const RetentionGate& gate) const { return std::max(1, gate.observation.window); }
  // Upper bound of the rows kept per head in a layer of n_tokens rows: what decode reserves.
  virtual int MaxKept(const RetentionGate& gate, LayerId, int n_tokens) const {
    return std::min(gate.budget, n_tokens);
  }
  // InvalidArgument when the gate's numbers contradict each other.
  absl::Status Plan(const LayerView& view, const RetentionGate& gate, Ops& ops, Workspace& workspace,
                    LayerPlan* plan) const;

 private:
  virtual absl::Status Choose(const LayerView& view, const RetentionGate& gate, Ops& ops,
                              Workspace& workspace, LayerPlan* plan) const = 0;
};

const RetentionPolicy& RetentionPolicyOf(RetentionKind kind);

}  // namespace sluice
