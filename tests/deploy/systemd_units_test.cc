// The systemd units of deploy/, run as systemd would run them: their ExecStart lines under their own
// environment, which the files of /etc/sluice fill. Only /etc/sluice, /var/lib/sluice and /usr/bin lie
// elsewhere.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "sluice/v1/admin.grpc.pb.h"
#include "sluice/v1/inference.grpc.pb.h"
#include "sluice/v1/sessions.grpc.pb.h"
#include "tests/support/free_port.h"
#include "tests/support/long_document.h"
#include "tests/support/patience.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

struct Unit {
  std::map<std::string, std::string> environment;
  std::vector<std::string> exec_start;
  int stop_seconds = 0;  // TimeoutStopSec
};

// What systemd makes of `file` for an instance; `places` are where its folders lie in this test.
Unit ReadUnit(const std::string& file, const std::string& instance,
              const std::vector<std::pair<std::string, std::string>>& places) {
  Unit unit;
  const std::string text = ReadAll(SLUICE_SOURCE_DIR "/deploy/systemd/" + file);
  EXPECT_FALSE(text.empty()) << file;
  const auto assign = [&unit](absl::string_view line) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(line, absl::MaxSplits('=', 1));
    unit.environment[pair.first] = pair.second;
  };
  std::vector<std::string> files;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<std::string, std::string> setting = absl::StrSplit(line, absl::MaxSplits('=', 1));
    std::string value = absl::StrReplaceAll(setting.second, {{"%i", instance}});
    value = absl::StrReplaceAll(value, places);
    if (setting.first == "Environment") assign(value);
    if (setting.first == "EnvironmentFile") files.push_back(value);
    if (setting.first == "ExecStart") unit.exec_start = absl::StrSplit(value, ' ', absl::SkipEmpty());
    if (setting.first == "TimeoutStopSec") {
      EXPECT_TRUE(absl::SimpleAtoi(value, &unit.stop_seconds));
    }
  }
  // Their lines go before those of Environment=; a dash in front: the file may be missing.
  for (const std::string& name : files) {
    EXPECT_TRUE(absl::StartsWith(name, "-")) << name;
    for (absl::string_view line : absl::StrSplit(ReadAll(name.substr(1)), '\n', absl::SkipEmpty()))
      assign(line);
  }
  return unit;
}

