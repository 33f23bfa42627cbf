#include "router/compression_codec.h"

#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/gates_codec.h"
#include "common/rpc/status_codec.h"

namespace sluice {
namespace {

// A public enumerator is the native one plus 1; 0 is "unset".
template <class Native, class Proto>
absl::Status ReadKind(const char* field, Proto proto, Native last, std::optional<Native>* out) {
  int value = static_cast<int>(proto);
  if (value == 0) return absl::OkStatus();
  if (value < 0 || value > static_cast<int>(last) + 1) {
    return BadField(absl::StrCat("compression.", field), absl::StrCat("unknown kind ", value));
  }
  *out = static_cast<Native>(value - 1);
  return absl::OkStatus();
}

absl::Status ReadPooling(const v1::Pooling& proto, std::optional<Pooling>* out) {
  Pooling pooling;
  int kind = proto.kind();
  if (kind < v1::Pooling::MAX || kind > v1::Pooling::FADING) {
    return BadField("compression.pooling.kind", "set MAX, AVG or FADING");
  }
  pooling.kind = static_cast<Pooling::Kind>(kind - 1);
  bool fading = pooling.kind == Pooling::kFading;
  if (fading && proto.has_kernel())
    return BadField("compression.pooling.kernel", "FADING has after and before");
  if (!fading && (proto.has_after() || proto.has_before())) {
    return BadField("compression.pooling.after", "only FADING has a reach; MAX and AVG have a kernel");
  }
  if (proto.has_kernel()) pooling.kernel = proto.kernel();
  if (proto.has_after()) pooling.after = proto.after();
  if (proto.has_before()) pooling.before = proto.before();
  *out = pooling;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CompressionSpec> SpecFromProto(const v1::CompressionSpec& proto) {
  CompressionSpec spec;
  if (proto.has_preset()) {
    if (proto.preset().empty())
      return BadField("compression.preset", "empty; leave it unset for the default");
    spec.preset = proto.preset();
  }
  SLUICE_RETURN_IF_ERROR(
      ReadKind("propagation.kind", proto.propagation().kind(), PropagationKind::kRerun, &spec.propagation));
  if (proto.propagation().has_layer()) spec.tsp_layer = proto.propagation().layer();
  if (proto.propagation().has_rate()) spec.tsp_rate = proto.propagation().rate();
  if (proto.propagation().has_raw_scores()) spec.raw_scores = proto.propagation().raw_scores();
  SLUICE_RETURN_IF_ERROR(
      ReadKind("retention.kind", proto.retention().kind(), RetentionKind::kH2o, &spec.retention));
  if (proto.retention().has_chunk()) spec.chunk = proto.retention().chunk();
  if (proto.retention().has_reuse()) spec.reuse = proto.retention().reuse();
  if (proto.retention().has_head_floor()) spec.head_floor = proto.retention().head_floor();
  if (proto.retention().has_one_set()) spec.one_set = proto.retention().one_set();
  SLUICE_RETURN_IF_ERROR(
      ReadKind("selection.kind", proto.selection().kind(), SelectionKind::kExactTopKGroup, &spec.selection));
  if (proto.selection().has_page()) spec.selection_page = proto.selection().page();
  if (proto.selection().has_channels()) spec.selection_channels = proto.selection().channels();
  if (proto.selection().has_dense_if_faster()) spec.dense_if_faster = proto.selection().dense_if_faster();
  SLUICE_RETURN_IF_ERROR(ReadKind("history", proto.history(), HistoryKind::kKeep, &spec.history));
  if (proto.has_window()) spec.window = proto.window();
  if (proto.has_pooling()) {
    SLUICE_RETURN_IF_ERROR(ReadPooling(proto.pooling(), &spec.pooling));
    if (proto.pooling().has_per_query_head()) spec.pool_per_head = proto.pooling().per_query_head();
  }
  if (proto.has_round_weights()) spec.round_weights = proto.round_weights();
  if (proto.has_budget_tokens()) spec.budget_tokens = proto.budget_tokens();
  if (proto.has_keep_ratio()) spec.keep_ratio = proto.keep_ratio();
  if (proto.has_min_prompt_tokens()) spec.min_prompt_tokens = proto.min_prompt_tokens();
  if (proto.has_split_max_tokens()) spec.split_max_tokens = proto.split_max_tokens();
  switch (proto.coverage()) {
    case v1::COVERAGE_UNSPECIFIED:
      break;
    case v1::COVERAGE_FULL:
      spec.subset_coverage = false;
      break;
    case v1::COVERAGE_SUBSET:
      spec.subset_coverage = true;
      break;
    default:
      return BadField("compression.coverage", "set FULL or SUBSET");
  }
  switch (proto.on_unsupported()) {
    case v1::ON_UNSUPPORTED_UNSPECIFIED:
      break;
    case v1::ON_UNSUPPORTED_ERROR:
      spec.fallback_full = false;
      break;
    case v1::ON_UNSUPPORTED_FALLBACK_FULL:
      spec.fallback_full = true;
      break;
    default:
      return BadField("compression.on_unsupported", "set ERROR or FALLBACK_FULL");
  }
  return spec;
}

v1::CompressionReport ReportOf(const ResolvedGates& gates, int prompt_tokens) {
  v1::CompressionReport report;
  report.set_method(gates.method);
  report.set_budget_tokens(gates.budget_tokens);
  report.set_off_reason(gates.off_reason);
  report.set_prompt_tokens(prompt_tokens);
  report.set_read_tokens(gates.selection.tokens);
  report.set_propagation(static_cast<v1::PropagationKind>(static_cast<int>(gates.propagation.kind) + 1));
  report.set_retention(static_cast<v1::RetentionKind>(static_cast<int>(gates.retention.kind) + 1));
  report.set_selection(static_cast<v1::SelectionKind>(static_cast<int>(gates.selection.kind) + 1));
  report.set_history(static_cast<v1::HistoryKind>(static_cast<int>(gates.history) + 1));
  report.set_tsp_layer(gates.propagation.layer);
  report.set_tsp_rows(gates.propagation.rows);
  report.set_retention_budget(gates.retention.budget);
  report.set_window(gates.retention.observation.window);
  report.set_hsa_page(gates.selection.page);
  report.set_hsa_channels(gates.selection.channels);
  return report;
}

std::string SessionCompressionToJson(const SessionCompression& compression) {
  internal::v1::SessionCompression proto;
  proto.set_preset(compression.preset);
  if (compression.gates.has_value()) *proto.mutable_gates() = GatesToProto(*compression.gates);
  std::string json;
  // Every field is a number or text: this cannot fail.
  (void)google::protobuf::util::MessageToJsonString(proto, &json);
  return json;
}

absl::StatusOr<SessionCompression> SessionCompressionFromJson(const std::string& json) {
  SessionCompression out;
  if (json.empty()) return out;
  internal::v1::SessionCompression proto;
  if (!google::protobuf::util::JsonStringToMessage(json, &proto).ok()) {
    // Earlier databases hold the gates alone, of sessions that evict.
    proto.Clear();
    if (!google::protobuf::util::JsonStringToMessage(json, proto.mutable_gates()).ok()) {
      return absl::DataLossError("the session's stored compression does not parse");
    }
    for (const Preset& preset : Presets()) {
      if (proto.gates().method() == preset.name) proto.set_preset(preset.name);
    }
  }
  out.preset = proto.preset();
  if (proto.has_gates()) {
    SLUICE_ASSIGN_OR_RETURN(out.gates, GatesFromProto(proto.gates()));
  }
  return out;
}

}  // namespace sluice
