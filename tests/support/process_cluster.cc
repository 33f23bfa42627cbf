#include "tests/support/process_cluster.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/random_id.h"
#include "common/base/status.h"

namespace sluice {
namespace {

// -1: nothing listens there.
int Dial(int port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  SLUICE_CHECK(fd >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

std::string At(int port) { return absl::StrCat("127.0.0.1:", port); }

// A router that has just started is found at once.
std::shared_ptr<grpc::Channel> ChannelTo(int port, const Tls* tls) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  return OpenChannel(At(port), tls, std::move(arguments));
}

}  // namespace

std::string ServerPath(const std::string& role) { return absl::StrCat(SLUICE_BIN_DIR, "/sluice-", role); }

absl::StatusOr<double> MetricValue(const std::string& text, const std::string& name,
                                   const std::vector<std::string>& labels) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, name) || line.size() <= name.size()) continue;
    if (line[name.size()] != '{' && line[name.size()] != ' ') continue;
    bool all = true;
    for (const std::string& label : labels) all = all && absl::StrContains(line, label);
    double value = 0;
    if (all && absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) return value;
  }
  return absl::NotFoundError(absl::StrCat("no series ", name));
}

absl::StatusOr<std::string> ScrapeMetrics(int port) {
  int fd = Dial(port);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("nothing listens on ", port));
  const std::string request = "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
  std::string text;
  if (write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
    char buffer[16384];
    for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  return text;
}

ProcessCluster::ProcessCluster(const Options& options) : admin_key_(options.admin_key) {
  directory_ =
      (std::filesystem::temp_directory_path() / absl::StrCat("sluice-test-", RandomId128())).string();
  std::filesystem::create_directories(directory_);
  const std::string model = absl::StrCat(SLUICE_SOURCE_DIR, "/", options.model);
  const std::string stop = absl::StrCat(options.stop_seconds);
  auto add = [&](const std::string& name, std::vector<std::string> command,
                 const std::vector<std::string>& flags) {
    Process process;
    process.metrics_port = FreePort();
    command.insert(command.end(), {"--model", model, "--metrics-listen", At(process.metrics_port)});
    command.insert(command.end(), flags.begin(), flags.end());
    process.command = std::move(command);
    processes_[name] = std::move(process);
    Start(name);
  };
  std::string internals;
  for (int i = 0; i < options.routers; ++i) {
    Router router;
    router.process = i == 0 ? "router" : absl::StrCat("router", i);
    const int port = FreePort(), internal = FreePort(), admin = FreePort();
    router.address = At(port);
    router.internal_address = At(internal);
    router.channel = ChannelTo(port, options.tls.get());
    router.inference = v1::Inference::NewStub(router.channel);
    router.sessions = v1::Sessions::NewStub(router.channel);
    router.models = v1::Models::NewStub(router.channel);
    router.admin = v1::Admin::NewStub(ChannelTo(admin, options.tls.get()));
    absl::StrAppend(&internals, i == 0 ? "" : ",", At(internal));
    add(router.process,
        {ServerPath("router"), "--listen", At(port), "--internal-listen", At(internal), "--admin-listen",
         At(admin), "--sessions-db", options.sessions.empty() ? sessions_db() : options.sessions,
         "--stop-timeout", stop},
        options.router_flags);
    routers_.push_back(std::move(router));
  }
  for (const char* role : {"prefill", "decode"}) {
    const int n = role[0] == 'p' ? options.prefill : options.decode;
    for (int i = 0; i < n; ++i) {
      const std::string name = absl::StrCat(role, i);
      std::vector<std::string> flags = options.worker_flags;
      const std::vector<std::string>& own = role[0] == 'p' ? options.prefill_flags : options.decode_flags;
      flags.insert(flags.end(), own.begin(), own.end());
      add(name,
          {ServerPath(role), "--router", internals, "--name", name, "--threads", "1", "--stop-timeout", stop},
          flags);
    }
  }
}

