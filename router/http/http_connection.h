// Role: one connection: reads a request, has it answered, reads the next. One read is always under way, so
// that a client that goes is noticed at once; a deadline stands over every wait for the client but a
// stream's, which Delivery watches. Why it exists: all of HTTP/1.1 is here, and nothing of what is said over
// it. Threads: its state on its strand; what is to be written behind a lock, as answers come from any thread.
#pragma once

#include "router/http/http_stream.h"  // first: see there

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/dynamic_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "common/base/mutex.h"
#include "router/http/http_server.h"

namespace sluice {

class HttpConnection;

// What the connections of a server share. Lives as long as the last of them.
struct HttpShared {
  HttpShared(const HttpOptions& options, HttpHandler* handler)
      : options(options), handler(handler), io(options.threads) {}

  const HttpOptions options;
  HttpHandler* const handler;
  boost::asio::io_context io;
  std::atomic<bool> draining{false};
  std::atomic<bool> stopping{false};
  std::atomic<int> answering{0};  // requests whose answer is not complete
  std::atomic<size_t> buffered_bytes{0};

  Mutex mu;
  std::unordered_set<HttpConnection*> connections ABSL_GUARDED_BY(mu);
};

class HttpConnection final : public HttpExchange, public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(std::unique_ptr<HttpStream> stream, std::shared_ptr<HttpShared> shared);
  ~HttpConnection() override;

  void Start();
  // Ends it where it waits for a request; an answer goes on and is the last.
  void StopIdle();
  void Kill();

  void Watch(std::shared_ptr<Watcher> watcher) override;
  void Respond(HttpResponse response) override;
  void BeginStream(absl::string_view content_type, const HttpHeaders& headers) override;
  void Push(absl::string_view text) override;
  void End() override;
  void Abort() override;
  size_t backlog_bytes() const override;

 private:
  enum class Phase { kIdle, kHead, kBody, kAnswering, kLingering };  // to kBody it reads a request
  using Parser = boost::beast::http::request_parser<boost::beast::http::dynamic_body>;
  class BodyClaim;

  // On the strand.
  void Read();
  void OnRead(boost::system::error_code error, size_t bytes);
  void Parse();
  void OnHead();
  // False: the server holds as much of bodies as it may.
  bool ClaimBody();
  void Dispatch();
  void Refuse(int code, const std::string& reason, const std::string& message);
  void Write();
  void OnWrite(boost::system::error_code error, size_t bytes);
  void Answered();
  void SetDeadline(absl::Duration from_now);
  void OnDeadline();
  void Gone();
  void Close();

  // Any thread.
  std::string Head(int code, absl::string_view content_type, const HttpHeaders& headers,
                   std::optional<size_t> length);
  void Send(std::string text, bool last);
  void Post(void (*step)(HttpConnection*));

  const std::shared_ptr<HttpShared> shared_;  // first: the stream stands on its io_context
  const std::unique_ptr<HttpStream> stream_;
  boost::asio::steady_timer timer_;
  std::string piece_;  // what a read under way fills
  boost::beast::flat_buffer in_;
  std::optional<Parser> parser_;
  std::shared_ptr<BodyClaim> claim_;
  Phase phase_ = Phase::kIdle;
  bool reading_ = false, writing_ = false, closed_ = false;
  std::string sending_;
  size_t sent_ = 0;
  // Of the request that is answered: set before it is dispatched.
  bool keep_alive_ = true, chunked_ = true, head_only_ = false;

  mutable Mutex mu_;
  std::shared_ptr<Watcher> watcher_ ABSL_GUARDED_BY(mu_);
  std::string out_ ABSL_GUARDED_BY(mu_);        // after sending_
  size_t backlog_ ABSL_GUARDED_BY(mu_) = 0;     // of out_ and sending_
  bool complete_ ABSL_GUARDED_BY(mu_) = false;  // the answer, but for its way to the client
  bool aborted_ ABSL_GUARDED_BY(mu_) = false;
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;  // Write is posted
};

}  // namespace sluice
