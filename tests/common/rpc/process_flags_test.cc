// Where the options of a server come from, and the file that lists them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "common/rpc/process_flags.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

struct Options {
  std::string log_level = "info", name = "a name";
  int count = 3;
  double seconds = 0.5;
  std::vector<std::string> peers = {"h:1"};
  bool loud = false;
};

class ProcessFlagsTest : public ::testing::Test {
 protected:
  void Make() {
    options = Options();
    app = std::make_unique<CLI::App>("does things", "sluice-thing");
    AddProcessFlags(app.get(), &options.log_level);
    app->add_option("--name", options.name, "of this thing")
        ->envname("SLUICE_TEST_NAME")
        ->capture_default_str();
    app->add_option("--count", options.count, "of things")->group("Things")->capture_default_str();
    app->add_option("--seconds", options.seconds, "to wait")->group("Things")->capture_default_str();
    app->add_option("--peers", options.peers, "others")
        ->delimiter(',')
        ->group("Things")
        ->capture_default_str();
    app->add_flag("--loud", options.loud, "says more")->group("Things");
  }

  // Empty: taken. Else what the parser says.
  std::string Parse(std::vector<std::string> arguments, const std::string& file = "") {
    Make();
    if (!file.empty()) arguments.insert(arguments.end(), {"--config", dir.Write("thing.toml", file)});
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them so
    try {
      app->parse(arguments);
      return "";
    } catch (const CLI::ParseError& error) {
      return error.what();
    }
  }

  TempDir dir;
  Options options;
  std::unique_ptr<CLI::App> app;
};

TEST_F(ProcessFlagsTest, ReadsWhatIsForAllAndItsOwnSection) {
  const std::string file =
      "log-level = \"warn\"\ncount = 7\n[sluice-other]\ncount = 8\nunknown = 1\n"
      "[sluice-thing]\ncount = 9\npeers = [\"a:1\",\n  \"b:2\"]\nloud = true\n[sluice-more]\nloud = "
      "false\n";
  EXPECT_EQ(Parse({}, file), "");
  EXPECT_EQ(options.log_level, "warn");
  EXPECT_EQ(options.count, 9);
  EXPECT_EQ(options.peers, (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_TRUE(options.loud);
  EXPECT_EQ(Parse({}, "peers = [\"a:1\", \"b:2\"]\n[sluice-thing]\npeers = [\"c:3\"]\n"), "");
  EXPECT_EQ(options.peers, std::vector<std::string>{"c:3"});
}

TEST_F(ProcessFlagsTest, FlagsGoBeforeTheEnvironmentBeforeTheFile) {
  const std::string file = "[sluice-thing]\nname = \"of the file\"\n";
  EXPECT_EQ(Parse({}, file), "");
  EXPECT_EQ(options.name, "of the file");
  setenv("SLUICE_TEST_NAME", "of the environment", 1);
  EXPECT_EQ(Parse({}, file), "");
  const std::string environment = options.name;
  EXPECT_EQ(Parse({"--name", "of the flag"}, file), "");
  unsetenv("SLUICE_TEST_NAME");
  EXPECT_EQ(environment, "of the environment");
  EXPECT_EQ(options.name, "of the flag");
}

TEST_F(ProcessFlagsTest, TheEnvironmentNamesTheFileUnlessAFlagDoes) {
  const std::string first = dir.Write("first.toml", "[sluice-thing]\ncount = 5\n");
  const std::string second = dir.Write("second.toml", "count = 6\n");
  const auto parse = [&](const std::string& environment, std::vector<const char*> arguments) {
    Make();
    arguments.insert(arguments.begin(), "sluice-thing");
    setenv("SLUICE_CONFIG", environment.c_str(), 1);
    const std::optional<int> code =
        ParseFlags(app.get(), static_cast<int>(arguments.size()), arguments.data());
    unsetenv("SLUICE_CONFIG");
    return code.value_or(0);
  };
  EXPECT_EQ(parse(first, {}), 0);
  EXPECT_EQ(options.count, 5);
  EXPECT_EQ(parse(first, {"--config", second.c_str()}), 0);
  EXPECT_EQ(options.count, 6);
  EXPECT_EQ(parse("", {}), 0);
  EXPECT_EQ(options.count, 3);
  EXPECT_EQ(parse(dir.path() + "/none.toml", {}), 2) << "a file that is named is there";
}

TEST_F(ProcessFlagsTest, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(Parse({}, "unknown = 1\n"), HasSubstr("unknown"));
  EXPECT_THAT(Parse({}, "[sluice-thing]\nunknown = 1\n"), HasSubstr("unknown"));
  EXPECT_NE(Parse({}, "[sluice-thing]\ncount = \"many\"\n"), "");
}

TEST_F(ProcessFlagsTest, TheListHasEveryOptionAndReadsBackAsItWas) {
  ASSERT_EQ(Parse({}), "");
  const std::string defaults = ConfigText(*app);
  EXPECT_EQ(defaults,
            "[sluice-thing]\n\n# ---- Options\n\n# of this thing (SLUICE_TEST_NAME)\n# name = \"a name\"\n\n"
            "# ---- Logs\n\n# trace, debug, info, warn, error (SLUICE_LOG_LEVEL)\n# log-level = \"info\"\n\n"
            "# ---- Things\n\n# of things\n# count = 3\n\n# to wait\n# seconds = 0.5\n\n"
            "# others\n# peers = \"h:1\"\n\n# says more\n# loud = false\n");
  ASSERT_EQ(Parse({"--count", "5", "--peers", "a:1,b:2", "--loud"}), "");
  const std::string given = ConfigText(*app);
  EXPECT_THAT(given, HasSubstr("\ncount = 5\n"));
  EXPECT_THAT(given, HasSubstr("\npeers = [\"a:1\", \"b:2\"]\n"));
  EXPECT_THAT(given, HasSubstr("\n# seconds = 0.5\n"));
  ASSERT_EQ(Parse({}, given), "");
  EXPECT_EQ(options.count, 5);
  EXPECT_EQ(options.peers, (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_TRUE(options.loud);
  EXPECT_EQ(ConfigText(*app), given);
}

}  // namespace
}  // namespace sluice
