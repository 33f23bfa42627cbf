// Role: an HTTP client that a test drives byte by byte: it can stop in the middle, send rubbish, read slowly.
// Threads: one.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace sluice {

struct HttpAnswer {
  int code = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without its chunks' frames

  nlohmann::json json() const { return nlohmann::json::parse(body); }
  // The data of the events of a stream, in order; "[DONE]" as a string.
  std::vector<nlohmann::json> events() const;
};

class HttpClient {
 public:
  explicit HttpClient(int port);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;

  // False: the server has closed.
  bool Send(const std::string& bytes);
  // The next answer; nullopt: the server closed before its end, or 20 s passed.
  std::optional<HttpAnswer> Read(bool to_head = false);
  // Until what was read holds `text`.
  bool ReadUntil(const std::string& text);
  // Whether the server closes within the time.
  bool ServerCloses(absl::Duration within = absl::Seconds(20));
  void Close();
  int fd() const { return fd_; }

 private:
  bool Fill(absl::Duration patience = absl::Seconds(20));
  int fd_;
  std::string seen_;
};

std::string GetText(const std::string& path, const std::string& headers = "");
std::string PostText(const std::string& path, const std::string& body, const std::string& headers = "");

}  // namespace sluice
