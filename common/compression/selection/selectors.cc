#include <cstdlib>

#include "absl/strings/str_cat.h"
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

absl::Status CheckNumbers(const SelectionGate& gate, int head_dim) {
  if (gate.kind == SelectionKind::kDense) return absl::OkStatus();
  const std::array<int32_t, 4> numbers = SelectorOf(gate.kind).parameters(gate);
  const bool bounds = gate.kind == SelectionKind::kHsa || gate.kind == SelectionKind::kQuest;
  const bool sparq = gate.kind == SelectionKind::kSparq || gate.kind == SelectionKind::kSparqWithoutMean;
  const int least_page = gate.kind == SelectionKind::kQuest ? 2 : 1;
  const bool page_ok = bounds ? numbers[0] >= least_page : !sparq || numbers[0] == 1;
  const bool channels_ok = !(bounds || sparq) || (numbers[1] >= 1 && numbers[1] <= head_dim);
  if (page_ok && channels_ok && numbers[2] >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("gates.selection: ", NameOf(gate.kind), " cannot read ",
                                                 gate.tokens, " rows by pages of ", gate.page, " and ",
                                                 gate.channels, " channels of ", head_dim));
}

}  // namespace sluice
