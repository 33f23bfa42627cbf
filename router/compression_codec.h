// Role: the public CompressionSpec and CompressionReport in native form, and what a session remembers of
// compression as text for the session store. Threads: pure functions.
#pragma once

#include <optional>
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

struct SessionCompression {
  std::string preset;                  // of its first turn; empty before it
  std::optional<ResolvedGates> gates;  // of its last turn that evicted history
  friend bool operator==(const SessionCompression&, const SessionCompression&) = default;
};
std::string SessionCompressionToJson(const SessionCompression& compression);
// An empty text is a session without turns.
absl::StatusOr<SessionCompression> SessionCompressionFromJson(const std::string& json);

}  // namespace sluice
