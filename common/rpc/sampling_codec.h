// Role: SamplingParams between its native form and protobuf. Threads: pure functions.
#pragma once

#include "common/engine/sampler.h"
#include "sluice/internal/v1/worker.pb.h"

namespace sluice {

internal::v1::SamplingParams SamplingToProto(const SamplingParams& params);
SamplingParams SamplingFromProto(const internal::v1::SamplingParams& params);

}  // namespace sluice
