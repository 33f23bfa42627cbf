// Role: bytes to a request message, with an error that names the field. Why it exists: gRPC answers a message
// that does not parse (text that is not UTF-8, say) with a bare UNIMPLEMENTED, and protobuf keeps fields it
// does not know silently. Threads: pure functions.
#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {

// InvalidArgument: `bytes` is no such message, or a string in it is not UTF-8. Unimplemented: a field that is
// set is not served; unknown fields count as such.
absl::Status ParseRequest(const std::string& bytes, google::protobuf::Message* request);

}  // namespace sluice
