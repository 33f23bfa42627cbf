// sluice bench against a made-up router: what it sends, what it tells, how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "absl/time/clock.h"
#include "common/rpc/status_codec.h"
#include "tests/client/client_run.h"
#include "tests/client/fake_router.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class BenchTest : public ::testing::Test {
 protected:
  ClientRun run;
  FakeRouter router;
  TempDir dir;

  int Bench(std::vector<std::string> words) {
    words.insert(words.begin(), {"bench", "--router", router.address(), "--timeout", "30"});
    return run.Run(words);
  }
  std::string json_path() const { return dir.path() + "/out.json"; }
  nlohmann::json Json() const {
    std::ifstream file(json_path());
    return nlohmann::json::parse(file);
  }
};

int Words(const std::string& text) { return static_cast<int>(std::count(text.begin(), text.end(), ' ')) + 1; }

TEST_F(BenchTest, SendsPresetAfterPresetWithWarmUpAndReportsBoth) {
  ASSERT_EQ(Bench({"--requests", "6", "--warmup", "2", "--concurrency", "3", "--prompt-tokens", "110",
                   "--output-tokens", "9", "--preset", "full,sluice-mt", "--budget", "64", "--seed", "5",
                   "--json", json_path()}),
            0)
      << run.err();
  const std::vector<v1::ChatRequest> chats = router.chats();
  ASSERT_EQ(chats.size(), 16u);
  std::set<std::string> prompts;
  for (size_t i = 0; i < chats.size(); ++i) {
    EXPECT_EQ(chats[i].compression().preset(), i < 8 ? "full" : "sluice-mt");
    EXPECT_EQ(chats[i].compression().budget_tokens(), 64);
    EXPECT_EQ(chats[i].stopping().max_tokens(), 9);
    EXPECT_TRUE(chats[i].stopping().ignore_eos());
    const std::string& text = chats[i].messages().messages(0).content();
    EXPECT_EQ(Words(text), 100);  // and ten tokens around them
    prompts.insert(text);
  }
  EXPECT_EQ(prompts.size(), 16u);
  EXPECT_THAT(run.out(), HasSubstr("fake-model at " + router.address() + "; closed loop, concurrency 3"));
  EXPECT_THAT(run.out(), HasSubstr("seed 5"));
  EXPECT_THAT(run.out(), ContainsRegex(" full  sluice-mt\nSuccessful requests +6 +6\n"));
  EXPECT_THAT(run.out(), ContainsRegex("KV on the wire \\(MB\\) +2.10 +2.10\n"));
  EXPECT_THAT(run.out(), HasSubstr("full: 6 served by sluice-mt"));  // it always says so
  EXPECT_EQ(run.err(), "");

  const nlohmann::json json = Json();
  EXPECT_EQ(json["parameters"]["max_concurrency"], 3);
  EXPECT_EQ(json["parameters"]["num_requests"], 6);
  EXPECT_EQ(json["parameters"]["num_warmups"], 2);
  EXPECT_EQ(json["parameters"]["prompt_tokens"], 110);
  EXPECT_TRUE(json["parameters"]["request_rate"].is_null());
  ASSERT_EQ(json["runs"].size(), 2u);
  const nlohmann::json& full = json["runs"][0];
  EXPECT_EQ(full["completed"], 6);
  EXPECT_EQ(full["total_output_tokens"], 30);
  EXPECT_LE(full["max_concurrent_requests"], 3);
  EXPECT_TRUE(full["request_goodput"].is_null());
  ASSERT_EQ(full["requests"].size(), 6u);
  for (const nlohmann::json& request : full["requests"]) {
    EXPECT_EQ(request["code"], "OK");
    EXPECT_EQ(request["itls_ms"].size(), 1u);  // two deltas
    EXPECT_EQ(request["wire_bytes"], 2100000);
    EXPECT_GE(request["e2el_ms"], request["ttft_ms"]);
  }
}

TEST_F(BenchTest, ProgressIsABarOnATerminal) {
  run.err_tty = true;
  router.Hang();
  std::thread stopper([&] {
    EXPECT_TRUE(run.err_text().WaitFor("default, 0 ended, 0 failed ["));
    kill(getpid(), SIGINT);
  });
  EXPECT_EQ(Bench({"--requests", "4"}), 130);
  stopper.join();
}

