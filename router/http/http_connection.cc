#include "router/http/http_connection.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/write.hpp>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace sluice {
namespace {

namespace http = boost::beast::http;

constexpr size_t kMaxHead = 16 << 10;                          // request line and headers
constexpr size_t kReadAhead = 16 << 10;                        // of later requests, while one is answered
constexpr size_t kMaxInput = 128 << 10;                        // what the parser has not taken
constexpr size_t kHeadPiece = 1 << 10, kBodyPiece = 64 << 10;  // of one read
constexpr size_t kKeptBuffer = 4 << 10;  // more than this is not kept for the next piece
constexpr absl::Duration kLinger = absl::Seconds(2);

std::string PercentDecoded(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool coded = text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) &&
                       absl::ascii_isxdigit(text[i + 2]);
    if (!coded) {
      out.push_back(text[i]);
      continue;
    }
    out.push_back(static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16)));
    i += 2;
  }
  return out;
}

absl::string_view Plain(boost::beast::string_view text) { return {text.data(), text.size()}; }

std::string Date() { return absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()); }

}  // namespace

// What a body takes of max_buffered_bytes.
class HttpConnection::BodyClaim {
 public:
  explicit BodyClaim(std::shared_ptr<HttpShared> shared) : shared_(std::move(shared)) {}
  ~BodyClaim() { shared_->buffered_bytes -= bytes_; }
  bool Grow(size_t to) {
    const size_t more = to - bytes_;
    if (shared_->buffered_bytes.fetch_add(more) + more > shared_->options.max_buffered_bytes) {
      shared_->buffered_bytes -= more;
      return false;
    }
    bytes_ = to;
    return true;
  }

 private:
  const std::shared_ptr<HttpShared> shared_;
  size_t bytes_ = 0;
};

HttpConnection::HttpConnection(std::unique_ptr<HttpStream> stream, std::shared_ptr<HttpShared> shared)
    : shared_(std::move(shared)),
      stream_(std::move(stream)),
      timer_(stream_->socket().get_executor()),
      in_(kMaxInput) {}

HttpConnection::~HttpConnection() {
  MutexLock lock(&shared_->mu);
  shared_->connections.erase(this);
}

void HttpConnection::Start() {
  boost::asio::post(stream_->socket().get_executor(), [self = shared_from_this()] {
    self->SetDeadline(self->shared_->options.header_timeout);
    self->stream_->Open([self](boost::system::error_code error, size_t) {
      if (error) return self->Gone();
      self->Read();
    });
  });
}

void HttpConnection::StopIdle() {
  Post(+[](HttpConnection* self) {
    if (self->phase_ != Phase::kAnswering) self->Close();
  });
}

void HttpConnection::Kill() {
  Post(+[](HttpConnection* self) { self->Gone(); });
}

void HttpConnection::Post(void (*step)(HttpConnection*)) {
  boost::asio::post(stream_->socket().get_executor(),
                    [self = shared_from_this(), step] { step(self.get()); });
}

void HttpConnection::Read() {
  if (reading_ || closed_) return;
  if (phase_ == Phase::kAnswering && in_.size() >= kReadAhead) return;  // from here on only a write notices
  const size_t piece = phase_ == Phase::kBody || phase_ == Phase::kLingering ? kBodyPiece : kHeadPiece;
  if (piece_.size() != piece) piece_ = std::string(piece, '\0');
  reading_ = true;
  stream_->ReadSome({piece_.data(), std::min(piece, in_.max_size() - in_.size())},
                    [self = shared_from_this()](boost::system::error_code error, size_t bytes) {
                      self->OnRead(error, bytes);
                    });
}

void HttpConnection::OnRead(boost::system::error_code error, size_t bytes) {
  reading_ = false;
  if (closed_) return;
  if (error) return Gone();
  if (phase_ != Phase::kLingering) {
    in_.commit(boost::asio::buffer_copy(in_.prepare(bytes), boost::asio::buffer(piece_.data(), bytes)));
  }
  Parse();
  Read();
}

