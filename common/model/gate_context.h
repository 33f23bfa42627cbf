// Role: what the gates need to know of a model. Threads: pure function.
#pragma once

#include "common/compression/compression_spec.h"
#include "common/model/model_shape.h"

namespace sluice {

// A single request of so many tokens. A turn of a session sets turn_tokens itself.
GateContext GateContextOf(const ModelShape& shape, int prompt_tokens, int max_tokens);

}  // namespace sluice
