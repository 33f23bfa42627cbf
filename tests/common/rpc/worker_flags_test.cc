// What the servers refuse on their command line and in their configuration file.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "common/rpc/worker_process.h"

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

TEST(WorkerFlagsTest, TheModelIsNamedByItsDirectoryUnlessAFlagNamesIt) {
  WorkerOptions options;
  options.model = SLUICE_SOURCE_DIR "/models/needle-14m";
  ASSERT_TRUE(NameModel(&options).ok());
  EXPECT_EQ(options.model_name, "needle-14m");
  options.model_name = "mine";
  ASSERT_TRUE(NameModel(&options).ok());
  EXPECT_EQ(options.model_name, "mine");
}

}  // namespace
}  // namespace sluice
