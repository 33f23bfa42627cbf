// Role: the small HTTP server behind /metrics.
// Why it exists: prometheus-cpp's own exposer throws, and adds metrics about itself.
// Threads: civetweb's two; `render` is called from them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"

struct mg_connection;
struct mg_context;

namespace sluice {

class MetricsHttp {
 public:
  // As MetricsRegistry::Serve. Stops when the object goes, which civetweb
  // notices within 2 s; a scrape that runs is waited for.
  static absl::StatusOr<std::unique_ptr<MetricsHttp>> Start(const std::string& address,
                                                            absl::string_view flag,
                                                            std::function<std::string()> render);
  ~MetricsHttp();
  int port() const { return port_; }

 private:
  explicit MetricsHttp(std::function<std::string()> render) : render_(std::move(render)) {}
  static int OnLog(const mg_connection* connection, const char* message);
  static int OnRequest(mg_connection* connection, void* self);

  const std::function<std::string()> render_;
  mg_context* context_ = nullptr;
  int port_ = 0;
  Mutex mu_;
  std::string first_log_ ABSL_GUARDED_BY(mu_);  // why the start failed
};

}  // namespace sluice
