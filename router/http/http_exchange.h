// Role: one request over HTTP and its answer, as those see it who give the answer: a whole one, or a stream
// of text. Why abstract: what is said knows nothing of sockets, and tests need none. Threads: its methods
// from any; a client that has gone makes all of them do nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice {

inline constexpr char kJsonType[] = "application/json";
inline constexpr char kEventStreamType[] = "text/event-stream; charset=utf-8";

struct HttpRequest {
  std::string method;         // GET, POST, ...
  std::string path;           // percent-decoded, without the query
  std::string authorization;  // the header's value; empty: there is none
  std::string body;
  std::shared_ptr<void> held;  // what the body takes of the server's bound; let go with the body
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int code = 200;
  std::string body;
  std::string content_type = kJsonType;
  HttpHeaders headers;
};

class HttpExchange {
 public:
  // Who wants to know of the client while the answer is not complete.
  class Watcher {
   public:
    virtual ~Watcher() = default;
    virtual void ClientGone() = 0;
    virtual void ClientTook() = 0;  // the backlog has shrunk
  };

  virtual ~HttpExchange() = default;

  // Before the answer. The watcher lives at least until the answer is complete or the client has gone.
  virtual void Watch(std::shared_ptr<Watcher> watcher) = 0;

  // Exactly one of: Respond; BeginStream, Push..., End; Abort, also after BeginStream.
  virtual void Respond(HttpResponse response) = 0;
  virtual void BeginStream(absl::string_view content_type, const HttpHeaders& headers) = 0;
  virtual void Push(absl::string_view text) = 0;
  virtual void End() = 0;
  // Drops what the client has not taken, and the connection.
  virtual void Abort() = 0;

  // Pushed, and not taken by the client yet.
  virtual size_t backlog_bytes() const = 0;
};

// Who answers.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // On a thread of the server: must not block.
  virtual void Serve(std::shared_ptr<HttpExchange> exchange, HttpRequest request) = 0;
  // The body of an answer that the server gives itself: a request that is too large, too slow, not HTTP.
  virtual HttpResponse Refusal(int code, const std::string& reason, const std::string& message) const = 0;
};

}  // namespace sluice
