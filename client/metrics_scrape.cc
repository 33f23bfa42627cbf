#include "client/metrics_scrape.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace sluice {
namespace {

constexpr size_t kMaxBytes = 4 << 20;

// -1: nobody answers there. Sends and receives on it end after `timeout`, too.
int Dial(const std::string& address, absl::Duration timeout) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return -1;
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found) != 0) return -1;
  const timeval limit = absl::ToTimeval(timeout);
  int fd = -1;
  for (const addrinfo* one = found; one != nullptr && fd < 0; one = one->ai_next) {
    fd = socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));  // of connect, too
    if (connect(fd, one->ai_addr, one->ai_addrlen) == 0) break;
    close(fd);
    fd = -1;
  }
  freeaddrinfo(found);
  return fd;
}

}  // namespace

std::optional<double> FindMetric(absl::string_view text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, name)) continue;
    const char next = line.size() > name.size() ? line[name.size()] : '\0';
    if (next != '{' && next != ' ') continue;  // a longer name
    // Label values may hold spaces; the value follows the last one. We write no timestamps.
    double value = 0;
    if (absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) return value;
  }
  return std::nullopt;
}

std::optional<std::string> ScrapeMetrics(const std::string& address, absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  const int fd = Dial(address, timeout);
  if (fd < 0) return std::nullopt;
  constexpr absl::string_view kRequest =
      "GET /metrics HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  std::optional<std::string> reply;
  if (send(fd, kRequest.data(), kRequest.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(kRequest.size())) {
    std::string bytes;
    char chunk[1 << 14];
    ssize_t count = 0;
    while (bytes.size() < kMaxBytes && absl::Now() < end && (count = recv(fd, chunk, sizeof(chunk), 0)) > 0) {
      bytes.append(chunk, count);
    }
    if (count == 0) reply = std::move(bytes);
  }
  close(fd);
  return reply;
}

}  // namespace sluice
