// Role: the public sampling and stopping fields, and what is told of tokens, with their defaults and bounds
// (api.md §1). Threads: pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "router/served_model.h"
#include "sluice/v1/inference.pb.h"

namespace sluice {

// Everything but max_tokens, which needs the prompt. A request without a seed gets a random one. Errors name
// the field.
absl::StatusOr<internal::v1::SamplingParams> ResolveSampling(const ServedModel& model,
                                                             const v1::Sampling& sampling,
                                                             const v1::Stopping& stopping,
                                                             const v1::Output& output);

}  // namespace sluice
