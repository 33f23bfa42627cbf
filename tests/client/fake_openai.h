// Role: an endpoint of OpenAI's chat protocol with made-up answers, on a real port, over plain sockets: what
// a client gets is written here byte by byte. Threads: one a connection; the test's own for what it reads and
// sets.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace sluice {

struct HttpSeen {
  std::string method, path;
  std::map<std::string, std::string> headers;  // names in lower case
  nlohmann::json body;
};

class FakeOpenAi {
 public:
  FakeOpenAi();
  ~FakeOpenAi();

  std::string url() const;  // with /v1

  // The next chats: this answer with this code, instead of a stream.
  void AnswerWith(int code, std::string body);
  // The next chats stream these lines, chunked, and end.
  void StreamWith(std::vector<std::string> events, bool end_chunk = true);
  // The next chats send one token and then wait until the client hangs up.
  void Hang();

  std::vector<HttpSeen> chats() const;
  std::vector<HttpSeen> lists() const;
  int hung_up() const;

 private:
  void Accept();
  void Serve(int fd);
  std::vector<std::string> Events(const nlohmann::json& request) const;

  int listen_fd_ = -1, port_ = 0;
  mutable Mutex mu_;
  int code_ ABSL_GUARDED_BY(mu_) = 200;
  std::string body_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> script_ ABSL_GUARDED_BY(mu_);
  bool end_chunk_ ABSL_GUARDED_BY(mu_) = true, hang_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  int hung_up_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<HttpSeen> chats_ ABSL_GUARDED_BY(mu_), lists_ ABSL_GUARDED_BY(mu_);
  std::vector<int> fds_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> serving_ ABSL_GUARDED_BY(mu_);
  std::thread accepting_;
};

}  // namespace sluice
