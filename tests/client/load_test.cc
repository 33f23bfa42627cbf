// The arithmetic of sluice bench: arrivals, percentiles, goodput, prompts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/load_prompts.h"
#include "client/load_report.h"
#include "client/load_schedule.h"
#include "client/load_summary.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

nlohmann::json Golden() {
  std::ifstream file(std::string(SLUICE_SOURCE_DIR) + "/tests/golden/client/load_math.json");
  return nlohmann::json::parse(file);
}

TEST(PoissonArrivals, AreThoseOfAnIndependentCalculation) {
  const nlohmann::json golden = Golden();
  ASSERT_EQ(golden["arrivals"].size(), 3u);
  for (const auto& process : golden["arrivals"]) {
    PoissonArrivals arrivals(process["rate"], process["seed"].get<uint64_t>());
    int i = 0;
    for (double want : process["seconds"]) {
      absl::Duration at = arrivals.Next();
      while (i++ % 19 != 0) at = arrivals.Next();
      EXPECT_NEAR(absl::ToDoubleSeconds(at), want, 1e-9 + want * 1e-12);
    }
  }
}

TEST(PoissonArrivals, GapsAreExponential) {
  constexpr int kCount = 20000;
  constexpr double kRate = 50;
  PoissonArrivals arrivals(kRate, 1);
  absl::Duration last;
  std::vector<double> gaps;
  for (int i = 0; i < kCount; ++i) {
    const absl::Duration at = arrivals.Next();
    ASSERT_GE(at, last);
    gaps.push_back(absl::ToDoubleSeconds(at - last));
    last = at;
  }
  EXPECT_NEAR(absl::ToDoubleSeconds(last), kCount / kRate, 4 * std::sqrt(kCount) / kRate);
  // Kolmogorov-Smirnov against 1 - exp(-rate * gap); 1.95 / sqrt(n) is passed once in a thousand seeds.
  std::sort(gaps.begin(), gaps.end());
  double distance = 0;
  for (int i = 0; i < kCount; ++i) {
    const double want = 1 - std::exp(-kRate * gaps[i]);
    distance =
        std::max({distance, std::abs(want - double(i) / kCount), std::abs(double(i + 1) / kCount - want)});
  }
  EXPECT_LT(distance, 1.95 / std::sqrt(kCount));
}

TEST(Statistics, AreThoseOfAnIndependentCalculation) {
  const nlohmann::json golden = Golden();
  for (const auto& want : golden["percentiles"]) {
    const Statistics got = StatisticsOf(want["values"].get<std::vector<double>>());
    EXPECT_EQ(got.count, want["values"].size());
    EXPECT_NEAR(got.mean, want["mean"], 1e-9);
    EXPECT_NEAR(got.std, want["std"], 1e-9);
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(got.percentiles[i], want["percentiles"][i], 1e-9);
  }
}

TEST(Statistics, OfNothingAndOfOne) {
  EXPECT_EQ(StatisticsOf({}).count, 0u);
  EXPECT_EQ(StatisticsOf({}).percentiles[3], 0);
  const Statistics one = StatisticsOf({7});
  for (double percentile : one.percentiles) EXPECT_EQ(percentile, 7);
  EXPECT_EQ(one.min, 7);
  EXPECT_EQ(one.max, 7);
  EXPECT_EQ(one.std, 0);
}

// Times in ms since the run began; tokens: when each came.
RequestRecord Record(int arrival, const std::vector<int>& tokens, int end) {
  RequestRecord record;
  record.arrival = record.sent = absl::Milliseconds(arrival);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i == 0) record.first_token = absl::Milliseconds(tokens[0]);
    if (i > 0) record.itl.push_back(absl::Milliseconds(tokens[i] - tokens[i - 1]));
    record.last_token = absl::Milliseconds(tokens[i]);
  }
  record.end = absl::Milliseconds(end);
  record.done.mutable_usage()->set_prompt_tokens(100);
  record.done.mutable_usage()->set_completion_tokens(static_cast<int>(tokens.size()));
  return record;
}

