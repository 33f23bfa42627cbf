#include <cstdlib>

#include "common/compression/selection/selector.h"

namespace sluice {

// Every selection method, each in the file of its name.
const Selector& DenseSelection();
const Selector& HsaSelection();
const Selector& QuestSelection();
const Selector& SparqSelection();
const Selector& SparqWithoutMeanSelection();
const Selector& ExactTopKSelection();
const Selector& ExactTopKGroupSelection();

const Selector& SelectorOf(SelectionKind kind) {
  switch (kind) {
    case SelectionKind::kDense:
      return DenseSelection();
    case SelectionKind::kHsa:
      return HsaSelection();
    case SelectionKind::kQuest:
      return QuestSelection();
    case SelectionKind::kSparq:
      return SparqSelection();
    case SelectionKind::kSparqWithoutMean:
      return SparqWithoutMeanSelection();
    case SelectionKind::kExactTopK:
      return ExactTopKSelection();
    case SelectionKind::kExactTopKGroup:
      return ExactTopKGroupSelection();
  }
  std::abort();  // no such kind
}

}  // namespace sluice