class SystemdUnits : public testing::Test {
 protected:
  ~SystemdUnits() override {
    for (const auto& [name, pid] : running_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    if (HasFailure()) {
      for (const auto& each : std::filesystem::directory_iterator(dir_.path() + "/log")) {
        std::fprintf(stderr, "--- %s\n%s", each.path().c_str(), ReadAll(each.path()).c_str());
      }
    }
  }

  void SetUp() override {
    for (const char* folder : {"/etc/sluice", "/var/lib/sluice", "/log"}) {
      std::filesystem::create_directories(dir_.path() + folder);
    }
    // The file that is shipped, with a model for all.
    dir_.Write("etc/sluice/sluice.toml",
               absl::StrReplaceAll(
                   ReadAll(SLUICE_SOURCE_DIR "/deploy/sluice.toml"),
                   {{"# model = \"/models/model\"", "model = \"" SLUICE_SOURCE_DIR "/models/needle-14m\""}}));
  }

  std::string At(int port) const { return absl::StrCat("127.0.0.1:", port); }

  Unit Start(const std::string& name, const std::string& file, const std::string& instance,
             const std::string& env) {
    if (!env.empty()) dir_.Write(absl::StrCat("etc/sluice/", name, ".env"), env);
    const Unit unit = ReadUnit(file, instance,
                               {{"/etc/sluice", dir_.path() + "/etc/sluice"},
                                {"/var/lib/sluice", dir_.path() + "/var/lib/sluice"},
                                {"/usr/bin", SLUICE_BIN_DIR}});
    std::vector<std::string> environment;
    for (const auto& [key, value] : unit.environment) environment.push_back(absl::StrCat(key, "=", value));
    std::vector<std::string> arguments = unit.exec_start;
    std::vector<char*> argv, envp;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    for (std::string& variable : environment) envp.push_back(variable.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    const std::string log = absl::StrCat(dir_.path(), "/log/", name);
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      dup2(fd, 1);
      dup2(fd, 2);
      if (chdir("/") != 0) _exit(126);  // as under systemd
      execve(argv[0], argv.data(), envp.data());
      _exit(127);
    }
    running_[name] = pid;
    return unit;
  }

  // SIGTERM; the exit code, or -1 where it takes longer than systemd allows.
  int Stop(const std::string& name, int seconds) {
    const pid_t pid = running_.at(name);
    kill(pid, SIGTERM);
    const absl::Time end = absl::Now() + kPatience * absl::Seconds(seconds);
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
      if (absl::Now() > end) return -1;
      absl::SleepFor(absl::Milliseconds(10));
    }
    running_.erase(name);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  static std::unique_ptr<grpc::ClientContext> Context(int seconds = 60) {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(absl::ToChronoTime(absl::Now() + kPatience * absl::Seconds(seconds)));
    context->set_wait_for_ready(true);
    return context;
  }

  std::vector<std::string> ReadyWorkers(v1::Admin::Stub* admin) {
    v1::ListWorkersResponse workers;
    std::vector<std::string> names;
    if (!admin->ListWorkers(Context(5).get(), {}, &workers).ok()) return names;
    for (const v1::Worker& worker : workers.workers()) {
      if (worker.state() == "ready") names.push_back(worker.name());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TempDir dir_;
  std::map<std::string, pid_t> running_;
};

TEST_F(SystemdUnits, HoldAConversationAndStopInTime) {
  const int port = FreePort(), internal = FreePort(), admin_port = FreePort();
  const auto metrics = [&] { return absl::StrCat("SLUICE_METRICS_LISTEN=", At(FreePort()), "\n"); };
  std::map<std::string, Unit> units;
  units["router"] = Start("router", "sluice-router.service", "",
                          absl::StrCat("SLUICE_LISTEN=", At(port), "\nSLUICE_INTERNAL_LISTEN=", At(internal),
                                       "\nSLUICE_ADMIN_LISTEN=", At(admin_port), "\n", metrics()));
  for (const std::string role : {"prefill", "decode"}) {
    units[role] = Start(
        role + "-0", absl::StrCat("sluice-", role, "@.service"), "0",
        absl::StrCat("SLUICE_ROUTER=", At(internal), "\nSLUICE_DEVICE=cpu\nSLUICE_THREADS=1\n", metrics()));
  }
  auto admin = v1::Admin::NewStub(grpc::CreateChannel(At(admin_port), grpc::InsecureChannelCredentials()));
  const std::vector<std::string> both = {"decode-0", "prefill-0"};  // as the units name them
  const absl::Time end = absl::Now() + kPatience * absl::Seconds(60);
  while (ReadyWorkers(admin.get()) != both && absl::Now() < end) absl::SleepFor(absl::Milliseconds(50));
  ASSERT_EQ(ReadyWorkers(admin.get()), both);

  const auto channel = grpc::CreateChannel(At(port), grpc::InsecureChannelCredentials());
  auto inference = v1::Inference::NewStub(channel);
  auto sessions = v1::Sessions::NewStub(channel);
  v1::Session session;
  ASSERT_TRUE(sessions->CreateSession(Context().get(), {}, &session).ok());
  const std::vector<std::pair<std::string, std::string>> facts = {{"quiet-harbor", "4718293"},
                                                                  {"amber-lantern", "9023517"}};
  for (size_t i = 0; i < facts.size(); ++i) {
    v1::ChatRequest request;
    request.mutable_session_turn()->set_session_id(session.id());
    v1::Message* message = request.mutable_session_turn()->add_new_messages();
    message->set_role("user");
    message->set_content(
        absl::StrCat(i == 0 ? LongDocument(2000, facts, 1) + "\n" : "", Question(facts[i].first)));
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stopping()->set_max_tokens(16);
    v1::ChatResponse reply;
    const grpc::Status status = inference->Chat(Context().get(), request, &reply);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_NE(reply.text().find(facts[i].second), std::string::npos) << reply.text();
  }
  EXPECT_TRUE(std::filesystem::exists(dir_.path() + "/var/lib/sluice/sessions.db"));

  for (const auto& [name, unit] : {std::pair("prefill-0", units["prefill"]),
                                   {"decode-0", units["decode"]},
                                   {"router", units["router"]}}) {
    EXPECT_EQ(Stop(name, unit.stop_seconds), 0) << name;
  }
}

TEST_F(SystemdUnits, GiveTheDrainItsTime) {
  const std::string options = ReadAll(SLUICE_SOURCE_DIR "/deploy/sluice.toml");
  for (const auto& [role, file] : {std::pair("router", "sluice-router.service"),
                                   {"prefill", "sluice-prefill@.service"},
                                   {"decode", "sluice-decode@.service"}}) {
    const size_t section = options.find(absl::StrCat("[sluice-", role, "]"));
    ASSERT_NE(section, std::string::npos);
    const std::string key = "# stop-timeout = ";
    int drains = 0;
    const size_t at = options.find(key, section) + key.size();
    ASSERT_TRUE(absl::SimpleAtoi(options.substr(at, options.find('\n', at) - at), &drains)) << role;
    const int allowed = ReadUnit(file, "0", {}).stop_seconds;
    EXPECT_GE(allowed, drains + 5) << file << ": TimeoutStopSec";
    EXPECT_LE(allowed, drains + 30) << file << ": TimeoutStopSec";
  }
}

}  // namespace
}  // namespace sluice
