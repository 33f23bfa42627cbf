// Role: what a request says about its tokens, and what is told of each, between native form and protobuf.
// Threads: pure functions.
#pragma once

#include "common/engine/logprobs.h"
#include "common/engine/sampler.h"
#include "sluice/internal/v1/worker.pb.h"

namespace sluice {

internal::v1::SamplingParams SamplingToProto(const SamplingParams& params);
SamplingParams SamplingFromProto(const internal::v1::SamplingParams& params);

internal::v1::TokenLogprobs LogprobsToProto(const TokenLogprobs& logprobs);

}  // namespace sluice
