// Role: template source to tokens, with Jinja's white-space rules as Transformers sets them (trim_blocks and
// lstrip_blocks on, one newline at the end dropped). Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::jinja {

struct Token {
  enum Type {
    kText,
    kOutputBegin,
    kOutputEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kInt,
    kFloat,
    kOperator,
    kEnd
  };
  Type type;
  std::string text;  // strings unescaped
  int line;
};

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

// InvalidArgument / Unimplemented with "chat template line N: ".
absl::Status ErrorAt(int line, absl::string_view message);
absl::Status UnsupportedAt(int line, absl::string_view construct);

}  // namespace sluice::jinja
