#include "common/rpc/connection_gate.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr int kBacklog = 1024;
constexpr absl::Duration kPause = absl::Milliseconds(100);  // when there is no file for a connection
constexpr absl::Duration kTell = absl::Seconds(10);

std::string HostOf(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof(text));
  } else if (address.ss_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text, sizeof(text));
  }
  return text;
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<sockaddr_in6&>(address).sin6_port);
}

void Set(int fd, int level, int option) {
  const int yes = 1;
  setsockopt(fd, level, option, &yes, sizeof(yes));
}

}  // namespace

int RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
}

ConnectionGate::ConnectionGate(std::string flag, const ConnectionBounds& bounds)
    : flag_(std::move(flag)), bounds_(bounds) {}

absl::StatusOr<std::unique_ptr<ConnectionGate>> ConnectionGate::Listen(const std::string& address,
                                                                       const std::string& flag,
                                                                       const ConnectionBounds& bounds) {
  auto gate = std::unique_ptr<ConnectionGate>(new ConnectionGate(flag, bounds));
  SLUICE_RETURN_IF_ERROR(gate->Bind(address));
  return gate;
}

absl::Status ConnectionGate::Bind(const std::string& address) {
  const auto cannot = [&](const char* why) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": ", why,
                     ": is the port taken, or the host not of this machine? Change ", flag_));
  };
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  stop_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event stop{.events = EPOLLIN, .data = {.fd = stop_}};
  if (epoll_ < 0 || stop_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, stop_, &stop) != 0)
    return cannot(std::strerror(errno));

  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  if (const int error = getaddrinfo(host.c_str(), "0", &hints, &found); error != 0)
    return cannot(gai_strerror(error));
  port_ = std::atoi(address.c_str() + colon + 1);
  absl::Status status;
  // A name may stand for an IPv4 and an IPv6 address: one port on both.
  for (const addrinfo* entry = found; entry != nullptr && status.ok(); entry = entry->ai_next) {
    auto* own = entry->ai_addr;
    (own->sa_family == AF_INET ? reinterpret_cast<sockaddr_in*>(own)->sin_port
                               : reinterpret_cast<sockaddr_in6*>(own)->sin6_port) =
        htons(static_cast<uint16_t>(port_));
    const int fd = socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
      if (errno != EAFNOSUPPORT) status = cannot(std::strerror(errno));
      continue;
    }
    listeners_.push_back(fd);
    Set(fd, SOL_SOCKET, SO_REUSEADDR);
    if (entry->ai_family == AF_INET6) Set(fd, IPPROTO_IPV6, IPV6_V6ONLY);
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    if (bind(fd, own, entry->ai_addrlen) != 0 || listen(fd, kBacklog) != 0 ||
        epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
      status = cannot(std::strerror(errno));
    } else {
      port_ = PortOf(fd);
    }
  }
  freeaddrinfo(found);
  if (status.ok() && listeners_.empty()) status = cannot("no address");
  return status;
}

ConnectionGate::~ConnectionGate() {
  Stop();
  for (const auto& [copy, host] : host_of_) close(copy);
  if (stop_ >= 0) close(stop_);
  if (epoll_ >= 0) close(epoll_);
}

void ConnectionGate::Start(Accepted accepted) {
  accepted_ = std::move(accepted);
  thread_ = NamedThread("accept", [this] { Run(); });
}

void ConnectionGate::Stop() {
  const uint64_t one = 1;
  if (write(stop_, &one, sizeof(one)) != sizeof(one)) return;  // it has been told
  thread_.Join();
  for (int fd : listeners_) close(fd);
  listeners_.clear();
}

void ConnectionGate::Run() {
  std::vector<epoll_event> events(256);
  while (true) {
    const int n = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < n; ++i) {
      const int fd = events[i].data.fd;
      if (fd == stop_) return;
      if (std::find(listeners_.begin(), listeners_.end(), fd) == listeners_.end()) {
        Ended(fd);
      } else {
        Accept(fd);
      }
    }
  }
}

void ConnectionGate::Accept(int listener) {
  while (true) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    const int fd =
        accept4(listener, reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      Refused("", std::strerror(errno));
      absl::SleepFor(kPause);  // connections wait in the backlog meanwhile
      return;
    }
    const std::string host = HostOf(address);
    auto of_host = of_host_.find(host);
    if (open_ >= bounds_.most || (bounds_.most_of_a_host > 0 && of_host != of_host_.end() &&
                                  of_host->second >= bounds_.most_of_a_host)) {
      close(fd);
      Refused(host, open_ >= bounds_.most ? "too many connections" : "too many connections of this host");
      continue;
    }
    const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    epoll_event event{.events = EPOLLRDHUP, .data = {.fd = copy}};
    if (copy < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, copy, &event) != 0) {
      Refused(host, std::strerror(errno));
      if (copy >= 0) close(copy);
      close(fd);
      continue;
    }
    host_of_[copy] = host;
    ++of_host_[host];
    ++open_;
    Set(fd, IPPROTO_TCP, TCP_NODELAY);
    accepted_(listener, fd);
  }
}

void ConnectionGate::Ended(int copy) {
  auto found = host_of_.find(copy);
  if (found == host_of_.end()) return;
  auto of_host = of_host_.find(found->second);
  if (--of_host->second == 0) of_host_.erase(of_host);
  host_of_.erase(found);
  close(copy);
  --open_;
}

void ConnectionGate::Refused(const std::string& host, const char* why) {
  ++refused_;
  const absl::Time now = absl::Now();
  if (now - told_ < kTell) return;
  told_ = now;
  spdlog::warn("connections refused count={} open={} last_host={} error=\"{}\" listener={}", refused_,
               open_.load(), host.empty() ? "-" : host, why, flag_);
  refused_ = 0;
}

}  // namespace sluice
