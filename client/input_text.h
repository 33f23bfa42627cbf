// Role: text that people hand in, checked before it travels. Threads: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// InvalidArgument names `source` and the byte that is not UTF-8.
absl::Status CheckText(absl::string_view source, absl::string_view text);

// The whole file; errors name `source` ("--file", "/file") and what is wrong. An empty file is an error.
absl::StatusOr<std::string> ReadTextFile(absl::string_view source, const std::string& path);

// Until the end of `fd`.
absl::StatusOr<std::string> ReadTextFd(absl::string_view source, int fd);

}  // namespace sluice