ProcessCluster::~ProcessCluster() {
  for (auto& [name, process] : processes_) {
    if (process.pid > 0) kill(process.pid, SIGTERM);
  }
  const absl::Time deadline = absl::Now() + kPatience * absl::Seconds(5);
  for (auto& [name, process] : processes_) {
    while (process.pid > 0 && Alive(name)) {
      if (absl::Now() > deadline) kill(process.pid, SIGKILL);
      absl::SleepFor(absl::Milliseconds(10));
    }
    const int by = WIFSIGNALED(process.wait_status) ? WTERMSIG(process.wait_status) : 0;
    EXPECT_TRUE(by == 0 || by == SIGTERM || by == SIGKILL)
        << name << " crashed when it was stopped: signal " << by;
  }
  std::filesystem::remove_all(directory_);
}

void ProcessCluster::Start(const std::string& name) {
  Process& process = processes_.at(name);
  SLUICE_CHECK(process.pid < 0);
  const std::string log = absl::StrCat(directory_, "/", name, ".log");
  std::vector<char*> argv;
  for (std::string& argument : process.command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  process.pid = fork();
  if (process.pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, 1);
    dup2(fd, 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
}

bool ProcessCluster::Alive(const std::string& name) {
  Process& process = processes_.at(name);
  if (process.pid > 0 && waitpid(process.pid, &process.wait_status, WNOHANG) == process.pid) process.pid = -1;
  return process.pid > 0;
}

void ProcessCluster::Kill(const std::string& name, int signal) {
  Process& process = processes_.at(name);
  kill(process.pid, signal);
  waitpid(process.pid, nullptr, 0);
  process.pid = -1;
}

void ProcessCluster::Signal(const std::string& name, int signal) {
  const Process& process = processes_.at(name);
  SLUICE_CHECK(process.pid > 0);
  kill(process.pid, signal);
}

bool ProcessCluster::WaitReady(absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  while (absl::Now() < end) {
    int live = 0, ready = 0, routers = 0;
    for (auto& [name, process] : processes_) live += !absl::StartsWith(name, "router") && Alive(name);
    for (Router& router : routers_) {
      if (!Alive(router.process)) continue;
      ++routers;
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(1)));
      // Between calls that fail at once nobody would drive the connection for gRPC's 5 s.
      context.set_wait_for_ready(true);
      if (!admin_key_.empty()) context.AddMetadata("authorization", "Bearer " + admin_key_);
      v1::ListWorkersResponse workers;
      if (!router.admin->ListWorkers(&context, {}, &workers).ok()) continue;
      for (const v1::Worker& worker : workers.workers()) ready += worker.state() == "ready";
    }
    if (routers > 0 && ready == live * routers) return true;
    absl::SleepFor(absl::Milliseconds(50));
  }
  return false;
}

double ProcessCluster::Metric(const std::string& process, const std::string& name,
                              const std::vector<std::string>& labels) {
  absl::StatusOr<std::string> text = ScrapeMetrics(metrics_port(process));
  absl::StatusOr<double> value = text.ok() ? MetricValue(*text, name, labels) : text.status();
  return value.ok() ? *value : -1;
}

bool ProcessCluster::WaitPagesFree(const std::string& decode, absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  while (absl::Now() < end) {
    if (Metric(decode, "sluice_kv_blocks", {"state=\"active\""}) == 0 &&
        Metric(decode, "sluice_kv_blocks", {"state=\"leased\""}) == 0 &&
        Metric(decode, "sluice_kv_blocks", {"state=\"orphaned\""}) == 0) {
      return true;
    }
    absl::SleepFor(absl::Milliseconds(50));
  }
  return false;
}

std::string ProcessCluster::Logs() const {
  std::string all;
  for (const auto& [name, process] : processes_) {
    std::ifstream file(absl::StrCat(directory_, "/", name, ".log"));
    std::stringstream text;
    text << file.rdbuf();
    absl::StrAppend(&all, "--- ", name, "\n", text.str());
  }
  return all;
}

}  // namespace sluice
