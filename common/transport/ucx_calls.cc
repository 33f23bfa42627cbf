#include "common/transport/ucx_calls.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace sluice {

absl::Status UcxStatus(absl::string_view call, ucs_status_t status) {
  if (status == UCS_OK) return absl::OkStatus();
  std::string text = absl::StrCat(call, ": ", ucs_status_string(status));
  switch (status) {
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT:
      return absl::ResourceExhaustedError(text);
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
    case UCS_ERR_NO_DEVICE:
      return absl::InvalidArgumentError(text);
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_CANCELED:
    case UCS_ERR_REJECTED:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_TIMED_OUT:
      return absl::UnavailableError(text);
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED:
      return absl::UnimplementedError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::Status CheckUcxTls(const std::string& tls) {
  for (absl::string_view name : absl::StrSplit(tls, ',')) {
    if (name.empty()) return absl::InvalidArgumentError(absl::StrCat("ucx tls: an empty name in ", tls));
    for (absl::string_view refused : {"all", "sm", "shm", "mm", "cma", "knem", "xpmem"}) {
      if (name == refused || absl::StartsWith(name, "^"))
        return absl::InvalidArgumentError(
            absl::StrCat("ucx tls: ", name, ": name the transports one by one, without cma, knem and xpmem"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ucp_context_h> OpenUcxContext(const std::string& tls) {
  ucp_config_t* config = nullptr;
  SLUICE_RETURN_IF_ERROR(UcxStatus("ucp_config_read", ucp_config_read(nullptr, nullptr, &config)));
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_RMA;
  ucp_context_h context = nullptr;
  // The cache of memory types takes device memory for host memory when it missed the allocation.
  ucs_status_t status = ucp_config_modify(config, "MEMTYPE_CACHE", "n");
  if (status == UCS_OK) status = ucp_config_modify(config, "TLS", tls.c_str());
  // A transport that this UCX lacks is no accident here: it is asked for, and looked for afterwards.
  if (status == UCS_OK && tls == kUcxDeviceTls)
    status = ucp_config_modify(config, "WARN_INVALID_CONFIG", "n");
  if (status == UCS_OK) status = ucp_init(&params, config, &context);
  ucp_config_release(config);
  SLUICE_RETURN_IF_ERROR(UcxStatus(absl::StrCat("ucp_init with tls ", tls), status));
  return context;
}

bool ReachesDeviceMemory(ucp_context_h context) {
  ucp_context_attr_t attributes = {};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  return ucp_context_query(context, &attributes) == UCS_OK &&
         (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
}

}  // namespace sluice
