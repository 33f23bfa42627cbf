#include <cstdlib>

#include "common/compression/propagation/propagation_policy.h"

namespace sluice {

// Every propagation method, each in the file of its name.
const PropagationPolicy& TspPropagation();

const PropagationPolicy* PropagationPolicyOf(PropagationKind kind) {
  switch (kind) {
    case PropagationKind::kNone:
      return nullptr;
    case PropagationKind::kTsp:
      return &TspPropagation();
  }
  std::abort();  // no such kind
}

}  // namespace sluice
