#include "common/compression/method_costs.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "common/compression/propagation/propagation_policy.h"
#include "common/compression/retention/retention_policy.h"
#include "common/compression/selection/selector.h"

namespace sluice {
namespace {

// Of one KV head with `rows` cached rows, in rows of K,V.
struct StepCosts {
  double beside = 0;  // what selection keeps beside the cache
  double read = 0;    // by a step, of heads that choose alike
};
StepCosts StepCostsOf(const SelectionGate& gate, int head_dim, double rows) {
  const double pages = std::ceil(rows / std::max(gate.page, 1)), chosen = std::min<double>(gate.tokens, rows);
  const double channels = gate.channels / (2.0 * head_dim);  // of a key, as a share of K,V
  switch (gate.kind) {
    case SelectionKind::kDense:
      return {0, rows};
    case SelectionKind::kHsa:
      // A page has a minimum and a maximum; a page of one row its key alone. A channel reads one of them.
      return {gate.page > 1 ? pages : pages / 2, pages * channels + chosen};
    case SelectionKind::kQuest:
      return {pages, pages / 2 + chosen};
    case SelectionKind::kSparq:
      // The sum of the values, in f32, is as long as a row of K,V.
      return {rows / 2 + 1, rows * channels + chosen + 1};
    case SelectionKind::kSparqWithoutMean:
      return {rows / 2, rows * channels + chosen};
    case SelectionKind::kExactTopK:
    case SelectionKind::kExactTopKGroup:
      return {0, rows / 2 + chosen};
  }
  std::abort();  // no such kind
}

void SelectionFormulas(SelectionKind kind, MethodFormulas* out) {
  const auto set = [out](const char* stored, const char* read) {
    out->stored = stored;
    out->read = read;
  };
  switch (kind) {
    case SelectionKind::kDense:
      return set("kept", "kept + g");
    case SelectionKind::kHsa:
      return set("kept (1 + 1/p), p = 1: kept 3/2", "kept k1/(2 p D) + k2");
    case SelectionKind::kQuest:
      return set("kept (1 + 1/p)", "kept/(2 p) + k; kept in 2 layers");
    case SelectionKind::kSparq:
      return set("kept 3/2 + 1", "kept r/(2 D) + k + 1");
    case SelectionKind::kSparqWithoutMean:
      return set("kept 3/2", "kept r/(2 D) + k");
    case SelectionKind::kExactTopK:
    case SelectionKind::kExactTopKGroup:
      return set("kept", "kept/2 + k");
  }
  std::abort();  // no such kind
}

std::string KeptFormula(const ResolvedGates& gates) {
  if (gates.selection.kind == SelectionKind::kHsa && gates.retention.kind != RetentionKind::kFull)
    return "(n+m) / c^r - m; c = (n+m)/t, r = 0.2 + 0.06 log2 c";
  switch (gates.retention.kind) {
    case RetentionKind::kFull:
      if (gates.propagation.kind == PropagationKind::kTsp) return "n; behind the tsp layer rate n";
      return gates.propagation.kind == PropagationKind::kRerun ? "t" : "n";
    case RetentionKind::kSnapKv:
    case RetentionKind::kChunkKv:
      return "t";
    case RetentionKind::kStreamingLlm:
      return "4 first + t - 4 last";
    case RetentionKind::kPyramidKv:
      return "t on average, falling with the layer";
    case RetentionKind::kAdaKv:
      return "t on average over a layer's heads";
    case RetentionKind::kH2o:
      return "t/2 + t/2 last";
  }
  std::abort();  // no such kind
}

}  // namespace

MethodCosts CostsOf(const ResolvedGates& gates, const KvShape& shape, int prompt_tokens) {
  const RetentionPolicy& policy = RetentionPolicyOf(gates.retention.kind);
  const PropagationPolicy* propagation = PropagationPolicyOf(gates.propagation.kind);
  const double row_bytes = 2.0 * static_cast<double>(shape.row_bytes());
  constexpr double kPositionBytes = 4;
  double through = 0;  // rows that go through layers
  if (propagation != nullptr && propagation->restarts() && prompt_tokens > gates.propagation.rows)
    through += (gates.propagation.layer + 1.0) * prompt_tokens;
  MethodCosts costs;
  for (int layer = 0; layer < shape.n_layers; ++layer) {
    const int rows = RowsAt(gates.propagation, layer, prompt_tokens);
    through += rows;
    // adakv's bound is a head's, which no more than one reaches.
    const double kept = gates.retention.kind == RetentionKind::kAdaKv
                            ? std::min(gates.retention.budget, rows)
                            : policy.MaxKept(gates.retention, LayerId(layer), rows);
    const StepCosts step = StepCostsOf(gates.selection, shape.head_dim, kept);
    costs.kept_rows += kept / shape.n_layers;
    costs.stored_bytes += shape.n_kv_heads * row_bytes * (kept + step.beside);
    costs.wire_bytes += shape.n_kv_heads * kept * (row_bytes + kPositionBytes);
    const bool whole = layer < SelectorOf(gates.selection.kind).dense_layers();
    costs.read_bytes += shape.n_kv_heads * row_bytes * (whole ? kept : step.read);
  }
  costs.prefill_share = through / (static_cast<double>(shape.n_layers) * prompt_tokens);
  costs.full_bytes = static_cast<double>(shape.token_bytes()) * prompt_tokens;
  return costs;
}

MethodFormulas FormulasOf(const ResolvedGates& gates) {
  MethodFormulas formulas;
  switch (gates.propagation.kind) {
    case PropagationKind::kNone:
      formulas.prefill = "1";
      break;
    case PropagationKind::kTsp:
      formulas.prefill = "(l + (L-l) rate) / L; l layers up to tsp's";
      break;
    case PropagationKind::kRerun:
      formulas.prefill = "l/L + t/n; l layers up to rerun's";
      break;
  }
  formulas.kept = KeptFormula(gates);
  SelectionFormulas(gates.selection.kind, &formulas);
  return formulas;
}

}  // namespace sluice
