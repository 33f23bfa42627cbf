#include "tests/router/http/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "tests/support/patience.h"

namespace sluice {

std::vector<nlohmann::json> HttpAnswer::events() const {
  std::vector<nlohmann::json> out;
  for (absl::string_view event : absl::StrSplit(body, "\n\n", absl::SkipEmpty())) {
    SLUICE_CHECK(event.substr(0, 6) == "data: ");
    const std::string data(event.substr(6));
    out.push_back(data == "[DONE]" ? nlohmann::json(data) : nlohmann::json::parse(data));
  }
  return out;
}

HttpClient::HttpClient(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  SLUICE_CHECK(fd_ >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  SLUICE_CHECK(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
}

HttpClient::~HttpClient() { Close(); }

void HttpClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

bool HttpClient::Send(const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += static_cast<size_t>(n);
  }
  return true;
}

bool HttpClient::Fill(absl::Duration patience) {
  pollfd readable = {fd_, POLLIN, 0};
  if (poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience * patience))) <= 0)
    return false;
  char buffer[16384];
  const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
  if (n <= 0) return false;
  seen_.append(buffer, static_cast<size_t>(n));
  return true;
}

bool HttpClient::ReadUntil(const std::string& text) {
  while (seen_.find(text) == std::string::npos) {
    if (!Fill()) return false;
  }
  return true;
}

bool HttpClient::ServerCloses(absl::Duration within) {
  const absl::Time until = absl::Now() + kPatience * within;
  while (absl::Now() < until) {
    pollfd readable = {fd_, POLLIN, 0};
    if (poll(&readable, 1, 20) <= 0) continue;
    char buffer[16384];
    if (recv(fd_, buffer, sizeof(buffer), 0) <= 0) return true;
  }
  return false;
}

std::optional<HttpAnswer> HttpClient::Read(bool to_head) {
  if (!ReadUntil("\r\n\r\n")) return std::nullopt;
  HttpAnswer answer;
  const size_t head = seen_.find("\r\n\r\n");
  const std::vector<std::string> lines = absl::StrSplit(seen_.substr(0, head), "\r\n");
  answer.code = std::stoi(lines[0].substr(9, 3));
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::pair<std::string, std::string> field = absl::StrSplit(lines[i], absl::MaxSplits(": ", 1));
    answer.headers[absl::AsciiStrToLower(field.first)] = field.second;
  }
  seen_.erase(0, head + 4);
  if (to_head) return answer;
  if (answer.headers.count("content-length") > 0) {
    const size_t length = std::stoul(answer.headers["content-length"]);
    while (seen_.size() < length) {
      if (!Fill()) return std::nullopt;
    }
    answer.body = seen_.substr(0, length);
    seen_.erase(0, length);
    return answer;
  }
  if (answer.headers.count("transfer-encoding") == 0) {
    while (Fill()) {
    }
    answer.body = std::move(seen_);
    return answer;
  }
  while (true) {
    size_t line;
    while ((line = seen_.find("\r\n")) == std::string::npos) {
      if (!Fill()) return std::nullopt;
    }
    const size_t size = std::stoul(seen_.substr(0, line), nullptr, 16);
    while (seen_.size() < line + 2 + size + 2) {
      if (!Fill()) return std::nullopt;
    }
    answer.body += seen_.substr(line + 2, size);
    seen_.erase(0, line + 2 + size + 2);
    if (size == 0) return answer;
  }
}

std::string GetText(const std::string& path, const std::string& headers) {
  return absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: test\r\n", headers, "\r\n");
}

std::string PostText(const std::string& path, const std::string& body, const std::string& headers) {
  return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n", headers,
                      "Content-Length: ", body.size(), "\r\n\r\n", body);
}

}  // namespace sluice