TEST(LoadSummary, CountsRatesAndLatencies) {
  std::vector<RequestRecord> records = {Record(0, {50, 60, 90}, 95), Record(100, {300, 310}, 320)};
  records[1].sent = absl::Milliseconds(180);  // it waited 80 ms in the client
  records.push_back(Record(200, {}, 250));
  records[2].status = absl::UnavailableError("nobody");
  records.push_back(Record(210, {}, 260));
  records[3].status = absl::UnavailableError("again");
  records.push_back(Record(220, {230}, 270));
  records[4].status = absl::CancelledError("ours");
  records[4].interrupted = true;
  records[0].done.mutable_compression()->set_wire_bytes(1000);
  records[1].done.mutable_compression()->set_wire_bytes(3000);
  records[0].done.mutable_compression()->set_kept_tokens_mean(10);
  const LoadSummary summary = Summarize(records, absl::Milliseconds(500), {});
  EXPECT_EQ(summary.completed, 2);
  EXPECT_EQ(summary.failed, 2);
  EXPECT_EQ(summary.interrupted, 1);
  EXPECT_EQ(summary.total_input_tokens, 200);
  EXPECT_EQ(summary.total_output_tokens, 5);
  EXPECT_DOUBLE_EQ(summary.request_throughput, 4);
  EXPECT_DOUBLE_EQ(summary.output_throughput, 10);
  EXPECT_DOUBLE_EQ(summary.total_token_throughput, 410);
  EXPECT_DOUBLE_EQ(summary.ttft_ms.mean, (50 + 200) / 2.0);  // from the arrival, not from the send
  EXPECT_DOUBLE_EQ(summary.tpot_ms.mean, (20 + 10) / 2.0);
  EXPECT_DOUBLE_EQ(summary.itl_ms.mean, (10 + 30 + 10) / 3.0);
  EXPECT_EQ(summary.itl_ms.count, 3u);
  EXPECT_DOUBLE_EQ(summary.e2el_ms.mean, (95 + 220) / 2.0);
  EXPECT_DOUBLE_EQ(summary.send_delay_ms.max, 80);
  EXPECT_DOUBLE_EQ(summary.mean_wire_bytes, 2000);
  EXPECT_DOUBLE_EQ(summary.mean_kept_tokens, 5);
  ASSERT_EQ(summary.errors.size(), 1u);
  EXPECT_EQ(summary.errors.at("UNAVAILABLE").count, 2);
  EXPECT_EQ(summary.errors.at("UNAVAILABLE").first_message, "nobody");
}

TEST(LoadSummary, NothingCompletedIsAllZero) {
  const LoadSummary summary = Summarize({}, absl::ZeroDuration(), {});
  EXPECT_EQ(summary.request_throughput, 0);
  EXPECT_EQ(summary.mean_wire_bytes, 0);
}

TEST(Slo, EveryBoundMustBeKeptAndItsEdgeIsGood) {
  const RequestRecord record = Record(100, {150, 160, 170}, 200);  // TTFT 50, TPOT 10, E2EL 100
  EXPECT_TRUE(Meets({}, record));
  EXPECT_TRUE(Meets({50, 10, 100}, record));
  EXPECT_FALSE(Meets({49.9, 10, 100}, record));
  EXPECT_FALSE(Meets({50, 9.9, 100}, record));
  EXPECT_FALSE(Meets({50, 10, 99.9}, record));
  EXPECT_FALSE(Meets({std::nullopt, std::nullopt, 99.9}, record));
  EXPECT_TRUE(Meets({50, 0.001, 100}, Record(100, {150}, 200))) << "one token has no TPOT";
  RequestRecord failed = record;
  failed.status = absl::InternalError("x");
  EXPECT_FALSE(Meets({}, failed));
  const LoadSummary summary =
      Summarize({record, Record(0, {500}, 501), failed}, absl::Seconds(2), {100, std::nullopt, std::nullopt});
  EXPECT_EQ(summary.good, 1);
  EXPECT_DOUBLE_EQ(summary.request_goodput, 0.5);
}

TEST(LoadTable, HasAColumnAPresetAndNamesTheErrors) {
  std::vector<LoadColumn> columns(2);
  columns[0].name = "full";
  columns[1].name = "rocketkv";
  for (LoadColumn& column : columns) {
    column.result.records = {Record(0, {50, 60, 90}, 95), Record(0, {}, 5)};
    column.result.records[0].done.mutable_compression()->set_method(column.name);
    column.result.records[1].status = absl::ResourceExhaustedError("the queue is full");
    column.summary = Summarize(column.result.records, absl::Seconds(1), {});
  }
  columns[1].result.records[0].done.mutable_compression()->set_off_reason("short");
  columns[1].summary = Summarize(columns[1].result.records, absl::Seconds(1), {});
  const std::string table = LoadTable(columns, {}, false);
  const std::vector<std::string> lines = absl::StrSplit(table, '\n');
  EXPECT_THAT(lines[0], ::testing::MatchesRegex(" +full  rocketkv"));
  EXPECT_THAT(table, ::testing::ContainsRegex("Failed requests +1 +1\n"));
  EXPECT_THAT(table, ::testing::ContainsRegex("P99 TTFT \\(ms\\) +50.00 +50.00\n"));
  EXPECT_THAT(table, HasSubstr("full: 1 failed with RESOURCE_EXHAUSTED, first: the queue is full\n"));
  EXPECT_THAT(table, HasSubstr("rocketkv: 1 served by rocketkv (off: short)\n"));
  EXPECT_THAT(table, ::testing::Not(HasSubstr("full: 1 served")));
  EXPECT_THAT(table, ::testing::Not(HasSubstr("goodput")));
  EXPECT_THAT(LoadTable(columns, {1, 1, 1}, false), HasSubstr("goodput"));
}

int Words(const v1::Messages& messages) {
  return static_cast<int>(
      std::vector<std::string>(absl::StrSplit(messages.messages(0).content(), ' ')).size());
}