void HttpConnection::Parse() {
  while (!closed_ && phase_ < Phase::kAnswering && in_.size() > 0) {
    if (phase_ == Phase::kIdle) {
      phase_ = Phase::kHead;
      parser_.emplace();
      parser_->header_limit(kMaxHead);
      parser_->body_limit(shared_->options.max_body_bytes);
      SetDeadline(shared_->options.header_timeout);
    }
    boost::system::error_code error;
    in_.consume(parser_->put(in_.data(), error));
    if (error == http::error::need_more && in_.size() < in_.max_size()) return;
    if (error == http::error::body_limit) {
      return Refuse(413, "BODY_TOO_LARGE",
                    absl::StrCat("the body is above ", shared_->options.max_body_bytes,
                                 " bytes, the most this router takes (--max-message)"));
    }
    if (error == http::error::header_limit) {
      return Refuse(431, "HEADER_TOO_LARGE", absl::StrCat("the headers are above ", kMaxHead, " bytes"));
    }
    if (error) return Refuse(400, "BAD_HTTP", absl::StrCat("not HTTP/1.1: ", error.message()));
    if (phase_ == Phase::kHead && parser_->is_header_done()) OnHead();
    if (!ClaimBody()) {
      return Refuse(503, "BODIES_FULL", "the router holds as much of requests' bodies as it may; try again");
    }
    if (parser_->is_done()) Dispatch();
  }
}

void HttpConnection::OnHead() {
  phase_ = Phase::kBody;
  SetDeadline(shared_->options.body_timeout);
  if (absl::EqualsIgnoreCase(Plain(parser_->get()[http::field::expect]), "100-continue")) {
    Send("HTTP/1.1 100 Continue\r\n\r\n", /*last=*/false);
  }
}

bool HttpConnection::ClaimBody() {
  const size_t bytes = parser_->get().body().size();
  if (bytes == 0) return true;
  if (claim_ == nullptr) claim_ = std::make_shared<BodyClaim>(shared_);
  return claim_->Grow(bytes);
}

void HttpConnection::Dispatch() {
  auto message = parser_->release();
  parser_.reset();
  timer_.cancel();
  phase_ = Phase::kAnswering;
  keep_alive_ = message.keep_alive();
  chunked_ = message.version() >= 11;
  head_only_ = message.method() == http::verb::head;
  const absl::string_view target = Plain(message.target());
  HttpRequest request;
  request.method = std::string(Plain(message.method_string()));
  request.path = PercentDecoded(target.substr(0, target.find('?')));
  request.authorization = std::string(Plain(message[http::field::authorization]));
  request.body = boost::beast::buffers_to_string(message.body().data());
  request.held = std::move(claim_);
  in_.shrink_to_fit();
  ++shared_->answering;
  shared_->handler->Serve(shared_from_this(), std::move(request));
}

void HttpConnection::Refuse(int code, const std::string& reason, const std::string& message) {
  parser_.reset();
  claim_.reset();
  timer_.cancel();
  phase_ = Phase::kAnswering;
  keep_alive_ = head_only_ = false;
  ++shared_->answering;
  Respond(shared_->handler->Refusal(code, reason, message));
}

void HttpConnection::Watch(std::shared_ptr<Watcher> watcher) {
  bool gone;
  {
    MutexLock lock(&mu_);
    gone = gone_;
    if (!gone) watcher_ = watcher;
  }
  if (gone) watcher->ClientGone();
}

std::string HttpConnection::Head(int code, absl::string_view content_type, const HttpHeaders& headers,
                                 std::optional<size_t> length) {
  if (shared_->draining || (!length.has_value() && !chunked_)) keep_alive_ = false;
  http::response<http::empty_body> head(static_cast<http::status>(code), chunked_ ? 11 : 10);
  const auto text = [](absl::string_view view) {
    return boost::beast::string_view(view.data(), view.size());
  };
  head.set(http::field::date, Date());
  head.set(http::field::content_type, text(content_type));
  for (const auto& [name, value] : headers) head.set(text(name), text(value));
  if (length.has_value()) {
    head.content_length(*length);
  } else if (chunked_) {
    head.chunked(true);
  }
  head.keep_alive(keep_alive_);
  std::ostringstream out;
  out << head.base();
  return std::move(out).str();
}

void HttpConnection::Respond(HttpResponse response) {
  std::string text = Head(response.code, response.content_type, response.headers, response.body.size());
  if (!head_only_) text.append(response.body);
  Send(std::move(text), /*last=*/true);
}

void HttpConnection::BeginStream(absl::string_view content_type, const HttpHeaders& headers) {
  Send(Head(200, content_type, headers, std::nullopt), /*last=*/false);
}

