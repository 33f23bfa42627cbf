#include "router/http/http_stream.h"

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

}  // namespace

std::unique_ptr<HttpStream> NewTcpStream(boost::asio::ip::tcp::socket socket) {
  return std::make_unique<TcpStream>(std::move(socket));
}

}  // namespace sluice
