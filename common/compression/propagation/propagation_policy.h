// Role: the propagation gate: which token rows enter the layers after gate.layer.
// Threads: stateless, shared by all loops.
#pragma once

#include "absl/status/status.h"
#include "common/compression/retention/retention_policy.h"

namespace sluice {

class PropagationPolicy {
 public:
  virtual ~PropagationPolicy() = default;
  virtual int window(const PropagationGate& gate) const = 0;
  // Asked at gate.layer only, when view.n_tokens > gate.rows. *rows: [gate.rows] i32 ascending, from the
  // workspace.
  virtual absl::Status Rows(const LayerView& view, const PropagationGate& gate, Ops& ops,
                            Workspace& workspace, TensorView* rows) const = 0;
};

// Null for kNone.
const PropagationPolicy* PropagationPolicyOf(PropagationKind kind);

}  // namespace sluice
