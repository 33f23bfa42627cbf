#include "common/engine/prefill_rows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/compression/propagation/propagation_policy.h"
#include "common/compression/retention/retention_policy.h"

namespace sluice {
namespace {

absl::Status CheckPropagation(const PrefillSequence& sequence, int n_layers) {
  const PropagationGate& gate = sequence.gates.propagation;
  if (gate.kind == PropagationKind::kNone) return absl::OkStatus();
  if (gate.layer < 0 || gate.layer >= n_layers - 1)
    return absl::InvalidArgumentError(absl::StrCat("propagation layer ", gate.layer, ": must be in 0 .. ",
                                                   n_layers - 2, ", before the last layer"));
  if (gate.rows < std::max(1, gate.observation.window))
    return absl::InvalidArgumentError(
        absl::StrCat("propagation rows ", gate.rows, ": must hold the window of ", gate.observation.window));
  // Later layers would see other rows than their history holds, or remember less than all.
  for (int layer = 0; layer < n_layers; ++layer) {
    if (HistoryRows(sequence, layer) > 0)
      return absl::InvalidArgumentError("propagation after history: set propagation to none");
  }
  if (sequence.sink->wants_new_rows())
    return absl::InvalidArgumentError("propagation with a history that is kept: set propagation to none");
  return absl::OkStatus();
}

absl::Status CheckRetention(const PrefillSequence& sequence, int n_layers) {
  const RetentionGate& gate = sequence.gates.retention;
  if (gate.kind == RetentionKind::kFull) return absl::OkStatus();
  const RetentionPolicy& policy = RetentionPolicyOf(gate.kind);
  const int window = policy.window(gate);
  if (gate.budget < policy.LeastBudget(gate))
    return absl::InvalidArgumentError(absl::StrCat("retention budget ", gate.budget,
                                                   ": this method's window, sinks or last rows need ",
                                                   policy.LeastBudget(gate)));
  for (int layer = 0; layer < n_layers; ++layer) {
    const int n = RowsAt(sequence.gates.propagation, layer, static_cast<int>(sequence.ids.size()));
    const int rows = HistoryRows(sequence, layer) + n;
    // h2o reads as many queries as there are.
    if (gate.kind != RetentionKind::kH2o && policy.MaxKept(gate, LayerId(layer), rows) < rows && window > n)
      return absl::InvalidArgumentError(
          absl::StrCat("retention window ", window, ": larger than the ", n, " new tokens"));
  }
  return absl::OkStatus();
}

}  // namespace

int HistoryRows(const PrefillSequence& sequence, int layer) {
  return sequence.history == nullptr ? 0 : sequence.history->rows(LayerId(layer));
}

absl::Status CheckSequence(const PrefillSequence& sequence, const ModelShape& shape) {
  SLUICE_CHECK(sequence.sink != nullptr);
  const auto n = static_cast<int64_t>(sequence.ids.size());
  if (n == 0) return absl::InvalidArgumentError("no tokens to prefill");
  for (int32_t id : sequence.ids) {
    if (id < 0 || id >= shape.vocab)
      return absl::InvalidArgumentError(absl::StrCat("token id ", id, ": the vocabulary has ", shape.vocab));
  }
  if (sequence.first_position < 0 || sequence.first_position + n > shape.context)
    return absl::InvalidArgumentError(absl::StrCat("positions ", sequence.first_position, " .. ",
                                                   sequence.first_position + n - 1, ": the context has ",
                                                   shape.context));
  SLUICE_RETURN_IF_ERROR(CheckPropagation(sequence, shape.n_layers));
  return CheckRetention(sequence, shape.n_layers);
}

int PromptEnd(const ResolvedGates& gates, int prompt_tokens) {
  return RowsAt(gates.propagation, 0, prompt_tokens);
}

std::vector<int> KeptCeilings(const KvShape& shape, const ResolvedGates& gates, int prompt_rows) {
  const RetentionPolicy& policy = RetentionPolicyOf(gates.retention.kind);
  std::vector<int> rows;
  for (int layer = 0; layer < shape.n_layers; ++layer) {
    const int kept =
        policy.MaxKept(gates.retention, LayerId(layer), RowsAt(gates.propagation, layer, prompt_rows));
    rows.insert(rows.end(), shape.n_kv_heads, kept);
  }
  return rows;
}

}  // namespace sluice
