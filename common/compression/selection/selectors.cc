#include <cstdlib>

#include "common/compression/selection/selector.h"

namespace sluice {

// Every selection method, each in the file of its name.
const Selector& DenseSelection();
const Selector& HsaSelection();

const Selector& SelectorOf(SelectionKind kind) {
  switch (kind) {
    case SelectionKind::kDense:
      return DenseSelection();
    case SelectionKind::kHsa:
      return HsaSelection();
  }
  std::abort();  // no such kind
}

}  // namespace sluice
