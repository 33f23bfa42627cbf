#include "common/rpc/gates_codec.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

absl::Status ReadShare(const char* field, float value, float* out) {
  if (!(value >= 0 && value <= 1))
    return absl::InvalidArgumentError(absl::StrCat("gates.", field, ": ", value, " is not in [0, 1]"));
  *out = value;
  return absl::OkStatus();
}

void PoolingToProto(const Pooling& pooling, internal::v1::Pooling* out) {
  out->set_kind(pooling.kind);
  out->set_kernel(pooling.kernel);
  out->set_after(pooling.after);
  out->set_before(pooling.before);
}

// Enumerators count from 0 to `last`.
template <class Enum>
absl::Status ReadEnum(const char* field, int value, Enum last, Enum* out) {
  if (value < 0 || value > static_cast<int>(last)) {
    return absl::InvalidArgumentError(absl::StrCat("gates.", field, ": unknown kind ", value));
  }
  *out = static_cast<Enum>(value);
  return absl::OkStatus();
}

absl::Status ReadSize(const char* field, int value, int* out) {
  if (value < 0) return absl::InvalidArgumentError(absl::StrCat("gates.", field, ": ", value, " < 0"));
  *out = value;
  return absl::OkStatus();
}

absl::Status ReadPooling(const char* field, const internal::v1::Pooling& in, Pooling* out) {
  SLUICE_RETURN_IF_ERROR(ReadEnum(field, in.kind(), Pooling::kFading, &out->kind));
  SLUICE_RETURN_IF_ERROR(ReadSize(field, in.kernel(), &out->kernel));
  if (!std::isfinite(in.after()) || !std::isfinite(in.before()) || in.after() < 0 || in.before() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("gates.", field, ": reach must be finite and >= 0"));
  }
  out->after = in.after();
  out->before = in.before();
  return absl::OkStatus();
}

}  // namespace

internal::v1::ResolvedGates GatesToProto(const ResolvedGates& gates) {
  internal::v1::ResolvedGates out;
  out.set_method(gates.method);
  out.set_propagation_kind(static_cast<int>(gates.propagation.kind));
  out.set_propagation_layer(gates.propagation.layer);
  out.set_propagation_rows(gates.propagation.rows);
  const Observation &propagation = gates.propagation.observation, &retention = gates.retention.observation;
  out.set_propagation_window(propagation.window);
  PoolingToProto(propagation.pooling, out.mutable_propagation_pooling());
  out.set_propagation_pool_per_head(propagation.pool_per_head);
  out.set_propagation_round_weights(propagation.round_weights);
  out.set_propagation_raw(propagation.raw);
  out.set_retention_kind(static_cast<int>(gates.retention.kind));
  out.set_retention_budget(gates.retention.budget);
  out.set_retention_window(retention.window);
  out.set_retention_sinks(gates.retention.sinks);
  PoolingToProto(retention.pooling, out.mutable_retention_pooling());
  out.set_retention_pool_per_head(retention.pool_per_head);
  out.set_retention_round_weights(retention.round_weights);
  out.set_retention_recent(gates.retention.recent);
  out.set_retention_chunk(gates.retention.chunk);
  out.set_retention_reuse(gates.retention.reuse);
  out.set_retention_one_set(gates.retention.one_set);
  out.set_retention_top(gates.retention.top);
  out.set_retention_step(gates.retention.step);
  out.set_retention_shorter(gates.retention.shorter);
  out.set_retention_most(gates.retention.most);
  out.set_retention_floor(gates.retention.floor);
  out.set_selection_kind(static_cast<int>(gates.selection.kind));
  out.set_selection_page(gates.selection.page);
  out.set_selection_channels(gates.selection.channels);
  out.set_selection_tokens(gates.selection.tokens);
  out.set_history(static_cast<int>(gates.history));
  out.set_budget_tokens(gates.budget_tokens);
  out.set_off_reason(gates.off_reason);
  for (OffCause cause : gates.off_causes) out.add_off_causes(static_cast<int>(cause));
  return out;
}

