#include "tests/support/postgres_server.h"

#include <fcntl.h>
#include <grp.h>
#include <libpq-fe.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/random_id.h"
#include "common/base/status.h"
#include "tests/support/free_port.h"
#include "tests/support/patience.h"

namespace sluice {
namespace {

constexpr char kUser[] = "sluice";
constexpr absl::Duration kStart = absl::Seconds(20);

// Debian's place, newest version first.
absl::StatusOr<std::string> FindPrograms() {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/usr/lib/postgresql", ignored)) {
    const std::string bin = entry.path().string() + "/bin";
    if (access((bin + "/postgres").c_str(), X_OK) == 0 && access((bin + "/initdb").c_str(), X_OK) == 0) {
      found.push_back(bin);
    }
  }
  if (!found.empty()) return *std::max_element(found.begin(), found.end());
  return absl::NotFoundError("no PostgreSQL server here; install Debian's package postgresql");
}

// In a child of fork: only what is safe between fork and exec.
void BecomeOrdinaryUser(const passwd* user) {
  if (user == nullptr) return;
  if (setgroups(0, nullptr) != 0 || setgid(user->pw_gid) != 0 || setuid(user->pw_uid) != 0) _exit(126);
}

const passwd* OrdinaryUser() {
  if (geteuid() != 0) return nullptr;
  const passwd* user = getpwnam("postgres");
  return user != nullptr ? user : getpwnam("nobody");
}

pid_t Spawn(std::vector<std::string> command, const std::string& log) {
  std::vector<char*> argv;
  for (std::string& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const passwd* user = OrdinaryUser();
  const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const pid_t pid = fork();
  if (pid == 0) {
    BecomeOrdinaryUser(user);
    prctl(PR_SET_PDEATHSIG, SIGQUIT);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    dup2(fd, 1);
    dup2(fd, 2);
    if (chdir("/") != 0) _exit(126);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(fd);
  return pid;
}

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

absl::Status RunSql(const std::string& uri, const std::string& sql) {
  PGconn* connection = PQconnectdb(uri.c_str());
  absl::Status status;
  if (PQstatus(connection) != CONNECTION_OK) {
    status = absl::UnavailableError(PQerrorMessage(connection));
  } else if (!sql.empty()) {
    PGresult* result = PQexec(connection, sql.c_str());
    if (PQresultStatus(result) != PGRES_COMMAND_OK) status = absl::InternalError(PQerrorMessage(connection));
    PQclear(result);
  }
  PQfinish(connection);
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PostgresServer>> PostgresServer::Start() {
  auto server = std::unique_ptr<PostgresServer>(new PostgresServer());
  SLUICE_ASSIGN_OR_RETURN(server->programs_, FindPrograms());
  namespace fs = std::filesystem;
  server->directory_ = (fs::temp_directory_path() / absl::StrCat("sluice-postgres-", RandomId128())).string();
  fs::create_directory(server->directory_);
  if (const passwd* user = OrdinaryUser()) {
    SLUICE_CHECK(chown(server->directory_.c_str(), user->pw_uid, user->pw_gid) == 0);
  }
  server->port_ = FreePort();
  const std::string log = server->directory_ + "/initdb.log";
  const pid_t init = Spawn({server->programs_ + "/initdb", "-D", server->directory_ + "/data", "-U", kUser,
                            "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"},
                           log);
  int status = 0;
  waitpid(init, &status, 0);
  if (status != 0) return absl::InternalError(absl::StrCat("initdb: ", Read(log)));
  SLUICE_RETURN_IF_ERROR(server->Launch());
  return server;
}

absl::Status PostgresServer::Launch() {
  const std::string log = directory_ + "/postgres.log";
  // No fsync: the machine does not go down in a test, only processes do.
  pid_ = Spawn(
      {programs_ + "/postgres", "-D", directory_ + "/data", "-h", "127.0.0.1", "-p", absl::StrCat(port_),
       "-k", "", "-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_connections=40", "-c", "jit=off"},
      log);
  const absl::Time until = absl::Now() + kPatience * kStart;
  absl::Status status;
  do {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = -1;
      return absl::InternalError(absl::StrCat("postgres ended: ", Read(log)));
    }
    status = RunSql(absl::StrCat("postgresql://", kUser, "@127.0.0.1:", port_, "/postgres"), "");
    if (status.ok()) return status;
    absl::SleepFor(absl::Milliseconds(20));
  } while (absl::Now() < until);
  return status;
}

absl::Status PostgresServer::StartAgain() {
  SLUICE_CHECK(pid_ < 0);
  return Launch();
}

void PostgresServer::Stop(int signal) {
  if (pid_ < 0) return;
  kill(pid_, signal);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

PostgresServer::~PostgresServer() {
  Stop(SIGQUIT);
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

std::string PostgresServer::FreshUri() {
  const std::string uri = absl::StrCat("postgresql://", kUser, "@127.0.0.1:", port_, "/postgres");
  const std::string schema = absl::StrCat("t", ++schemas_);
  const absl::Status made = RunSql(uri, absl::StrCat("CREATE SCHEMA ", schema));
  SLUICE_CHECK(made.ok());
  return absl::StrCat(uri, "?options=-csearch_path%3D", schema);
}

}  // namespace sluice
