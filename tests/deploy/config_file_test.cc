// deploy/sluice.toml is what the binaries say, and the binaries read it.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

std::string Shipped() {
  std::ifstream file(SLUICE_SOURCE_DIR "/deploy/sluice.toml");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// What a shell command prints, errors included, and its exit code.
std::pair<std::string, int> RunCommand(const std::string& command) {
  FILE* pipe = popen(absl::StrCat(command, " 2>&1").c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer;
  for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) text.append(buffer.data(), n);
  const int status = pclose(pipe);
  return {text, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

// Every option of the file becomes active, with its default. What is "" is unset.
std::string Uncommented(const std::string& text) {
  std::string out;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t equals = line.find(" = ");
    const bool option = absl::StartsWith(line, "# ") && equals != absl::string_view::npos &&
                        line.substr(2, equals - 2).find(' ') == absl::string_view::npos;
    if (option && !absl::EndsWith(line, "\"\"")) line.remove_prefix(2);
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

TEST(ConfigFile, IsWhatTheBinariesSay) {
  const auto [text, code] = RunCommand("bash " SLUICE_SOURCE_DIR "/deploy/sample_config.sh " SLUICE_BIN_DIR);
  ASSERT_EQ(code, 0) << text;
  EXPECT_TRUE(text == Shipped()) << "options have changed: bash deploy/sample_config.sh " SLUICE_BIN_DIR
                                    " > deploy/sluice.toml\n"
                                 << text;
}

TEST(ConfigFile, EveryLineOfItIsTakenAndMeansItsDefault) {
  const TempDir dir;
  const std::string active = Uncommented(Shipped());
  EXPECT_NE(active.find("\nring-slots = 8\n"), std::string::npos);
  // "model" for all, in front of the first section.
  const size_t model = active.find("\nmodel = \"/models/model\"\n");
  ASSERT_NE(model, std::string::npos);
  const std::string path = dir.Write("sluice.toml", active);
  for (const std::string binary : {"sluice-router", "sluice-prefill", "sluice-decode"}) {
    const auto [text, code] =
        RunCommand(absl::StrCat("env -i " SLUICE_BIN_DIR "/", binary, " --config ", path, " --print-config"));
    ASSERT_EQ(code, 0) << text;
    const size_t begin = active.find(absl::StrCat("[", binary, "]\n"));
    ASSERT_NE(begin, std::string::npos) << binary;
    const size_t end = active.find("\n[", begin);
    std::string want = active.substr(begin, end == std::string::npos ? std::string::npos : end - begin);
    const std::string unset = "\n# model = \"\"\n";
    const size_t at = want.find(unset);
    ASSERT_NE(at, std::string::npos);
    want.replace(at, unset.size(), "\nmodel = \"/models/model\"\n");
    while (absl::EndsWith(want, "\n\n")) want.pop_back();
    EXPECT_EQ(text, want) << binary;
  }
}

TEST(ConfigFile, AnUnknownLineIsNamed) {
  const TempDir dir;
  const std::string path = dir.Write("sluice.toml", "[sluice-decode]\nkv-memorie = 5\n");
  const auto [text, code] =
      RunCommand(absl::StrCat("env -i " SLUICE_BIN_DIR "/sluice-decode --model m --config ", path));
  EXPECT_EQ(code, 2);
  EXPECT_NE(text.find("kv-memorie"), std::string::npos) << text;
}

}  // namespace
}  // namespace sluice
