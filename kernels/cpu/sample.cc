#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/sampling.h"
#include "kernels/views.h"

namespace sluice {

void CpuOps::Sample(TensorView logits, absl::Span<const SampleRule> rules, TensorView out) {
  const int64_t rows = logits.shape[0], n = logits.shape[1];
  SLUICE_CHECK(Is(logits, DType::kF32, {rows, n}) && Is(out, DType::kI32, {rows}));
  for (const SampleRule& rule : rules) SLUICE_CHECK(rule.row >= 0 && rule.row < rows);
  if (rules.empty()) return;
  pool_.Run(static_cast<int>(rules.size()), [&](int i, int) {
    const SampleRule& rule = rules[i];
    out.as<int32_t>()[rule.row] =
        SampleFrom(absl::MakeSpan(Row<float>(logits, rule.row), static_cast<size_t>(n)), rule);
  });
}

}  // namespace sluice
