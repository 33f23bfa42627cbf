// Role: the bytes of one connection. Why abstract: TCP, or TLS over it. Threads: on its
// executor.
#pragma once

#include <utility>  // boost/asio/awaitable.hpp of Boost 1.74 forgets it

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <functional>
#include <memory>

namespace sluice {

class HttpStream {
 public:
  using Done = std::function<void(boost::system::error_code error, size_t bytes)>;

  virtual ~HttpStream() = default;
  virtual boost::asio::ip::tcp::socket& socket() = 0;
  // Before the first byte: nothing, or a handshake.
  virtual void Open(Done done) = 0;
  virtual void ReadSome(boost::asio::mutable_buffer into, Done done) = 0;
  virtual void WriteSome(boost::asio::const_buffer from, Done done) = 0;
  // Nothing more is sent; what was sent arrives.
  virtual void ShutdownSend() = 0;
};

std::unique_ptr<HttpStream> NewTcpStream(boost::asio::ip::tcp::socket socket);
std::unique_ptr<HttpStream> NewTlsStream(boost::asio::ip::tcp::socket socket,
                                         std::shared_ptr<boost::asio::ssl::context> context);

}  // namespace sluice