void HttpConnection::Push(absl::string_view text) {
  if (text.empty()) return;  // an empty chunk would be the last
  Send(chunked_ ? absl::StrCat(absl::Hex(text.size()), "\r\n", text, "\r\n") : std::string(text),
       /*last=*/false);
}

void HttpConnection::End() { Send(chunked_ ? "0\r\n\r\n" : "", /*last=*/true); }

void HttpConnection::Abort() {
  std::shared_ptr<Watcher> watcher;  // let go outside of the lock
  {
    MutexLock lock(&mu_);
    aborted_ = true;
    watcher = std::move(watcher_);
  }
  Post(+[](HttpConnection* self) { self->Write(); });
  --shared_->answering;
}

void HttpConnection::Send(std::string text, bool last) {
  std::shared_ptr<Watcher> watcher;
  bool wake;
  {
    MutexLock lock(&mu_);
    if (!gone_) {
      backlog_ += text.size();
      out_.append(text);
    }
    if (last) {
      complete_ = true;
      watcher = std::move(watcher_);
    }
    wake = !std::exchange(woken_, true);
  }
  if (wake) Post(+[](HttpConnection* self) { self->Write(); });
  if (last) --shared_->answering;
}

size_t HttpConnection::backlog_bytes() const {
  MutexLock lock(&mu_);
  return backlog_;
}

void HttpConnection::Write() {
  bool aborted, complete;
  {
    MutexLock lock(&mu_);
    woken_ = false;
    aborted = aborted_;
    complete = complete_;
    if (sending_.empty()) std::swap(sending_, out_);
  }
  if (closed_) return;
  if (aborted) return Close();
  if (complete) SetDeadline(shared_->options.write_timeout);
  if (writing_) return;
  if (sending_.empty()) return complete ? Answered() : void();
  writing_ = true;
  stream_->WriteSome({sending_.data() + sent_, sending_.size() - sent_},
                     [self = shared_from_this()](boost::system::error_code error, size_t bytes) {
                       self->OnWrite(error, bytes);
                     });
}

void HttpConnection::OnWrite(boost::system::error_code error, size_t bytes) {
  writing_ = false;
  if (closed_) return;
  if (error) return Gone();
  sent_ += bytes;
  if (sent_ == sending_.size()) {
    sent_ = 0;
    sending_.clear();
    if (sending_.capacity() > kKeptBuffer) sending_ = std::string();
  }
  std::shared_ptr<Watcher> watcher;
  {
    MutexLock lock(&mu_);
    backlog_ -= bytes;
    watcher = watcher_;
  }
  if (watcher != nullptr) watcher->ClientTook();
  Write();
}

void HttpConnection::Answered() {
  {
    MutexLock lock(&mu_);
    complete_ = false;
  }
  if (!keep_alive_ || shared_->stopping) {
    // A close while the client still sends would take the answer from it.
    stream_->ShutdownSend();
    if (shared_->stopping) return Close();
    phase_ = Phase::kLingering;
    in_.consume(in_.size());
    SetDeadline(kLinger);
    return Read();
  }
  phase_ = Phase::kIdle;
  SetDeadline(shared_->options.idle_timeout);
  Parse();
  Read();
}

void HttpConnection::SetDeadline(absl::Duration from_now) {
  timer_.expires_after(absl::ToChronoNanoseconds(from_now));
  timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    // One that had fired before a later one was set is none.
    if (error || self->closed_ || self->timer_.expiry() > std::chrono::steady_clock::now()) return;
    self->OnDeadline();
  });
}

void HttpConnection::OnDeadline() {
  switch (phase_) {
    case Phase::kHead:
    case Phase::kBody:
      return Refuse(408, "REQUEST_TOO_SLOW", "the request did not come in time; send it at once");
    case Phase::kAnswering:
      return Gone();
    default:
      return Close();
  }
}

void HttpConnection::Gone() {
  std::shared_ptr<Watcher> watcher;
  {
    MutexLock lock(&mu_);
    gone_ = true;
    out_.clear();
    backlog_ = 0;
    watcher = std::move(watcher_);
  }
  Close();
  if (watcher != nullptr) watcher->ClientGone();
}

void HttpConnection::Close() {
  if (std::exchange(closed_, true)) return;
  timer_.cancel();
  boost::system::error_code ignored;
  stream_->socket().close(ignored);
}

}  // namespace sluice