absl::StatusOr<ResolvedGates> GatesFromProto(const internal::v1::ResolvedGates& in) {
  ResolvedGates out;
  out.method = in.method();
  SLUICE_RETURN_IF_ERROR(
      ReadEnum("propagation_kind", in.propagation_kind(), PropagationKind::kRerun, &out.propagation.kind));
  SLUICE_RETURN_IF_ERROR(ReadSize("propagation_layer", in.propagation_layer(), &out.propagation.layer));
  SLUICE_RETURN_IF_ERROR(ReadSize("propagation_rows", in.propagation_rows(), &out.propagation.rows));
  Observation &propagation = out.propagation.observation, &retention = out.retention.observation;
  SLUICE_RETURN_IF_ERROR(ReadSize("propagation_window", in.propagation_window(), &propagation.window));
  SLUICE_RETURN_IF_ERROR(ReadPooling("propagation_pooling", in.propagation_pooling(), &propagation.pooling));
  propagation.pool_per_head = in.propagation_pool_per_head();
  propagation.round_weights = in.propagation_round_weights();
  propagation.raw = in.propagation_raw();
  SLUICE_RETURN_IF_ERROR(
      ReadEnum("retention_kind", in.retention_kind(), RetentionKind::kH2o, &out.retention.kind));
  SLUICE_RETURN_IF_ERROR(ReadSize("retention_budget", in.retention_budget(), &out.retention.budget));
  SLUICE_RETURN_IF_ERROR(ReadSize("retention_window", in.retention_window(), &retention.window));
  SLUICE_RETURN_IF_ERROR(ReadSize("retention_sinks", in.retention_sinks(), &out.retention.sinks));
  SLUICE_RETURN_IF_ERROR(ReadPooling("retention_pooling", in.retention_pooling(), &retention.pooling));
  retention.pool_per_head = in.retention_pool_per_head();
  retention.round_weights = in.retention_round_weights();
  SLUICE_RETURN_IF_ERROR(ReadSize("retention_recent", in.retention_recent(), &out.retention.recent));
  SLUICE_RETURN_IF_ERROR(ReadSize("retention_chunk", in.retention_chunk(), &out.retention.chunk));
  SLUICE_RETURN_IF_ERROR(ReadSize("retention_reuse", in.retention_reuse(), &out.retention.reuse));
  out.retention.one_set = in.retention_one_set();
  SLUICE_RETURN_IF_ERROR(ReadSize("retention_top", in.retention_top(), &out.retention.top));
  SLUICE_RETURN_IF_ERROR(ReadSize("retention_step", in.retention_step(), &out.retention.step));
  SLUICE_RETURN_IF_ERROR(ReadSize("retention_shorter", in.retention_shorter(), &out.retention.shorter));
  SLUICE_RETURN_IF_ERROR(ReadSize("retention_most", in.retention_most(), &out.retention.most));
  SLUICE_RETURN_IF_ERROR(ReadShare("retention_floor", in.retention_floor(), &out.retention.floor));
  SLUICE_RETURN_IF_ERROR(
      ReadEnum("selection_kind", in.selection_kind(), SelectionKind::kExactTopKGroup, &out.selection.kind));
  SLUICE_RETURN_IF_ERROR(ReadSize("selection_page", in.selection_page(), &out.selection.page));
  SLUICE_RETURN_IF_ERROR(ReadSize("selection_channels", in.selection_channels(), &out.selection.channels));
  SLUICE_RETURN_IF_ERROR(ReadSize("selection_tokens", in.selection_tokens(), &out.selection.tokens));
  SLUICE_RETURN_IF_ERROR(ReadEnum("history", in.history(), HistoryKind::kKeep, &out.history));
  SLUICE_RETURN_IF_ERROR(ReadSize("budget_tokens", in.budget_tokens(), &out.budget_tokens));
  out.off_reason = in.off_reason();
  for (int value : in.off_causes()) {
    SLUICE_RETURN_IF_ERROR(
        ReadEnum("off_causes", value, OffCause::kDenseIsFaster, &out.off_causes.emplace_back()));
  }
  return out;
}

}  // namespace sluice
