// Role: HTTP/1.1 requests whose answers are told piece by piece, as they come. Threads: one of its own,
// "http-client", for all requests; callbacks come from it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice {

// http://host[:port][/path]; the path has no slash at its end.
struct HttpUrl {
  std::string host, port, path;
};
// InvalidArgument names `flag`.
absl::StatusOr<HttpUrl> ParseHttpUrl(const std::string& text, absl::string_view flag);

struct HttpRequest {
  HttpUrl url;                                               // with the whole path
  std::string method;                                        // GET, POST
  std::vector<std::pair<std::string, std::string>> headers;  // Host and Content-Length come by themselves
  std::string body;
  absl::Duration timeout;  // from Start to the end of the answer
};

// What is under way. It goes on to its end without this handle.
class HttpCall {
 public:
  virtual ~HttpCall() = default;
  virtual void Cancel() = 0;  // ends soon with CANCELLED
};

class HttpClient {
 public:
  HttpClient();
  ~HttpClient();  // calls under way end without a word

  // on_body: each piece of the answer's body with its HTTP code. on_end: once, the last word: OK when the
  // whole answer is there, whatever its code; UNAVAILABLE, DEADLINE_EXCEEDED or CANCELLED when it is not.
  using OnBody = std::function<void(int code, absl::string_view piece)>;
  using OnEnd = std::function<void(int code, const absl::Status& status)>;
  std::shared_ptr<HttpCall> Start(HttpRequest request, OnBody on_body, OnEnd on_end);

 private:
  class Loop;
  const std::unique_ptr<Loop> loop_;
};

}  // namespace sluice
