#include "client/http_client.h"

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <limits>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/thread.h"

namespace sluice {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

constexpr size_t kPieceBytes = 1 << 14;
constexpr uint32_t kMaxHeaderBytes = 1 << 16;

// Everything runs on the client's thread but Cancel, which posts.
class Exchange final : public HttpCall, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(asio::io_context* io, HttpRequest request, HttpClient::OnBody on_body, HttpClient::OnEnd on_end)
      : io_(*io),
        resolver_(*io),
        stream_(*io),
        url_(request.url),
        timeout_(request.timeout),
        on_body_(std::move(on_body)),
        on_end_(std::move(on_end)) {
    request_.version(11);
    request_.method_string(request.method);
    request_.target(url_.path);
    request_.set(http::field::host, absl::StrCat(url_.host, ":", url_.port));
    request_.set(http::field::connection, "close");
    for (const auto& [name, value] : request.headers) request_.set(name, value);
    request_.body() = std::move(request.body);
    request_.prepare_payload();
    parser_.header_limit(kMaxHeaderBytes);
    parser_.body_limit(std::numeric_limits<uint64_t>::max());  // none would be refused
  }

  void Start() {
    stream_.expires_after(std::chrono::nanoseconds(absl::ToInt64Nanoseconds(timeout_)));
    resolver_.async_resolve(url_.host, url_.port, [self = shared_from_this()](auto error, auto found) {
      if (self->Failed(error, "cannot find the host")) return;
      self->stream_.async_connect(found, [self](auto error, auto) { self->OnConnect(error); });
    });
  }

  void Cancel() override {
    asio::post(io_, [self = shared_from_this()] {
      self->cancelled_ = true;
      self->resolver_.cancel();
      self->stream_.cancel();
    });
  }

 private:
  void OnConnect(beast::error_code error) {
    if (Failed(error, "cannot connect")) return;
    beast::error_code ignored;
    stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
    http::async_write(stream_, request_, [self = shared_from_this()](auto error, size_t) {
      if (self->Failed(error, "cannot send")) return;
      http::async_read_header(self->stream_, self->buffer_, self->parser_, [self](auto error, size_t) {
        if (!self->Failed(error, "no answer")) self->ReadBody();
      });
    });
  }

  void ReadBody() {
    if (parser_.is_done()) return End(absl::OkStatus());
    auto& body = parser_.get().body();
    body.data = piece_.data();
    body.size = piece_.size();
    body.more = true;
    http::async_read_some(stream_, buffer_, parser_, [self = shared_from_this()](auto error, size_t) {
      if (error == http::error::need_buffer) error = {};
      if (self->Failed(error, "the answer breaks off")) return;
      const size_t bytes = self->piece_.size() - self->parser_.get().body().size;
      if (bytes > 0) self->on_body_(self->code(), {self->piece_.data(), bytes});
      self->ReadBody();
    });
  }

  int code() const { return static_cast<int>(parser_.get().result_int()); }

  // Also where nothing failed but a cancel came between two steps.
  bool Failed(beast::error_code error, const char* what) {
    if (!error && !cancelled_) return false;
    if (cancelled_) {
      End(absl::CancelledError("cancelled"));
    } else if (error == beast::error::timeout) {
      End(absl::DeadlineExceededError(absl::StrCat("no end within ", absl::FormatDuration(timeout_))));
    } else {
      End(absl::UnavailableError(absl::StrCat(what, ": ", error.message())));
    }
    return true;
  }

  void End(const absl::Status& status) {
    beast::error_code ignored;
    stream_.socket().close(ignored);
    const HttpClient::OnEnd end = std::move(on_end_);
    on_body_ = nullptr;
    end(parser_.is_header_done() ? code() : 0, status);
  }

  asio::io_context& io_;
  asio::ip::tcp::resolver resolver_;
  beast::tcp_stream stream_;
  const HttpUrl url_;
  const absl::Duration timeout_;
  HttpClient::OnBody on_body_;
  HttpClient::OnEnd on_end_;
  http::request<http::string_body> request_;
  http::response_parser<http::buffer_body> parser_;
  beast::flat_buffer buffer_;
  std::array<char, kPieceBytes> piece_;
  bool cancelled_ = false;
};

}  // namespace

absl::StatusOr<HttpUrl> ParseHttpUrl(const std::string& text, absl::string_view flag) {
  absl::string_view rest = text;
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, " ", text, ": ", why, "; want http://host:port/path, such as http://127.0.0.1:8000/v1"));
  };
  if (absl::StartsWith(rest, "https://")) return wrong("this client speaks no TLS over HTTP");
  if (!absl::ConsumePrefix(&rest, "http://")) return wrong("no http:// at its beginning");
  HttpUrl url;
  const size_t slash = std::min(rest.find('/'), rest.size());
  url.path = std::string(absl::StripSuffix(rest.substr(slash), "/"));
  const absl::string_view place = rest.substr(0, slash);
  const size_t colon = place.rfind(':');
  url.host = std::string(place.substr(0, colon));
  url.port = colon == absl::string_view::npos ? "80" : std::string(place.substr(colon + 1));
  int port = 0;
  if (url.host.empty()) return wrong("no host");
  if (!absl::SimpleAtoi(url.port, &port) || port < 1 || port > 65535) return wrong("no port from 1 to 65535");
  if (text.find_first_of(" \r\n\t?#") != std::string::npos)
    return wrong("a character that does not belong there");
  return url;
}

class HttpClient::Loop {
 public:
  Loop() : work_(asio::make_work_guard(io_)), thread_("http-client", [this] { io_.run(); }) {}
  ~Loop() {
    io_.stop();
    thread_.Join();
  }
  asio::io_context& io() { return io_; }

 private:
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  NamedThread thread_;
};

HttpClient::HttpClient() : loop_(std::make_unique<Loop>()) {}
HttpClient::~HttpClient() = default;

std::shared_ptr<HttpCall> HttpClient::Start(HttpRequest request, OnBody on_body, OnEnd on_end) {
  auto exchange =
      std::make_shared<Exchange>(&loop_->io(), std::move(request), std::move(on_body), std::move(on_end));
  asio::post(loop_->io(), [exchange] { exchange->Start(); });
  return exchange;
}

}  // namespace sluice
