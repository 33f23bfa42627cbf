// Role: a PostgreSQL of the test's own, in a temporary directory, on a free port of the loopback interface:
// started, stopped, killed, started again. Runs as another user where the test is root, as PostgreSQL refuses
// to be. Threads: one caller.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

class PostgresServer {
 public:
  // NotFound: PostgreSQL is not installed here; the text says how to.
  static absl::StatusOr<std::unique_ptr<PostgresServer>> Start();
  ~PostgresServer();

  // An empty schema of its own inside the one database.
  std::string FreshUri();

  // SIGINT: ends transactions and connections. SIGKILL reaches its children by themselves: they see the end.
  void Stop(int signal);
  absl::Status StartAgain();

 private:
  PostgresServer() = default;
  absl::Status Launch();

  std::string programs_, directory_;
  int port_ = 0;
  int schemas_ = 0;
  pid_t pid_ = -1;
};

}  // namespace sluice
