// Role: the HTTP listener: accepts connections, bounds them, ends them. Threads: a few of its own ("http");
// none is held by a connection that waits.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/tls.h"
#include "router/http/http_exchange.h"

namespace sluice {

struct HttpOptions {
  std::string listen;        // host:port, port 0 takes a free one; empty: no HTTP
  std::shared_ptr<Tls> tls;  // null: none
  int threads = 2;
  int max_connections = 16384;
  size_t max_body_bytes = 16 << 20;
  size_t max_buffered_bytes = 256 << 20;  // bodies that came and are not read yet, of all connections
  absl::Duration header_timeout = absl::Seconds(10);
  absl::Duration body_timeout = absl::Seconds(60);
  absl::Duration idle_timeout = absl::Seconds(75);   // between requests of a connection
  absl::Duration write_timeout = absl::Seconds(30);  // a client that takes nothing of a complete answer
};

class HttpServer {
 public:
  // handler outlives the server.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpOptions& options, HttpHandler* handler);
  ~HttpServer();

  int port() const;
  int connections() const;
  // Answers go on, each the last of its connection; or connections live on again.
  void SetDraining(bool on);
  // No new connections, none that idle; answers that are under way get until `deadline` to leave once
  // complete. All requests must end by themselves. Idempotent.
  void Stop(absl::Duration deadline);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
