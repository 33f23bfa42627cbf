// Role: Python's arithmetic on numbers. Pure function.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/text/jinja/value.h"

namespace sluice::jinja {

// op: + - * / // % **; both are numbers. InvalidArgument: division by zero, or an integer beyond 64 bits.
absl::StatusOr<Value> Arithmetic(const std::string& op, const Value& a, const Value& b);

}  // namespace sluice::jinja
