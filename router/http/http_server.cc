#include "router/http/http_server.h"

#include "router/http/http_connection.h"

#include <netinet/tcp.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/host_port.h"
#include "common/base/status.h"

namespace sluice {
namespace {

using boost::asio::ip::tcp;

constexpr int kFilesBeside = 512;  // of this process, beside HTTP connections
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
constexpr absl::Duration kPoll = absl::Milliseconds(5);
// Unsent bytes that the kernel takes of one connection: the rest waits where Delivery sees it.
constexpr int kUnsentBytes = 64 << 10;

void RaiseFileLimit(int connections) {
  rlimit limit{};
  const rlim_t need = static_cast<rlim_t>(connections) + kFilesBeside;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= need) return;
  limit.rlim_cur = std::min(need, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < need) {
    spdlog::warn(
        "{} HTTP connections need {} open files, the limit is {}; raise it (ulimit -n), or lower "
        "--http-max-connections",
        connections, need, limit.rlim_cur);
  }
}

// The files have been found to be good.
std::shared_ptr<boost::asio::ssl::context> TlsContext(const TlsPems& pems) {
  namespace ssl = boost::asio::ssl;
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
  boost::system::error_code ignored;
  context->use_certificate_chain(boost::asio::buffer(pems.cert), ignored);
  context->use_private_key(boost::asio::buffer(pems.key), ssl::context::pem, ignored);
  if (!pems.ca.empty()) {
    context->add_certificate_authority(boost::asio::buffer(pems.ca), ignored);
    context->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert, ignored);
    const unsigned char name[] = "sluice";  // OpenSSL wants one where clients show certificates
    SSL_CTX_set_session_id_context(context->native_handle(), name, sizeof(name) - 1);
  }
  return context;
}