TEST(SyntheticDialogue, HasTheLengthAskedForAndIsItsOwn) {
  absl::StatusOr<TokenFit> fit = FitTokens(32, 47, 160, 207);  // 1.25 tokens a word, 7 around them
  ASSERT_TRUE(fit.ok());
  EXPECT_DOUBLE_EQ(fit->per_word, 1.25);
  EXPECT_DOUBLE_EQ(fit->overhead, 7);
  SyntheticShape shape;
  shape.prompt_tokens = 1007;
  shape.turns = 3;
  shape.turn_tokens = 57;
  shape.seed = 9;
  std::set<std::string> starts;
  for (uint64_t run : {0, 1}) {
    for (uint64_t index = 0; index < 50; ++index) {
      const Dialogue dialogue = SyntheticDialogue(shape, *fit, run, index);
      ASSERT_EQ(dialogue.turns.size(), 3u);
      EXPECT_EQ(Words(dialogue.turns[0]), 800);
      EXPECT_EQ(Words(dialogue.turns[1]), 40);
      EXPECT_EQ(Words(dialogue.turns[2]), 40);
      starts.insert(dialogue.turns[0].messages(0).content().substr(0, 40));
      starts.insert(dialogue.turns[1].messages(0).content().substr(0, 40));
    }
  }
  EXPECT_EQ(starts.size(), 200u);
  EXPECT_EQ(SyntheticDialogue(shape, *fit, 1, 3).turns[0].SerializeAsString(),
            SyntheticDialogue(shape, *fit, 1, 3).turns[0].SerializeAsString());
}

TEST(SyntheticDialogue, SharesThePrefixWithinARunOnly) {
  SyntheticShape shape;
  shape.prompt_tokens = 100;
  shape.shared_prefix_tokens = 60;
  const TokenFit fit;  // a token a word
  const auto words = [&](uint64_t run, uint64_t index) -> std::vector<std::string> {
    return absl::StrSplit(SyntheticDialogue(shape, fit, run, index).turns[0].messages(0).content(), ' ');
  };
  const auto first = words(0, 0), second = words(0, 1), other = words(1, 0);
  EXPECT_EQ(first.size(), 100u);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 60, second.begin()));
  EXPECT_FALSE(std::equal(first.begin() + 60, first.begin() + 70, second.begin() + 60));
  EXPECT_FALSE(std::equal(first.begin(), first.begin() + 10, other.begin()));
}

TEST(FitTokens, RefusesWhatTellsNothing) {
  EXPECT_EQ(FitTokens(32, 40, 160, 40).status().code(), absl::StatusCode::kInternal);
}

TEST(ReadDialogues, TakesPromptsMessagesAndTurns) {
  TempDir dir;
  const std::string path = dir.Write("p.jsonl",
                                     "{\"prompt\": \"one\", \"output_tokens\": 7}\n\n"
                                     "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, "
                                     "{\"role\": \"user\", \"content\": \"two\"}]}\n"
                                     "{\"turns\": [\"three\", \"four\"]}\n");
  absl::StatusOr<std::vector<Dialogue>> dialogues = ReadDialogues(path);
  ASSERT_TRUE(dialogues.ok()) << dialogues.status();
  ASSERT_EQ(dialogues->size(), 3u);
  EXPECT_EQ((*dialogues)[0].turns[0].messages(0).content(), "one");
  EXPECT_EQ((*dialogues)[0].output_tokens, 7);
  EXPECT_EQ((*dialogues)[1].turns[0].messages_size(), 2);
  EXPECT_EQ((*dialogues)[1].turns[0].messages(0).role(), "system");
  ASSERT_EQ((*dialogues)[2].turns.size(), 2u);
  EXPECT_EQ((*dialogues)[2].turns[1].messages(0).content(), "four");
}

TEST(ReadDialogues, NamesTheLineAndWhatIsWrong) {
  TempDir dir;
  for (const auto& [line, text] : std::vector<std::pair<std::string, std::string>>{
           {"nonsense", "JSON object"},
           {"[1]", "JSON object"},
           {"{}", "\"prompt\""},
           {"{\"prompt\": \"x\", \"turns\": [\"y\"]}", "one of"},
           {"{\"prompt\": 5}", "prompt: want a string"},
           {"{\"prompt\": \"\"}", "prompt: empty"},
           {"{\"turns\": []}", "turns"},
           {"{\"turns\": [5]}", "turns: want a string"},
           {"{\"messages\": [5]}", "messages"},
           {"{\"messages\": [{\"role\": \"user\"}]}", "content"},
           {"{\"prompt\": \"x\", \"output_tokens\": 0}", "output_tokens"},
           {"{\"prompt\": \"x\", \"output_tokens\": 1e99}", "output_tokens"},
           {"{\"prompt\": \"x\", \"output_tokens\": 18446744073709551615}", "output_tokens"}}) {
    const absl::Status status =
        ReadDialogues(dir.Write("p.jsonl", absl::StrCat("{\"prompt\": \"ok\"}\n", line))).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(status.message()), HasSubstr("line 2")) << line;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text)) << line;
  }
  EXPECT_EQ(ReadDialogues(dir.Write("p.jsonl", "\n \n")).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadDialogues(dir.path() + "/none").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace sluice
