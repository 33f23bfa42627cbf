#include <algorithm>
#include <cstdlib>

#include "common/compression/propagation/propagation_policy.h"

namespace sluice {

// Every propagation method, each in the file of its name.
const PropagationPolicy& TspPropagation();
const PropagationPolicy& RerunPropagation();

const PropagationPolicy* PropagationPolicyOf(PropagationKind kind) {
  switch (kind) {
    case PropagationKind::kNone:
      return nullptr;
    case PropagationKind::kTsp:
      return &TspPropagation();
    case PropagationKind::kRerun:
      return &RerunPropagation();
  }
  std::abort();  // no such kind
}

int RowsAt(const PropagationGate& gate, int layer, int rows) {
  const PropagationPolicy* policy = PropagationPolicyOf(gate.kind);
  if (policy == nullptr || (layer <= gate.layer && !policy->restarts())) return rows;
  return std::min(rows, gate.rows);
}

}  // namespace sluice
