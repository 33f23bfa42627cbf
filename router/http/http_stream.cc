#include "router/http/http_stream.h"

#include <boost/asio/ssl/stream.hpp>
#include <utility>

namespace sluice {
namespace {

class TcpStream final : public HttpStream {
 public:
  explicit TcpStream(boost::asio::ip::tcp::socket socket) : socket_(std::move(socket)) {}

  boost::asio::ip::tcp::socket& socket() override { return socket_; }
  void Open(Done done) override { done({}, 0); }
  void ReadSome(boost::asio::mutable_buffer into, Done done) override {
    socket_.async_read_some(into, std::move(done));
  }
  void WriteSome(boost::asio::const_buffer from, Done done) override {
    socket_.async_write_some(from, std::move(done));
  }
  void ShutdownSend() override {
    boost::system::error_code ignored;
    socket_.shutdown(boost::asio::ip::tcp::socket::shutdown_send, ignored);
  }

 private:
  boost::asio::ip::tcp::socket socket_;
};

class TlsStream final : public HttpStream {
 public:
  TlsStream(boost::asio::ip::tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> context)
      : context_(std::move(context)), stream_(std::move(socket), *context_) {}

  boost::asio::ip::tcp::socket& socket() override { return stream_.next_layer(); }
  void Open(Done done) override {
    stream_.async_handshake(boost::asio::ssl::stream_base::server,
                            [done = std::move(done)](boost::system::error_code error) { done(error, 0); });
  }
  void ReadSome(boost::asio::mutable_buffer into, Done done) override {
    stream_.async_read_some(into, std::move(done));
  }
  void WriteSome(boost::asio::const_buffer from, Done done) override {
    stream_.async_write_some(from, std::move(done));
  }
  // Without close_notify, which would wait for the client's: HTTP knows where an answer ends.
  void ShutdownSend() override {
    boost::system::error_code ignored;
    socket().shutdown(boost::asio::ip::tcp::socket::shutdown_send, ignored);
  }

 private:
  const std::shared_ptr<boost::asio::ssl::context> context_;
  boost::asio::ssl::stream<boost::asio::ip::tcp::socket> stream_;
};

}  // namespace

std::unique_ptr<HttpStream> NewTlsStream(boost::asio::ip::tcp::socket socket,
                                         std::shared_ptr<boost::asio::ssl::context> context) {
  return std::make_unique<TlsStream>(std::move(socket), std::move(context));
}

std::unique_ptr<HttpStream> NewTcpStream(boost::asio::ip::tcp::socket socket) {
  return std::make_unique<TcpStream>(std::move(socket));
}

}  // namespace sluice
