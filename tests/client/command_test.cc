// The other subcommands against a made-up router, and the flags.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/compression/compression_spec.h"
#include "tests/client/client_run.h"
#include "tests/client/fake_router.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CommandTest : public ::testing::Test {
 protected:
  ClientRun run;
  FakeRouter router;
  TempDir dir;
};

TEST_F(CommandTest, CompleteTakesAnArgumentAFileOrStdin) {
  ASSERT_EQ(run.Run({"complete", "--stop", "X", "once upon", "--router", router.address()}), 0);
  EXPECT_EQ(router.completes()[0].prompt(), "once upon");
  EXPECT_EQ(run.out(), "you said once upon\n");
  std::string file = dir.Write("p.txt", "from a file");
  ASSERT_EQ(run.Run({"complete", "--file", file, "--router", router.address()}), 0);
  EXPECT_EQ(router.completes()[1].prompt(), "from a file");
  ASSERT_EQ(run.Run({"complete", "--file", file, "end", "--router", router.address()}), 0);
  EXPECT_EQ(router.completes()[2].prompt(), "from a file\nend");
  run.Type("from stdin\n");
  run.CloseInput();
  ASSERT_EQ(run.Run({"complete", "--json", "--router", router.address()}), 0);
  EXPECT_EQ(router.completes()[3].prompt(), "from stdin\n");
  EXPECT_THAT(run.out(), HasSubstr("{\"answer\":\"you said \",\"prompt_tokens\":1000,"));
}

TEST_F(CommandTest, CompleteShowsSeveralAnswersOneAfterTheOther) {
  ASSERT_EQ(run.Run({"complete", "--n", "3", "once upon", "--router", router.address()}), 0);
  EXPECT_EQ(router.completes()[0].sampling().n(), 3);
  EXPECT_EQ(run.out(), "you said once upon\nchoice 1\nchoice 2\n");
  EXPECT_THAT(run.err(), HasSubstr("--- 3 of 3\n"));
  ASSERT_EQ(run.Run({"complete", "--n", "2", "--json", "x", "--router", router.address()}), 0);
  EXPECT_THAT(run.out(), HasSubstr("\"others\":[{\"answer\":\"choice 1\""));
  EXPECT_EQ(run.Run({"complete", "--n", "9", "x", "--router", router.address()}), 2);
}