void Tune(tcp::socket* socket) {
  boost::system::error_code ignored;
  socket->set_option(tcp::no_delay(true), ignored);
  setsockopt(socket->native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes, sizeof(kUnsentBytes));
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const HttpOptions& options, HttpHandler* handler)
      : shared_(std::make_shared<HttpShared>(options, handler)),
        acceptor_(boost::asio::make_strand(shared_->io)),
        pause_(acceptor_.get_executor()) {}

  absl::Status Listen() {
    const std::string& address = shared_->options.listen;
    SLUICE_RETURN_IF_ERROR(CheckHostPort("--http-listen", address));
    const size_t colon = address.rfind(':');
    std::string host = address.substr(0, colon);
    if (host.size() > 1 && host.front() == '[') host = host.substr(1, host.size() - 2);
    boost::system::error_code error;
    tcp::resolver resolver(shared_->io);
    const auto found = resolver.resolve(host, address.substr(colon + 1), tcp::resolver::passive, error);
    if (!error) {
      const tcp::endpoint endpoint = *found.begin();
      acceptor_.open(endpoint.protocol(), error);
      if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
      if (!error) acceptor_.bind(endpoint, error);
      if (!error) acceptor_.listen(boost::asio::socket_base::max_listen_connections, error);
    }
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", address, ": ", error.message(), "; change --http-listen"));
    }
    port_ = acceptor_.local_endpoint().port();
    RaiseFileLimit(shared_->options.max_connections);
    boost::asio::post(acceptor_.get_executor(), [this] { Accept(); });
    for (int i = 0; i < shared_->options.threads; ++i) {
      threads_.emplace_back([this] {
        pthread_setname_np(pthread_self(), "http");
        shared_->io.run();
      });
    }
    return absl::OkStatus();
  }

  int port() const { return port_; }
  HttpShared& shared() { return *shared_; }

  void Stop(absl::Duration deadline) {
    if (threads_.empty()) return;
    shared_->stopping = shared_->draining = true;
    boost::asio::post(acceptor_.get_executor(), [this] {
      boost::system::error_code ignored;
      acceptor_.close(ignored);
      pause_.cancel();
      closed_ = true;
    });
    while (!closed_) absl::SleepFor(kPoll);
    for (const auto& connection : Connections()) connection->StopIdle();
    while (shared_->answering > 0) absl::SleepFor(kPoll);
    const absl::Time until = absl::Now() + deadline;
    while (!Connections().empty() && absl::Now() < until) absl::SleepFor(kPoll);
    for (const auto& connection : Connections()) connection->Kill();
    work_.reset();  // the threads end with the last handler
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  std::vector<std::shared_ptr<HttpConnection>> Connections() {
    std::vector<std::shared_ptr<HttpConnection>> all;
    MutexLock lock(&shared_->mu);
    for (HttpConnection* connection : shared_->connections) {
      if (auto held = connection->weak_from_this().lock()) all.push_back(std::move(held));
    }
    return all;
  }

 private:
  void Accept() {
    acceptor_.async_accept(boost::asio::make_strand(shared_->io),
                           [this](boost::system::error_code error, tcp::socket socket) {
                             if (!acceptor_.is_open()) return;
                             if (!error) {
                               Take(std::move(socket));
                               return Accept();
                             }
                             // Out of files, say: those that end give some back.
                             pause_.expires_after(absl::ToChronoNanoseconds(kAcceptPause));
                             pause_.async_wait([this](boost::system::error_code) {
                               if (acceptor_.is_open()) Accept();
                             });
                           });
  }

  void Take(tcp::socket socket) {
    Tune(&socket);
    std::shared_ptr<HttpConnection> connection;
    {
      MutexLock lock(&shared_->mu);
      if (static_cast<int>(shared_->connections.size()) >= shared_->options.max_connections) {
        return TurnAway(std::move(socket));
      }
      connection = std::make_shared<HttpConnection>(NewStream(std::move(socket)), shared_);
      shared_->connections.insert(connection.get());
    }
    connection->Start();
  }

  // On the acceptor's strand.
  std::unique_ptr<HttpStream> NewStream(tcp::socket socket) {
    const std::shared_ptr<Tls>& tls = shared_->options.tls;
    if (tls == nullptr) return NewTcpStream(std::move(socket));
    if (context_ == nullptr || generation_ != tls->generation()) {
      generation_ = tls->generation();
      context_ = TlsContext(tls->Current());
    }
    return NewTlsStream(std::move(socket), context_);
  }

  // Fits into an empty socket's buffer, so that nothing waits.
  void TurnAway(tcp::socket socket) {
    const HttpResponse refusal = shared_->handler->Refusal(
        503, "CONNECTIONS_FULL",
        absl::StrCat(shared_->options.max_connections,
                     " connections are open, the most this router takes (--http-max-connections)"));
    const std::string text = absl::StrCat(
        "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: ", refusal.content_type,
        "\r\nContent-Length: ", refusal.body.size(), "\r\n\r\n", refusal.body);
    boost::system::error_code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(boost::asio::buffer(text), ignored);
    socket.shutdown(tcp::socket::shutdown_send, ignored);
  }

  const std::shared_ptr<HttpShared> shared_;
  tcp::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{shared_->io.get_executor()};
  std::shared_ptr<boost::asio::ssl::context> context_;
  int generation_ = 0;  // of its certificates
  std::atomic<bool> closed_{false};
  int port_ = 0;
  std::vector<std::thread> threads_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() { Stop(absl::ZeroDuration()); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpOptions& options,
                                                              HttpHandler* handler) {
  auto impl = std::make_unique<Impl>(options, handler);
  SLUICE_RETURN_IF_ERROR(impl->Listen());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

int HttpServer::port() const { return impl_->port(); }

int HttpServer::connections() const {
  MutexLock lock(&impl_->shared().mu);
  return static_cast<int>(impl_->shared().connections.size());
}

void HttpServer::SetDraining(bool on) { impl_->shared().draining = on || impl_->shared().stopping; }

void HttpServer::Stop(absl::Duration deadline) { impl_->Stop(deadline); }

}  // namespace sluice
