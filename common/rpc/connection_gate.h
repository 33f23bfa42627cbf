// Role: accepts the connections of one listener, up to a bound in all and a bound from one host, and hands
// them on. Why: gRPC 1.51 has no such bounds, and once the process has no file left for a connection it never
// accepts one again. A connection is counted on a copy of its descriptor, which sees its end at either side:
// each costs two files. Threads: one of its own ("accept").
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/thread.h"

namespace sluice {

struct ConnectionBounds {
  int most = 4096;
  int most_of_a_host = 0;  // 0: no bound of its own
};

// Raises the process's bound on open files to the most it may have; what that is.
int RaiseFileLimit();

class ConnectionGate {
 public:
  // Takes over the descriptor, non-blocking.
  using Accepted = std::function<void(int listener_fd, int fd)>;

  // address: host:port; port 0 takes a free one. Unavailable names the flag.
  static absl::StatusOr<std::unique_ptr<ConnectionGate>> Listen(const std::string& address,
                                                                const std::string& flag,
                                                                const ConnectionBounds& bounds);
  ~ConnectionGate();

  int port() const { return port_; }
  // Once.
  void Start(Accepted accepted);
  // No new connections, the port is free; `accepted` is not called any more. Idempotent.
  void Stop();

  int open() const { return open_; }

 private:
  explicit ConnectionGate(std::string flag, const ConnectionBounds& bounds);
  absl::Status Bind(const std::string& address);
  void Run();
  void Accept(int listener);
  void Ended(int copy);
  void Refused(const std::string& host, const char* why);

  const std::string flag_;
  const ConnectionBounds bounds_;
  int port_ = 0;
  int epoll_ = -1, stop_ = -1;
  std::vector<int> listeners_;
  Accepted accepted_;
  // Of the thread.
  std::map<int, std::string> host_of_;  // by copy
  std::map<std::string, int> of_host_;
  int refused_ = 0;  // since the last line of the log
  absl::Time told_ = absl::InfinitePast();
  std::atomic<int> open_{0};
  NamedThread thread_;
};

}  // namespace sluice
