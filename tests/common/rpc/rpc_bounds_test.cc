// What a listener takes from clients, and what it does not.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/rpc_server.h"
#include "tests/common/rpc/echo_service.h"

namespace sluice {
namespace {

class RawConnection {
 public:
  RawConnection(int port, const char* from = "127.0.0.1") {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in own = Address(from, 0), peer = Address("127.0.0.1", port);
    connected_ = bind(fd_, reinterpret_cast<sockaddr*>(&own), sizeof(own)) == 0 &&
                 connect(fd_, reinterpret_cast<sockaddr*>(&peer), sizeof(peer)) == 0;
  }
  RawConnection(RawConnection&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_) {}
  ~RawConnection() {
    if (fd_ >= 0) close(fd_);
  }
  bool connected() const { return connected_; }
  void Send(absl::string_view bytes) {
    EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), bytes.size());
  }
  // Whether the server has hung up within `wait`; what it says before does not count.
  bool EndsWithin(absl::Duration wait) {
    const absl::Time until = absl::Now() + wait;
    while (absl::Now() < until) {
      pollfd entry = {fd_, POLLIN, 0};
      if (poll(&entry, 1, 20) != 1) continue;
      char buffer[4096];
      if (recv(fd_, buffer, sizeof(buffer), 0) <= 0) return true;
    }
    return false;
  }

 private:
  static sockaddr_in Address(const char* host, int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, host, &address.sin_addr);
    return address;
  }
  int fd_;
  bool connected_;
};

const absl::Duration kLong = kPatience * absl::Seconds(10);

class RpcBoundsTest : public testing::Test {
 protected:
  void Serve(RpcServerOptions options) {
    options.address = "127.0.0.1:0";
    options.flag = "--listen";
    absl::StatusOr<std::unique_ptr<RpcServer>> server = RpcServer::Start(options, {&service_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  bool Opens(int n) {
    const absl::Time until = absl::Now() + kLong;
    while (server_->connections() != n && absl::Now() < until) absl::SleepFor(absl::Milliseconds(5));
    return server_->connections() == n;
  }
  std::shared_ptr<grpc::Channel> Dial() {
    return OpenChannel(absl::StrCat("127.0.0.1:", server_->port()), nullptr, OwnConnection());
  }
  EchoService service_;
  std::unique_ptr<RpcServer> server_;
};

TEST_F(RpcBoundsTest, AConnectionTooManyIsClosedAndItsRoomComesBack) {
  RpcServerOptions options;
  options.connections.most = 3;
  Serve(options);
  std::vector<RawConnection> open;
  for (int i = 0; i < 3; ++i) open.emplace_back(server_->port());
  ASSERT_TRUE(Opens(3));
  EXPECT_TRUE(RawConnection(server_->port()).EndsWithin(kLong));
  EXPECT_EQ(server_->connections(), 3);
  open.pop_back();
  ASSERT_TRUE(Opens(2));
  EXPECT_TRUE(Echo(Dial()).ok());
}

TEST_F(RpcBoundsTest, OneHostCannotTakeTheRoomOfAnother) {
  RpcServerOptions options;
  options.connections = {.most = 100, .most_of_a_host = 2};
  Serve(options);
  std::vector<RawConnection> open;
  for (int i = 0; i < 2; ++i) open.emplace_back(server_->port(), "127.0.0.2");
  ASSERT_TRUE(open.back().connected());
  ASSERT_TRUE(Opens(2));
  EXPECT_TRUE(RawConnection(server_->port(), "127.0.0.2").EndsWithin(kLong));
  EXPECT_TRUE(Echo(Dial()).ok());
}

TEST_F(RpcBoundsTest, AConnectionThatSaysNothingIsClosedAndOthersAreServed) {
  RpcServerOptions options;
  options.handshake_timeout = absl::Milliseconds(500);
  Serve(options);
  RawConnection silent(server_->port()), slow(server_->port());
  slow.Send("PRI * HT");  // the beginning of HTTP/2's first line
  EXPECT_TRUE(Echo(Dial()).ok());
  EXPECT_TRUE(silent.EndsWithin(kLong));
  EXPECT_TRUE(slow.EndsWithin(kLong));
}

TEST_F(RpcBoundsTest, AnIdleConnectionIsClosed) {
  RpcServerOptions options;
  options.max_idle = absl::Milliseconds(300);
  Serve(options);
  const std::shared_ptr<grpc::Channel> channel = Dial();
  EXPECT_TRUE(Echo(channel).ok());
  EXPECT_TRUE(Opens(0));
  EXPECT_TRUE(Echo(channel).ok()) << "and comes back when it is needed";
}

TEST_F(RpcBoundsTest, AMessageOrAHeaderTooLargeIsRefusedByItsKind) {
  RpcServerOptions options;
  options.max_message_bytes = 1 << 20;
  Serve(options);
  const std::shared_ptr<grpc::Channel> channel = Dial();
  EXPECT_TRUE(Echo(channel, std::string(1 << 19, 'x')).ok());
  EXPECT_EQ(Echo(channel, std::string(2 << 20, 'x')).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  auto stub = v1::Models::NewStub(channel);
  grpc::ClientContext context;
  context.AddMetadata("x-long", std::string(64 << 10, 'x'));
  v1::Model model;
  EXPECT_EQ(stub->GetModel(&context, {}, &model).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  // Its own connection may end of it.
  EXPECT_TRUE(Echo(Dial()).ok());
}

TEST_F(RpcBoundsTest, APortThatIsTakenIsNamed) {
  Serve({});
  const std::string address = absl::StrCat("127.0.0.1:", server_->port());
  const absl::Status status = RpcServer::Start({.address = address, .flag = "--x"}, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("cannot listen on " + address));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("Change --x"));
}

TEST_F(RpcBoundsTest, ANameIsServedOnAllItsAddresses) {
  RpcServerOptions options{.address = "localhost:0", .flag = "--listen"};
  absl::StatusOr<std::unique_ptr<RpcServer>> server = RpcServer::Start(options, {&service_});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE(
      Echo(OpenChannel(absl::StrCat("localhost:", (*server)->port()), nullptr, OwnConnection())).ok());
  EXPECT_TRUE(
      Echo(OpenChannel(absl::StrCat("127.0.0.1:", (*server)->port()), nullptr, OwnConnection())).ok());
}

}  // namespace
}  // namespace sluice