TEST_F(BenchTest, FailuresAreCountedByCodeAndAllOfThemIsAFailure) {
  router.FailWith(WithReason(absl::ResourceExhaustedError("queue full"), "QUEUE_FULL"));
  EXPECT_EQ(Bench({"--requests", "3", "--json", json_path()}), 0) << run.err();
  EXPECT_THAT(run.out(), ContainsRegex("Successful requests +2\nFailed requests +1\n"));
  EXPECT_THAT(run.out(), HasSubstr("default: 1 failed with RESOURCE_EXHAUSTED, first: queue full\n"));
  EXPECT_EQ(Json()["runs"][0]["errors"]["RESOURCE_EXHAUSTED"]["count"], 1);
  const nlohmann::json requests = Json()["runs"][0]["requests"];
  EXPECT_EQ(requests[0]["code"], "RESOURCE_EXHAUSTED");
  EXPECT_GE(requests[1]["sent_s"].get<double>(), requests[0]["end_s"].get<double>() + 0.1) << "it pauses";

  router.FailWith(absl::InvalidArgumentError("compression: no"));
  EXPECT_EQ(Bench({"--requests", "1"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("INVALID_ARGUMENT from " + router.address() + ": compression: no"));
}

TEST_F(BenchTest, TurnsAreSessionsThatAreDeletedAfterwards) {
  ASSERT_EQ(Bench({"--turns", "3", "--turn-tokens", "30", "--prompt-tokens", "60", "--requests", "7",
                   "--concurrency", "2", "--json", json_path()}),
            0)
      << run.err();
  EXPECT_TRUE(router.sessions().empty());
  std::map<std::string, std::vector<int>> turns;  // session -> words of each
  for (const v1::ChatRequest& chat : router.chats()) {
    turns[chat.session_turn().session_id()].push_back(Words(chat.session_turn().new_messages(0).content()));
  }
  ASSERT_EQ(turns.size(), 3u);
  int longest = 0, all = 0;
  for (const auto& [session, words] : turns) {
    longest = std::max(longest, static_cast<int>(words.size()));
    all += static_cast<int>(words.size());
    EXPECT_EQ(words[0], 50);
    for (size_t i = 1; i < words.size(); ++i) EXPECT_EQ(words[i], 20);
  }
  EXPECT_EQ(longest, 3);
  EXPECT_EQ(all, 7);
  EXPECT_EQ(Json()["runs"][0]["requests"].size(), 7u);
}

TEST_F(BenchTest, PromptsOfAFileAreSentAsTheyAreAndBeginAgain) {
  const std::string file = dir.Write("p.jsonl",
                                     "{\"prompt\": \"one\", \"output_tokens\": 7}\n"
                                     "{\"messages\": [{\"role\": \"system\", \"content\": \"brief\"}, "
                                     "{\"role\": \"user\", \"content\": \"two\"}]}\n"
                                     "{\"turns\": [\"three\", \"four\"]}\n");
  ASSERT_EQ(Bench({"--prompts", file, "--requests", "5"}), 0) << run.err();
  const std::vector<v1::ChatRequest> chats = router.chats();
  ASSERT_EQ(chats.size(), 5u);
  EXPECT_EQ(chats[0].messages().messages(0).content(), "one");
  EXPECT_EQ(chats[0].stopping().max_tokens(), 7);
  EXPECT_EQ(chats[1].messages().messages_size(), 2);
  EXPECT_EQ(chats[1].stopping().max_tokens(), 128);
  EXPECT_EQ(chats[2].session_turn().new_messages(0).content(), "three");
  EXPECT_EQ(chats[3].session_turn().new_messages(0).content(), "four");
  EXPECT_EQ(chats[3].session_turn().session_id(), chats[2].session_turn().session_id());
  EXPECT_EQ(chats[4].messages().messages(0).content(), "one");
}

TEST_F(BenchTest, ATraceIsReplayedAtItsTimesWithItsLengths) {
  const std::string trace = dir.Write(
      "t.jsonl",
      "{\"timestamp\": 0, \"input_length\": 510, \"output_length\": 8, \"hash_ids\": [0]}\n"
      "{\"timestamp\": 400, \"input_length\": 1110, \"output_length\": 4, \"hash_ids\": [0, 1, 2]}\n"
      "{\"timestamp\": 800, \"input_length\": 60, \"output_length\": 1, \"hash_ids\": [3]}\n");
  ASSERT_EQ(Bench({"--trace", trace, "--trace-speed", "2", "--trace-scale", "0.5", "--warmup", "2", "--seed",
                   "5", "--json", json_path(), "--plot", dir.path() + "/p.svg"}),
            0)
      << run.err();
  std::vector<v1::ChatRequest> chats = router.chats();
  ASSERT_EQ(chats.size(), 5u);
  // The warm-up says something else, and is not in the figures.
  const auto text = [&](size_t i) { return chats[i].messages().messages(0).content(); };
  EXPECT_EQ(Words(text(0)), Words(text(2)));
  EXPECT_NE(text(0).substr(0, 40), text(2).substr(0, 40));
  EXPECT_EQ(Words(text(2)), 245);  // and ten tokens around them
  EXPECT_EQ(Words(text(3)), 545);
  EXPECT_EQ(Words(text(4)), 20);
  EXPECT_EQ(text(3).substr(0, text(2).size()), text(2));
  EXPECT_EQ(chats[2].stopping().max_tokens(), 4);
  EXPECT_EQ(chats[4].stopping().max_tokens(), 1);
  const nlohmann::json json = Json();
  EXPECT_EQ(json["parameters"]["trace_scale"], 0.5);
  EXPECT_TRUE(json["parameters"]["output_tokens"].is_null());
  ASSERT_EQ(json["runs"][0]["requests"].size(), 3u);
  std::set<double> arrivals;
  for (const nlohmann::json& request : json["runs"][0]["requests"])
    arrivals.insert(request["arrival_s"].get<double>());
  EXPECT_THAT(arrivals,
              ::testing::ElementsAre(0, ::testing::DoubleNear(0.2, 1e-6), ::testing::DoubleNear(0.4, 1e-6)));
  EXPECT_THAT(run.out(), HasSubstr("open loop, arrivals x 2; trace " + trace + ", lengths x 0.5; seed 5"));
  std::ifstream plot(dir.path() + "/p.svg");
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(plot), {}), HasSubstr("open loop, arrivals x 2"));

  ASSERT_EQ(Bench({"--trace", trace, "--trace-speed", "100", "--requests", "2", "--preset", "full,sluice"}),
            0);
  EXPECT_EQ(router.chats().size(), 9u);
}

