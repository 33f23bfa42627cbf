#include "common/metrics/metrics_http.h"

#include <civetweb.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr char kContentType[] = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsHttp>> MetricsHttp::Start(const std::string& address,
                                                                absl::string_view flag,
                                                                std::function<std::string()> render) {
  SLUICE_RETURN_IF_ERROR(CheckHostPort(flag, address));
  std::unique_ptr<MetricsHttp> http(new MetricsHttp(std::move(render)));
  mg_callbacks callbacks;
  memset(&callbacks, 0, sizeof(callbacks));
  callbacks.log_message = &OnLog;
  // A connection that says nothing holds a thread for a second.
  const char* options[] = {"listening_ports",    address.c_str(), "num_threads", "8",
                           "request_timeout_ms", "1000",          nullptr};
  http->context_ = mg_start(&callbacks, http.get(), options);
  if (http->context_ == nullptr) {
    MutexLock lock(&http->mu_);
    return absl::UnavailableError(absl::StrCat("metrics: cannot listen on ", address, " (", http->first_log_,
                                               "); choose another address with ", flag));
  }
  mg_set_request_handler(http->context_, "/metrics$", &OnRequest, http.get());
  mg_server_port bound;
  memset(&bound, 0, sizeof(bound));
  SLUICE_CHECK(mg_get_server_ports(http->context_, 1, &bound) == 1);
  http->port_ = bound.port;
  return http;
}

MetricsHttp::~MetricsHttp() {
  if (context_ != nullptr) mg_stop(context_);
}

int MetricsHttp::OnLog(const mg_connection* connection, const char* message) {
  auto* http = static_cast<MetricsHttp*>(mg_get_user_data(mg_get_context(connection)));
  if (http != nullptr) {
    MutexLock lock(&http->mu_);
    if (http->first_log_.empty()) http->first_log_ = message;
  }
  return 1;  // nothing for civetweb to print
}

int MetricsHttp::OnRequest(mg_connection* connection, void* self) {
  const char* method = mg_get_request_info(connection)->request_method;
  if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
    mg_send_http_error(connection, 405, "%s", "only GET");
    return 405;
  }
  const std::string text = static_cast<MetricsHttp*>(self)->render_();
  mg_send_http_ok(connection, kContentType, static_cast<long long>(text.size()));
  if (strcmp(method, "GET") == 0) mg_write(connection, text.data(), text.size());
  return 200;
}

}  // namespace sluice
