// What the servers refuse on their command line and in their configuration file.
#include <gtest/gtest.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "common/rpc/stop_signals.h"
#include "common/rpc/worker_process.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/counting_backend.h"

namespace sluice {
namespace {

// Empty: taken. Else what the parser says.
std::string Parse(std::vector<std::string> arguments, WorkerOptions* options) {
  CLI::App app;
  AddWorkerFlags(&app, options);
  arguments.insert(arguments.begin(), {"--model", "m"});
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them so
  try {
    app.parse(arguments);
    return "";
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
}

std::string ConfigFile(const std::string& text) {
  std::string path = testing::TempDir() + "worker_flags_" + std::to_string(getpid()) + ".toml";
  std::ofstream(path) << text;
  return path;
}

TEST(WorkerFlagsTest, TakesAConfigurationFileBehindFlags) {
  WorkerOptions options;
  const std::string path = ConfigFile("log-level = \"warn\"\nring-slots = 3\n");
  EXPECT_EQ(Parse({"--config", path, "--ring-slots", "5"}, &options), "");
  EXPECT_EQ(options.log_level, "warn");
  EXPECT_EQ(options.ring_slots, 5);
}

TEST(WorkerFlagsTest, RefusesUnknownAndBrokenLinesOfAConfigurationFile) {
  for (const char* text : {"ring-slot = 3\n", "no such line\n", "log-level = \"loud\"\n"}) {
    WorkerOptions options;
    EXPECT_NE(Parse({"--config", ConfigFile(text)}, &options), "") << text;
  }
}

TEST(WorkerFlagsTest, RefusesByFlag) {
  for (auto [flag, value] :
       {std::pair("--log-level", "loud"), {"--transport", "loopback"}, {"--ring-slots", "0"}}) {
    WorkerOptions options;
    EXPECT_NE(Parse({flag, value}, &options).find(flag), std::string::npos) << flag;
  }
}

TEST(WorkerFlagsTest, TakesSeveralRouters) {
  WorkerOptions options;
  EXPECT_EQ(options.routers, std::vector<std::string>{"127.0.0.1:7101"});
  EXPECT_EQ(Parse({"--router", "10.0.0.1:7101,10.0.0.2:7101"}, &options), "");
  EXPECT_EQ(options.routers, (std::vector<std::string>{"10.0.0.1:7101", "10.0.0.2:7101"}));
  EXPECT_EQ(Parse({"--config", ConfigFile("router = [\"a:1\", \"b:2\"]\n")}, &options), "");
  EXPECT_EQ(options.routers, (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_NE(Parse({"--router", "10.0.0.1:7101,nowhere"}, &options).find("--router"), std::string::npos);
}

TEST(WorkerFlagsTest, TheModelIsNamedByItsDirectoryUnlessAFlagNamesIt) {
  WorkerOptions options;
  options.model = SLUICE_SOURCE_DIR "/models/needle-14m";
  ASSERT_TRUE(NameModel(&options).ok());
  EXPECT_EQ(options.model_name, "needle-14m");
  options.model_name = "mine";
  ASSERT_TRUE(NameModel(&options).ok());
  EXPECT_EQ(options.model_name, "mine");
}

TEST(WorkerStopTest, ADeviceThatDoesNotAnswerEndsTheWait) {
  BlockStopSignals();  // before there are threads
  auto cpu = NewCpuBackend({});
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  auto counting = std::make_unique<CountingBackend>(cpu->get());
  CountingBackend& device = *counting;
  const BackendGroup group(std::move(counting));
  WorkerOptions options;
  options.device_seconds = 7;

  device.Hang(absl::Seconds(8));
  const absl::Status hung = WaitForStopSignal(options, group);
  EXPECT_TRUE(absl::IsDeadlineExceeded(hung)) << hung;
  EXPECT_NE(hung.message().find("--device-timeout 7"), std::string::npos) << hung;
  EXPECT_NE(hung.message().find("cpu, "), std::string::npos) << hung;

  device.Hang(absl::Seconds(6));
  kill(getpid(), SIGTERM);
  EXPECT_TRUE(WaitForStopSignal(options, group).ok());
}

TEST(WorkerStopDeathTest, AHungWorkerSaysWhyAndEnds) {
  EXPECT_EXIT(
      {
        spdlog::set_default_logger(spdlog::stderr_logger_mt("stderr"));
        ExitHung("decode", absl::DeadlineExceededError("no answer"));
      },
      testing::ExitedWithCode(1), "decode failed: no answer");
}

TEST(WorkerStopTest, AfterTheStartASignalIsForWhoWaits) {
  BlockStopSignals();
  { const StopsAtOnce starting("never said", 1); }
  kill(getpid(), SIGINT);
  WaitForStopSignal();
}

TEST(WorkerStopTest, SignalsThatComeTogetherCountAsOne) {
  BlockStopSignals();
  const StopsAtOnce stopping("never said", 1, absl::Seconds(60));
  kill(getpid(), SIGTERM);
  sigset_t pending;
  do {
    absl::SleepFor(absl::Milliseconds(5));
    sigpending(&pending);
  } while (sigismember(&pending, SIGTERM) == 1);
}

TEST(WorkerStopDeathTest, WhatCannotBeCutShortEndsAtASignal) {
  EXPECT_EXIT(
      {
        spdlog::set_default_logger(spdlog::stderr_logger_mt("stderr"));
        BlockStopSignals();
        const StopsAtOnce starting("stopped while it started", 3);
        kill(getpid(), SIGTERM);
        absl::SleepFor(absl::Seconds(60));
      },
      testing::ExitedWithCode(3), "stopped while it started");
}

}  // namespace
}  // namespace sluice
