// Role: the public CompressionSpec and CompressionReport in native form, and resolved gates as text for the
// session store. Threads: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/compression/compression_spec.h"
#include "sluice/internal/v1/worker.pb.h"
#include "sluice/v1/compression.pb.h"

namespace sluice {

// InvalidArgument names the field.
absl::StatusOr<CompressionSpec> SpecFromProto(const v1::CompressionSpec& proto);

// The part of the report that is known before anything runs.
v1::CompressionReport ReportOf(const ResolvedGates& gates, int prompt_tokens);

std::string GatesToJson(const ResolvedGates& gates);
absl::StatusOr<ResolvedGates> GatesFromJson(const std::string& json);

}  // namespace sluice
