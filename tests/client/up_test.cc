// `sluice up` with shell scripts in the servers' place.
#include "client/up.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rpc/rpc_server.h"
#include "tests/client/client_run.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

int FreePortBase() {
  std::random_device random;
  while (true) {
    int base = 20000 + static_cast<int>(random() % 30000);
    if (CheckPortsFree(base).ok()) return base;
  }
}

TEST(PlanDevicesTest, GpusAreSharedOut) {
  const auto plan = [](int n_gpus, UpOptions options = {}) {
    PlanDevices(n_gpus, &options);
    return options.prefill_device + " " + options.decode_device;
  };
  EXPECT_EQ(plan(0), "cpu cpu");
  EXPECT_EQ(plan(1), "cuda:0 cuda:0");
  EXPECT_EQ(plan(2), "cuda:0 cuda:1");
  EXPECT_EQ(plan(8), "cuda:0 cuda:1");
  UpOptions named;
  named.prefill_device = "cpu";
  EXPECT_EQ(plan(2, named), "cpu cuda:1");
}

class UpTest : public ::testing::Test {
 protected:
  ClientRun run;
  TempDir dir;
  UpOptions options;

  void SetUp() override {
    options.model = dir.path();
    options.threads = 1;
    options.port_base = FreePortBase();
    options.log_dir = dir.path() + "/logs";
    options.bin_dir = dir.path();
  }
  // Writes its arguments and process id to ROLE.started, then runs `script`.
  void Server(const std::string& role, const std::string& script) {
    std::string started = absl::StrCat(dir.path(), "/", role, ".started");
    std::string path = dir.Write(
        "sluice-" + role, absl::StrCat("#!/bin/sh\necho \"$@\" > ", started, ".new\necho $$ >> ", started,
                                       ".new\nmv ", started, ".new ", started, "\n", script, "\n"));
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  void ThreeServers() {
    for (const char* role : {"router", "prefill", "decode"}) Server(role, "exec sleep 100");
  }
  bool Started(const std::string& role) {
    return std::filesystem::exists(dir.path() + "/" + role + ".started");
  }
  bool WaitForStart(const std::string& role) {
    for (int i = 0; i < 3000 && !Started(role); ++i) absl::SleepFor(absl::Milliseconds(10));
    return Started(role);
  }
  std::string Args(const std::string& role) {
    std::ifstream file(dir.path() + "/" + role + ".started");
    std::string line;
    std::getline(file, line);
    return line;
  }
  bool Runs(const std::string& role) {
    int pid = 0;
    return absl::SimpleAtoi(TailOf(dir.path() + "/" + role + ".started", 1), &pid) && kill(pid, 0) == 0;
  }
};

TEST_F(UpTest, PlansRouterPrefillDecodeInThisOrder) {
  options.sessions_db = "memory";
  options.port_base = 7100;
  options.shadow_rate = 0.25;
  std::vector<ChildSpec> plan = PlanChildren(options);
  ASSERT_EQ(plan.size(), 3);
  EXPECT_EQ(plan[0].path, dir.path() + "/sluice-router");
  EXPECT_EQ(plan[1].path, dir.path() + "/sluice-prefill");
  EXPECT_EQ(plan[2].path, dir.path() + "/sluice-decode");
  EXPECT_THAT(
      absl::StrJoin(plan[0].args, " "),
      HasSubstr("--listen 127.0.0.1:7100 --http-listen 127.0.0.1:7108 --internal-listen 127.0.0.1:7101 "
                "--admin-listen 127.0.0.1:7102 --metrics-listen 127.0.0.1:7103 --sessions-db memory"));
  EXPECT_THAT(absl::StrJoin(plan[1].args, " "),
              HasSubstr("--threads 1 --transport ucx --router 127.0.0.1:7101 --listen 127.0.0.1:7106 "
                        "--metrics-listen 127.0.0.1:7104"));
  EXPECT_THAT(absl::StrJoin(plan[1].args, " "),
              HasSubstr("--history-memory 1024 --work-memory 2048 --shadow-rate 0.25"));
  EXPECT_THAT(absl::StrJoin(plan[2].args, " "),
              HasSubstr("--listen 127.0.0.1:7107 --metrics-listen 127.0.0.1:7105"));
  EXPECT_THAT(absl::StrJoin(plan[2].args, " "), HasSubstr("--kv-memory 1024"));
}

TEST_F(UpTest, SaysReadyWhenTheRouterServesAndStopsAllOnSigterm) {
  ThreeServers();
  std::thread router([&] {
    EXPECT_TRUE(WaitForStart("router") && WaitForStart("prefill") && WaitForStart("decode"));
    auto server = RpcServer::Start({UpAddress(options.port_base, kRouterPublic), "--test"}, {});
    ASSERT_TRUE(server.ok()) << server.status();
    absl::SleepFor(absl::Milliseconds(500));
    EXPECT_EQ(run.out(), "");  // it answers and does not serve yet
    (*server)->SetServing("sluice.v1.Inference", true);
    EXPECT_TRUE(run.out_text().WaitFor("\n"));
    EXPECT_TRUE(Runs("router") && Runs("prefill") && Runs("decode"));
    kill(getpid(), SIGTERM);
  });
  absl::StatusOr<int> code = RunUp(options, run.console());
  router.join();
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
  EXPECT_THAT(run.out(), StartsWith(absl::StrCat("ready router=127.0.0.1:", options.port_base,
                                                 " admin=127.0.0.1:", options.port_base + 2)));
  EXPECT_FALSE(Runs("router") || Runs("prefill") || Runs("decode"));
  EXPECT_THAT(Args("router"), HasSubstr("--sessions-db " + options.log_dir + "/sessions.db"));
}

TEST_F(UpTest, TheDeathOfOneStopsTheOthersAndShowsItsLog) {
  ThreeServers();
  Server("prefill", absl::StrCat("while [ ! -e ", dir.path(), "/decode.started ]; do sleep 0.05; done\n",
                                 "echo no memory for weights >&2; exit 3"));
  absl::StatusOr<int> code = RunUp(options, run.console());
  ASSERT_FALSE(code.ok());
  EXPECT_THAT(std::string(code.status().message()), HasSubstr("prefill exited with code 3"));
  EXPECT_THAT(std::string(code.status().message()), HasSubstr("no memory for weights"));
  EXPECT_FALSE(Runs("router") || Runs("decode"));
}

TEST_F(UpTest, WhatAServerSaysOfItsFlagsIsSaidOfThoseOfUp) {
  ThreeServers();
  Server("decode", "echo '--device cuda:7: this machine has 1 GPUs' >&2; exit 1");
  absl::StatusOr<int> code = RunUp(options, run.console());
  ASSERT_FALSE(code.ok());
  EXPECT_THAT(std::string(code.status().message()), HasSubstr("\n--decode-device cuda:7: this machine has"));
  EXPECT_EQ(InTermsOfUp("prefill", "--listen a --metrics-listen b --kv-memory 3 --device-timeout 4"),
            "--port-base a --port-base b --kv-memory 3 --device-timeout 4");
}

TEST_F(UpTest, AMissingServerStopsThoseThatStartedBeforeIt) {
  ThreeServers();
  std::filesystem::remove(dir.path() + "/sluice-prefill");
  absl::StatusOr<int> code = RunUp(options, run.console());
  ASSERT_FALSE(code.ok());
  EXPECT_THAT(std::string(code.status().message()), HasSubstr("sluice-prefill: No such file"));
  EXPECT_FALSE(Started("decode"));
  EXPECT_FALSE(Runs("router"));
}

TEST_F(UpTest, CtrlCWhileLoadingStopsAllWith130) {
  ThreeServers();
  std::thread user([&] {
    EXPECT_TRUE(WaitForStart("decode"));
    kill(getpid(), SIGINT);
  });
  absl::StatusOr<int> code = RunUp(options, run.console());
  user.join();
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 130);
  EXPECT_FALSE(Runs("router") || Runs("prefill") || Runs("decode"));
}

TEST_F(UpTest, ATakenPortIsNamedWithItsFlag) {
  ThreeServers();
  auto server = RpcServer::Start({UpAddress(options.port_base, kDecodeMetrics), "--test"}, {});
  ASSERT_TRUE(server.ok());
  absl::StatusOr<int> code = RunUp(options, run.console());
  ASSERT_FALSE(code.ok());
  EXPECT_THAT(std::string(code.status().message()),
              HasSubstr(absl::StrCat("port ", options.port_base + 5, " (metrics of decode) is taken")));
  EXPECT_THAT(std::string(code.status().message()), HasSubstr("--port-base"));
  EXPECT_FALSE(Started("router"));
}

TEST_F(UpTest, AModelThatIsNotThereIsNamedWithItsFlag) {
  options.model = dir.path() + "/none";
  EXPECT_THAT(std::string(RunUp(options, run.console()).status().message()),
              HasSubstr("--model " + options.model));
  options.model.clear();
  EXPECT_THAT(std::string(RunUp(options, run.console()).status().message()), HasSubstr("--model: name a"));
}

}  // namespace
}  // namespace sluice
