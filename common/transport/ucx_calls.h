// Role: UCX's calls in the words of this tree: statuses, requests, contexts. Threads: as UCX's own; a request
// belongs to its worker's.
#pragma once

#include <ucp/api/ucp.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

inline constexpr char kUcxHostTls[] = "tcp";
inline constexpr char kUcxDeviceTls[] = "cuda_ipc,cuda_copy,tcp";  // tcp: UCX's own messages

// `call` begins the message.
absl::Status UcxStatus(absl::string_view call, ucs_status_t status);

// What a non-blocking call returned: done, failed, or a request to ask later.
class UcxRequest {
 public:
  UcxRequest() = default;
  explicit UcxRequest(ucs_status_ptr_t result) : result_(result) {}
  UcxRequest(UcxRequest&& other) noexcept : result_(std::exchange(other.result_, nullptr)) {}
  UcxRequest& operator=(UcxRequest&& other) noexcept {
    std::swap(result_, other.result_);
    return *this;
  }
  ~UcxRequest() {
    if (UCS_PTR_IS_PTR(result_)) ucp_request_free(result_);
  }
  ucs_status_t status() const {
    if (result_ == nullptr) return UCS_OK;
    return UCS_PTR_IS_ERR(result_) ? UCS_PTR_STATUS(result_) : ucp_request_check_status(result_);
  }

 private:
  ucs_status_ptr_t result_ = nullptr;
};

// InvalidArgument names a transport that is refused: see UcxOptions::tls.
absl::Status CheckUcxTls(const std::string& tls);

// The caller cleans it up.
absl::StatusOr<ucp_context_h> OpenUcxContext(const std::string& tls);

bool ReachesDeviceMemory(ucp_context_h context);

}  // namespace sluice