TEST_F(BenchTest, DurationEndsTheLoad) {
  const absl::Time began = absl::Now();
  ASSERT_EQ(Bench({"--duration", "0.5", "--rate", "40", "--seed", "1", "--json", json_path()}), 0)
      << run.err();
  EXPECT_GE(absl::Now() - began, absl::Milliseconds(400));
  const nlohmann::json json = Json();
  EXPECT_GT(json["runs"][0]["completed"], 0);
  for (const nlohmann::json& request : json["runs"][0]["requests"]) EXPECT_LT(request["arrival_s"], 0.5);
}

TEST_F(BenchTest, CtrlCCancelsPrintsAndStopsTheOtherPresets) {
  router.Hang();
  std::thread stopper([&] {
    while (router.chats().size() < 2) absl::SleepFor(absl::Milliseconds(5));
    kill(getpid(), SIGINT);
  });
  // One of two users hangs at once; the other goes on until the signal.
  EXPECT_EQ(Bench({"--concurrency", "2", "--requests", "1000000", "--preset", "full,sluice", "--json",
                   json_path()}),
            130);
  stopper.join();
  for (int i = 0; i < 500 && router.cancelled() == 0; ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(router.cancelled(), 1);
  EXPECT_THAT(run.out(), HasSubstr("Successful requests"));
  EXPECT_THAT(run.out(), ContainsRegex("Interrupted requests +[12]\n"));
  EXPECT_THAT(run.err(), HasSubstr("sluice bench: interrupted"));
  const nlohmann::json json = Json();
  ASSERT_EQ(json["runs"].size(), 1u);
  EXPECT_EQ(json["runs"][0]["interrupted"], true);
  EXPECT_EQ(json["runs"][0]["failed"], 0);
}

TEST_F(BenchTest, ARouterThatIsNotThereIsNamed) {
  router.server()->Stop(absl::ZeroDuration());
  EXPECT_EQ(Bench({"--requests", "1"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("is a router serving at " + router.address()));
}

TEST_F(BenchTest, BadFlagsAreNamed) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--concurrency", "0"},
                                             {"--rate", "0"},
                                             {"--rate", "nan"},
                                             {"--requests", "0"},
                                             {"--duration", "-1"},
                                             {"--warmup", "-1"},
                                             {"--prompt-tokens", "0"},
                                             {"--output-tokens", "x"},
                                             {"--turns", "0"},
                                             {"--preset", "full,magic"},
                                             {"--budget", "3"},
                                             {"--trace-speed", "2"},
                                             {"--slo-ttft", "0"}}) {
    EXPECT_EQ(Bench(words), 2) << words[0] << " " << words[1];
    EXPECT_THAT(run.err(), HasSubstr(words[0]));
  }
  const std::string file = dir.Write("p.jsonl", "{}");
  EXPECT_EQ(Bench({"--prompts", file, "--turns", "2"}), 2);
  EXPECT_EQ(Bench({"--prompts", file}), 1);
  for (const std::string flag : {"--rate", "--output-tokens", "--prompt-tokens"}) {
    EXPECT_EQ(Bench({"--trace", file, flag, "2"}), 2) << flag;
  }
  EXPECT_EQ(Bench({"--trace", file}), 1);
  EXPECT_THAT(run.err(), HasSubstr("--trace " + file + ": line 1: timestamp"));
  EXPECT_THAT(run.err(), HasSubstr("--prompts " + file + ": line 1"));
  EXPECT_EQ(Bench({"--prompt-tokens", "100", "--shared-prefix-tokens", "100"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("--shared-prefix-tokens 100: want fewer than --prompt-tokens 100"));
  EXPECT_EQ(Bench({"--json", dir.path() + "/none/out.json"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("--json"));
  EXPECT_EQ(Bench({"--plot", dir.path() + "/none/out.svg"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("--plot"));
  EXPECT_TRUE(router.chats().empty());
  EXPECT_EQ(run.Run({"bench", "--help"}), 0);
  EXPECT_THAT(run.out(), HasSubstr("Examples:"));
}

}  // namespace
}  // namespace sluice
