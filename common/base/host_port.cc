#include "common/base/host_port.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sluice {

absl::Status CheckHostPort(absl::string_view flag, absl::string_view address) {
  const size_t colon = address.rfind(':');
  int number = 0;
  if (colon != absl::string_view::npos && colon > 0) {
    const absl::string_view port = address.substr(colon + 1);
    if (port.find_first_not_of("0123456789") == absl::string_view::npos && absl::SimpleAtoi(port, &number) &&
        number <= 65535 && address.find_first_of(", +\n") == absl::string_view::npos) {
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": want host:port with a port from 0 to 65535, got '", address, "'"));
}

}  // namespace sluice