TEST_F(CommandTest, WorkersAreListedDrainedAndTakenBack) {
  router.AddWorker("prefill", "ready");
  router.AddWorker("decode", "ready");
  const auto workers = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "workers");
    words.insert(words.end(), {"--admin", router.address()});
    return run.Run(words);
  };
  ASSERT_EQ(workers({"list"}), 0);
  EXPECT_THAT(run.out(), HasSubstr("prefill-1"));
  EXPECT_THAT(run.out(), HasSubstr("3000 tokens ahead, 1500 a second\n"));
  EXPECT_THAT(run.out(), HasSubstr("25% of KV free\n"));
  ASSERT_EQ(workers({"drain", "decode-1"}), 0);
  EXPECT_EQ(router.workers()["decode-1"], "draining");
  EXPECT_EQ(router.workers()["prefill-1"], "ready");
  EXPECT_THAT(run.err(), HasSubstr("decode-1 has 2 requests left, 60 s\n"));
  EXPECT_THAT(run.err(), HasSubstr("decode-1 is drained\n"));
  ASSERT_EQ(workers({"undrain", "decode-1"}), 0);
  EXPECT_EQ(router.workers()["decode-1"], "ready");
  EXPECT_EQ(workers({"drain", "decode-1", "--deadline", "0.5"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("the drain holds"));
  EXPECT_EQ(workers({"drain", "decode-7"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("no \"decode-7\""));
  EXPECT_EQ(run.Run({"workers", "list", "--admin", "nowhere"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("--admin"));
}

TEST_F(CommandTest, SessionsListShowForkDelete) {
  std::vector<std::string> at = {"--router", router.address()};
  for (int i = 0; i < 3; ++i) ASSERT_EQ(run.Run({"chat", "--ask", "x", at[0], at[1]}), 0);
  ASSERT_EQ(run.Run({"sessions", "list", at[0], at[1]}), 0);
  for (const char* id : {"s1 ", "s2 ", "s3 "}) EXPECT_THAT(run.out(), HasSubstr(id));  // three pages

  run.out_tty = true;
  ASSERT_EQ(run.Run({"sessions", "show", "s1", at[0], at[1]}), 0);
  EXPECT_THAT(run.out(),
              HasSubstr("user: " + std::string(400, 'q') + "... (500 characters; --full shows them)\n"));
  EXPECT_THAT(run.out(), HasSubstr("assistant: a[2Jb\n"));
  ASSERT_EQ(run.Run({"sessions", "show", "s1", "--full", at[0], at[1]}), 0);
  EXPECT_THAT(run.out(), HasSubstr("user: " + std::string(500, 'q') + "\n"));

  ASSERT_EQ(run.Run({"sessions", "fork", "s1", at[0], at[1]}), 0);
  EXPECT_THAT(run.out(), HasSubstr("\ns4\n"));
  ASSERT_EQ(run.Run({"sessions", "delete", "s1", at[0], at[1]}), 0);
  EXPECT_EQ(router.sessions().count("s1"), 0);
  EXPECT_EQ(run.Run({"sessions", "delete", "s1", at[0], at[1]}), 1);
  EXPECT_THAT(run.err(), HasSubstr("NOT_FOUND"));
}

TEST_F(CommandTest, SessionsTruncateNamesTheLastTurnThatStays) {
  std::vector<std::string> at = {"--router", router.address()};
  ASSERT_EQ(run.Run({"chat", "--ask", "x", "--ask", "y", "--ask", "z", at[0], at[1]}), 0);
  ASSERT_EQ(router.sessions().at("s1"), 3);
  ASSERT_EQ(run.Run({"sessions", "truncate", "s1", "t1", at[0], at[1]}), 0);
  EXPECT_EQ(router.sessions().at("s1"), 2);
  EXPECT_THAT(run.err(), HasSubstr("session s1 has 2 turns"));
  EXPECT_EQ(run.Run({"sessions", "truncate", "s1", "t2", at[0], at[1]}), 1);
  EXPECT_THAT(run.err(), HasSubstr("NOT_FOUND"));
  EXPECT_EQ(run.Run({"sessions", "truncate", "s1", at[0], at[1]}), 2);
  EXPECT_EQ(router.sessions().at("s1"), 2);
}

TEST_F(CommandTest, MethodsListsEveryPreset) {
  ASSERT_EQ(run.Run({"methods"}), 0);
  for (const Preset& preset : Presets()) {
    EXPECT_THAT(run.out(), HasSubstr(preset.name));
    EXPECT_THAT(run.out(), HasSubstr(preset.summary));
  }
}

// needle-14m: 8 layers of 2 KV heads of 64: 4096 bytes a token. The layer of tsp and rerun is the sixth.
TEST_F(CommandTest, MethodsSaysWhatEachPresetSaves) {
  const std::string model = SLUICE_SOURCE_DIR "/models/needle-14m";
  ASSERT_EQ(run.Run({"methods", "--model", model, "--tokens", "10000", "--budget", "500", "--json"}), 0);
  const auto json = nlohmann::json::parse(run.out());
  EXPECT_EQ(json["prompt_tokens"], 10000);
  EXPECT_EQ(json["budget_tokens"], 500);
  EXPECT_EQ(json["kv_bytes"], 40960000);
  ASSERT_EQ(json["methods"].size(), Presets().size());
  std::map<std::string, nlohmann::json> methods;
  for (const auto& method : json["methods"]) {
    methods[method["preset"].get<std::string>()] = method;
    EXPECT_EQ(method["note"].get<std::string>(), "");
    EXPECT_LE(method["read_bytes"].get<double>(), 1.1 * 40960000) << method;
    EXPECT_FALSE(method["formulas"]["kept_rows"].get<std::string>().empty());
  }
  EXPECT_EQ(methods["full"]["stored_bytes"], 40960000);
  EXPECT_EQ(methods["full"]["wire_bytes"], 40960000 + 4 * 16 * 10000);
  EXPECT_EQ(methods["snapkv"]["retention"], "snapkv");
  EXPECT_EQ(methods["snapkv"]["stored_bytes"], 500 * 4096);
  EXPECT_EQ(methods["snapkv"]["read_bytes"], 500 * 4096);
  EXPECT_EQ(methods["sluice"]["propagation"], "tsp");
  EXPECT_DOUBLE_EQ(methods["sluice"]["prefill_share"].get<double>(), (6 + 2 * 0.2) / 8);
  EXPECT_DOUBLE_EQ(methods["gemfilter"]["prefill_share"].get<double>(), 6 / 8.0 + 0.05);
  EXPECT_EQ(methods["gemfilter"]["kept_rows"], 500);
  EXPECT_EQ(methods["rocketkv-mt"]["history"], "keep");
  EXPECT_LT(methods["rocketkv"]["read_bytes"], 505 * 4096);
  EXPECT_GT(methods["rocketkv"]["stored_bytes"], 505 * 4096);
}

TEST_F(CommandTest, MethodsPrintsTablesAndSaysWhyAGateIsOff) {
  const std::string model = SLUICE_SOURCE_DIR "/models/needle-14m";
  ASSERT_EQ(run.Run({"methods", "--model", model, "--tokens", "10000", "--budget", "500"}), 0);
  EXPECT_THAT(run.out(), HasSubstr("a prompt of 10000 tokens, budget 500: 41.0 MB of K,V\n"));
  EXPECT_THAT(run.out(),
              HasSubstr("\nfull              100.0       10000        41.0        41.6          41.0\n"));
  EXPECT_THAT(run.out(),
              HasSubstr("\nsnapkv            100.0         500         2.0         2.1           2.0\n"));
  EXPECT_THAT(run.out(), HasSubstr("prefill l/L + t/n"));
  ASSERT_EQ(run.Run({"methods", "--model", model, "--tokens", "300", "--budget", "500"}), 0);
  EXPECT_THAT(run.out(), HasSubstr("\nsnapkv: everything is off: the prompt of 300 tokens"));
  EXPECT_EQ(run.Run({"methods", "--model", model, "--tokens", "40000"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("--tokens 40000: the context of 32768 holds 32640"));
  EXPECT_EQ(run.Run({"methods", "--model", dir.path() + "/none"}), 1);
}

TEST_F(CommandTest, WrongUsageIs2AndHelpIs0) {
  EXPECT_EQ(run.Run({}), 2);
  EXPECT_EQ(run.Run({"nonsense"}), 2);
  EXPECT_EQ(run.Run({"sessions"}), 2);
  EXPECT_EQ(run.Run({"chat", "--temperature", "3", "--ask", "x"}), 2);
  EXPECT_THAT(run.err(), HasSubstr("--temperature"));
  EXPECT_EQ(run.Run({"chat", "--temperature", "nan", "--ask", "x"}), 2);
  EXPECT_EQ(run.Run({"chat", "--timeout", "nan", "--ask", "x"}), 2);
  EXPECT_EQ(run.Run({"chat", "--preset", "magic", "--ask", "x"}), 2);
  EXPECT_EQ(run.Run({"chat", "--seed", "-1", "--ask", "x"}), 2);
  EXPECT_EQ(run.Run({"bench", "--seed", "-1"}), 2);
  EXPECT_THAT(run.err(), HasSubstr("--preset"));
  EXPECT_EQ(run.Run({"chat", "--budget", "3", "--ask", "x"}), 2);
  EXPECT_EQ(run.Run({"up", "--port-base", "65530"}), 2);
  EXPECT_EQ(run.Run({"chat", "--help"}), 0);
  EXPECT_THAT(run.out(), HasSubstr("SLUICE_MAX_TOKENS"));
  EXPECT_THAT(run.out(), HasSubstr("Examples:"));
  EXPECT_TRUE(router.chats().empty());
}

TEST_F(CommandTest, EnvironmentIsADefaultThatAFlagOverrides) {
  setenv("SLUICE_MAX_TOKENS", "11", 1);
  setenv("SLUICE_ROUTER", router.address().c_str(), 1);
  EXPECT_EQ(run.Run({"chat", "--ask", "x"}), 0);
  EXPECT_EQ(run.Run({"chat", "--ask", "x", "--max-tokens", "12"}), 0);
  unsetenv("SLUICE_MAX_TOKENS");
  unsetenv("SLUICE_ROUTER");
  ASSERT_EQ(router.chats().size(), 2);
  EXPECT_EQ(router.chats()[0].stopping().max_tokens(), 11);
  EXPECT_EQ(router.chats()[1].stopping().max_tokens(), 12);
}

TEST_F(CommandTest, DoctorNamesWhatIsMissing) {
  std::string model = std::string(SLUICE_SOURCE_DIR) + "/models/needle-14m";
  std::vector<std::string> words = {"doctor",         "--model", model,           "--router",
                                    router.address(), "--admin", router.address()};
  router.AddWorker("prefill", "ready");
  EXPECT_EQ(run.Run(words), 1);
  EXPECT_THAT(run.out(), HasSubstr("ok    router: " + router.address() + " serves\n"));
  EXPECT_THAT(run.out(), HasSubstr("ok    prefill: prefill-1"));
  EXPECT_THAT(run.out(), HasSubstr("fail  decode: no worker is ready; start sluice-decode\n"));
  EXPECT_THAT(run.out(), HasSubstr("ok    served model: fake-model"));
  EXPECT_THAT(run.out(), HasSubstr("ok    model: " + model));
  EXPECT_THAT(run.out(), HasSubstr("  cpu: "));
  EXPECT_THAT(run.out(), HasSubstr("  memory: "));
  router.AddWorker("decode", "ready");
  EXPECT_EQ(run.Run(words), 0) << run.out();
  router.server()->SetServing("sluice.v1.Inference", false);
  EXPECT_EQ(run.Run(words), 1);
  EXPECT_THAT(run.out(), HasSubstr("answers and is not ready"));
}

TEST_F(CommandTest, DoctorFailsForANamedRouterThatIsNotThereAndAModelThatDoesNotOpen) {
  EXPECT_EQ(run.Run({"doctor", "--router", "127.0.0.1:1", "--model", dir.path()}), 1);
  EXPECT_THAT(run.out(), HasSubstr("fail  router: nobody answers at 127.0.0.1:1"));
  EXPECT_THAT(run.out(), HasSubstr("fail  model: " + dir.path()));
  EXPECT_THAT(run.out(), HasSubstr("change --model"));
}

}  // namespace
}  // namespace sluice
