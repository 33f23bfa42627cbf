// Role: walks a parsed template and writes its text, within a budget of steps and an output bound.
// Threads: one rendering, one owner. The body outlives it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/text/jinja/ast.h"

namespace sluice::jinja {

struct RenderLimits {
  int64_t max_steps = 4'000'000;
  size_t max_output_bytes = size_t{64} << 20;
};

// globals: the variables the template sees. ResourceExhausted: over a limit; InvalidArgument: the template
// failed or raised, with the line.
absl::StatusOr<MarkedText> Render(const Body& body, const Dict& globals, absl::Time now,
                                  const RenderLimits& limits);

}  // namespace sluice::jinja
