// Role: tokens to a tree. What is not supported is refused by name and line. Pure function.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/text/jinja/ast.h"

namespace sluice::jinja {

absl::StatusOr<Body> Parse(absl::string_view source);

}  // namespace sluice::jinja
