#include "tests/support/prometheus_server.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "tests/support/free_port.h"
#include "tests/support/patience.h"

namespace sluice {
namespace {

constexpr char kProgram[] = "/usr/bin/prometheus";

std::string UrlEncoded(const std::string& text) {
  std::string out;
  for (const unsigned char c : text) {
    if (absl::ascii_isalnum(c)) {
      out += static_cast<char>(c);
    } else {
      absl::StrAppendFormat(&out, "%%%02X", c);
    }
  }
  return out;
}

// The body of the answer to a GET; empty: none.
std::string HttpBody(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: localhost\r\n\r\n");
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
    std::array<char, 1 << 14> chunk;
    for (ssize_t n; (n = read(fd, chunk.data(), chunk.size())) > 0;) answer.append(chunk.data(), n);
  }
  close(fd);
  const size_t head = answer.find("\r\n\r\n");
  return head == std::string::npos ? "" : answer.substr(head + 4);
}

std::string ReadFile(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string Config(const std::vector<ScrapeTarget>& targets, const std::vector<std::string>& rule_files) {
  std::string config =
      "global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 1s}\nrule_files:\n";
  for (const std::string& file : rule_files) absl::StrAppend(&config, "  - ", file, "\n");
  absl::StrAppend(&config, "scrape_configs:\n");
  for (const ScrapeTarget& target : targets) {
    absl::StrAppend(&config, "  - {job_name: ", target.job,
                    ", static_configs: [{targets: [\"127.0.0.1:", target.port, "\"]}]}\n");
  }
  return config;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PrometheusServer>> PrometheusServer::Start(
    const std::vector<ScrapeTarget>& targets, const std::vector<std::string>& rule_files) {
  if (access(kProgram, X_OK) != 0)
    return absl::NotFoundError("no Prometheus here: bash deploy/install_packages.sh --tests installs it");
  std::unique_ptr<PrometheusServer> server(new PrometheusServer);
  const std::string& directory = server->directory_.path();
  const std::string config = server->directory_.Write("prometheus.yml", Config(targets, rule_files));
  const std::string log = directory + "/log";
  server->port_ = FreePort();
  std::vector<std::string> arguments = {
      kProgram, "--config.file=" + config, "--storage.tsdb.path=" + directory + "/data",
      absl::StrCat("--web.listen-address=127.0.0.1:", server->port_), "--log.level=warn"};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  server->pid_ = fork();
  if (server->pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, 1);
    dup2(fd, 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
  const absl::Time deadline = absl::Now() + kPatience * absl::Seconds(30);
  while (HttpBody(server->port_, "/-/ready").find("Ready") == std::string::npos) {
    int status = 0;
    if (waitpid(server->pid_, &status, WNOHANG) == server->pid_) server->pid_ = -1;
    if (server->pid_ < 0 || absl::Now() > deadline)
      return absl::UnavailableError("Prometheus does not come up: " + ReadFile(log));
    absl::SleepFor(absl::Milliseconds(50));
  }
  return server;
}

PrometheusServer::~PrometheusServer() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);  // its data goes with it
  waitpid(pid_, nullptr, 0);
}

absl::StatusOr<nlohmann::json> PrometheusServer::Get(const std::string& path) const {
  const nlohmann::json answer = nlohmann::json::parse(HttpBody(port_, path), nullptr, false);
  if (answer.is_discarded()) return absl::UnavailableError(absl::StrCat("no answer to ", path));
  if (answer.value("status", "") != "success")
    return absl::InvalidArgumentError(answer.value("error", answer.dump()));
  return answer["data"];
}

absl::StatusOr<std::vector<PromSample>> PrometheusServer::Query(const std::string& expression,
                                                                absl::Time at) const {
  const absl::StatusOr<nlohmann::json> data =
      Get(absl::StrCat("/api/v1/query?query=", UrlEncoded(expression),
                       absl::StrFormat("&time=%.3f", absl::ToDoubleSeconds(at - absl::UnixEpoch()))));
  if (!data.ok()) return data.status();
  std::vector<PromSample> samples;
  const auto value = [](const nlohmann::json& pair) {
    return std::strtod(pair[1].get<std::string>().c_str(), nullptr);
  };
  if ((*data)["resultType"] == "scalar")
    return std::vector<PromSample>{PromSample{nlohmann::json::object(), value((*data)["result"])}};
  for (const nlohmann::json& one : (*data)["result"]) samples.push_back({one["metric"], value(one["value"])});
  return samples;
}

PromtoolRun Promtool(const std::string& arguments, const std::string& input) {
  const TempDir directory;
  const std::string command = absl::StrCat("promtool ", arguments, " < ", directory.Write("in", input), " > ",
                                           directory.path(), "/out 2>&1");
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadFile(directory.path() + "/out")};
}

}  // namespace sluice
