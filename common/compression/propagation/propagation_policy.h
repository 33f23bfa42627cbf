// Role: the propagation gate: which token rows enter the layers after gate.layer, or all layers.
// Threads: stateless, shared by all loops.
#pragma once

#include "absl/status/status.h"
#include "common/compression/retention/retention_policy.h"

namespace sluice {

class PropagationPolicy {
 public:
  virtual ~PropagationPolicy() = default;
  virtual int window(const PropagationGate& gate) const = 0;
  // False: the rows go on into the next layer at their positions. True: they enter layer 0 as a prompt of
  // their own, at positions 0, 1 and so on, and what the layers up to gate.layer made of the whole prompt is
  // dropped.
  virtual bool restarts() const = 0;
  // Asked at gate.layer only, when view.n_tokens > gate.rows. *rows: [gate.rows] i32 ascending, from the
  // workspace.
  virtual absl::Status Rows(const LayerView& view, const PropagationGate& gate, Ops& ops,
                            Workspace& workspace, TensorView* rows) const = 0;
};

// Null for kNone.
const PropagationPolicy* PropagationPolicyOf(PropagationKind kind);

// Rows of a prompt of `rows` that enter `layer`, where all that happens before a restart does not count.
int RowsAt(const PropagationGate& gate, int layer, int rows);

}  // namespace sluice
