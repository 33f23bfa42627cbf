#include "tests/client/fake_openai.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace sluice {
namespace {

using nlohmann::json;

bool Write(int fd, const std::string& text) {
  return send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

bool WriteChunk(int fd, const std::string& text) {
  return Write(fd, absl::StrFormat("%x\r\n%s\r\n", text.size(), text));
}

std::string Event(const json& chunk) { return absl::StrCat("data: ", chunk.dump(), "\n\n"); }

json Delta(const json& delta) {
  return {{"object", "chat.completion.chunk"}, {"choices", json::array({{{"index", 0}, {"delta", delta}}})}};
}

int WordsOf(const json& request) {
  int words = 0;
  for (const json& message : request["messages"]) {
    const std::string text = message["content"];
    words += static_cast<int>(std::count(text.begin(), text.end(), ' ')) + 1;
  }
  return words;
}

}  // namespace

FakeOpenAi::FakeOpenAi() {
  listen_fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  SLUICE_CHECK(bind(listen_fd_, reinterpret_cast<sockaddr*>(&address), size) == 0);
  SLUICE_CHECK(listen(listen_fd_, 64) == 0);
  SLUICE_CHECK(getsockname(listen_fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  accepting_ = std::thread([this] { Accept(); });
}

FakeOpenAi::~FakeOpenAi() {
  {
    MutexLock lock(&mu_);
    over_ = true;
    for (const int fd : fds_) shutdown(fd, SHUT_RDWR);
  }
  shutdown(listen_fd_, SHUT_RDWR);
  accepting_.join();
  close(listen_fd_);
  std::vector<std::thread> serving;
  {
    MutexLock lock(&mu_);
    serving = std::move(serving_);
  }
  for (std::thread& thread : serving) thread.join();
  MutexLock lock(&mu_);
  for (const int fd : fds_) close(fd);
}

std::string FakeOpenAi::url() const { return absl::StrCat("http://127.0.0.1:", port_, "/v1"); }

void FakeOpenAi::AnswerWith(int code, std::string body) {
  MutexLock lock(&mu_);
  code_ = code;
  body_ = std::move(body);
}

void FakeOpenAi::StreamWith(std::vector<std::string> events, bool end_chunk) {
  MutexLock lock(&mu_);
  code_ = 200;
  script_ = std::move(events);
  end_chunk_ = end_chunk;
}

void FakeOpenAi::Hang() {
  MutexLock lock(&mu_);
  hang_ = true;
}

std::vector<HttpSeen> FakeOpenAi::chats() const {
  MutexLock lock(&mu_);
  return chats_;
}

std::vector<HttpSeen> FakeOpenAi::lists() const {
  MutexLock lock(&mu_);
  return lists_;
}

int FakeOpenAi::hung_up() const {
  MutexLock lock(&mu_);
  return hung_up_;
}

void FakeOpenAi::Accept() {
  while (true) {
    const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC);
    MutexLock lock(&mu_);
    if (fd < 0 || over_) {
      if (fd >= 0) close(fd);
      return;
    }
    fds_.push_back(fd);
    serving_.emplace_back([this, fd] {
      Serve(fd);
      shutdown(fd, SHUT_RDWR);
    });
  }
}

// "Hello world" in two events, then the usage: ten tokens around the words of the prompt.
std::vector<std::string> FakeOpenAi::Events(const json& request) const {
  const int words = WordsOf(request);
  return {Event(Delta({{"role", "assistant"}, {"content", ""}})),
          ": a comment\n\n",
          Event(Delta({{"content", "Hello"}})),
          Event(Delta({{"content", " world"}})),
          Event({{"choices", json::array()},
                 {"usage",
                  {{"prompt_tokens", words + 10},
                   {"completion_tokens", 5},
                   {"prompt_tokens_details", {{"cached_tokens", 4}}}}}}),
          "data: [DONE]\n\n"};
}

void FakeOpenAi::Serve(int fd) {
  std::string text;
  char buffer[4096];
  const auto more = [&] {
    const ssize_t n = recv(fd, buffer, sizeof(buffer), 0);
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
    return n > 0;
  };
  while (text.find("\r\n\r\n") == std::string::npos) {
    if (!more()) return;
  }
  HttpSeen seen;
  const size_t head = text.find("\r\n\r\n");
  const std::vector<std::string> lines = absl::StrSplit(text.substr(0, head), "\r\n");
  const std::vector<std::string> first = absl::StrSplit(lines[0], ' ');
  seen.method = first[0];
  seen.path = first[1];
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::pair<std::string, std::string> header = absl::StrSplit(lines[i], absl::MaxSplits(": ", 1));
    seen.headers[absl::AsciiStrToLower(header.first)] = header.second;
  }
  size_t length = 0;
  if (seen.headers.contains("content-length")) {
    SLUICE_CHECK(absl::SimpleAtoi(seen.headers["content-length"], &length));
  }
  while (text.size() < head + 4 + length) {
    if (!more()) return;
  }
  seen.body = json::parse(text.substr(head + 4), nullptr, false);

  int code = 200;
  std::string body;
  std::vector<std::string> script;
  bool end_chunk = true, hang = false;
  const bool list = seen.method == "GET";
  {
    MutexLock lock(&mu_);
    if (!list) {
      code = code_;
      body = body_;
      script = script_;
      end_chunk = end_chunk_;
      hang = hang_;
    }
    (list ? lists_ : chats_).push_back(seen);
  }
  if (list) {
    body = json{{"data",
                 json::array({{{"id", "first-model"}, {"max_model_len", 5000}}, {{"id", "second-model"}}})}}
               .dump();
  }
  if (list || code != 200) {
    Write(fd, absl::StrCat("HTTP/1.1 ", code, " Said\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
    return;
  }
  if (!Write(fd,
             "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")) {
    return;
  }
  if (hang) {
    WriteChunk(fd, Event(Delta({{"content", "Hello"}})));
    while (more()) {
    }
    MutexLock lock(&mu_);
    hung_up_ += !over_;
    return;
  }
  if (script.empty()) script = Events(seen.body);
  for (const std::string& event : script) {
    if (!WriteChunk(fd, event)) return;
  }
  if (end_chunk) Write(fd, "0\r\n\r\n");
}

}  // namespace sluice
