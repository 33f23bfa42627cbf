// A recorded load as sluice bench reads and replays it, and the picture of a load.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/load_plot.h"
#include "client/load_source.h"
#include "client/load_trace.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> Words(const Dialogue& dialogue) {
  return absl::StrSplit(dialogue.turns[0].messages(0).content(), ' ');
}

size_t Shared(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  size_t i = 0;
  while (i < std::min(a.size(), b.size()) && a[i] == b[i]) ++i;
  return i;
}

TEST(ReadTrace, TakesTheLinesOfAMooncakeTrace) {
  TempDir dir;
  const std::string path = dir.Write(
      "t.jsonl",
      "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 3, \"hash_ids\": [7]}\n\n"
      "{\"timestamp\": 2500, \"input_length\": 513, \"output_length\": 40, \"hash_ids\": [7, 8]}\n");
  absl::StatusOr<std::vector<TraceRequest>> trace = ReadTrace(path);
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[1].arrival, absl::Milliseconds(2500));
  EXPECT_EQ((*trace)[1].input_tokens, 513);
  EXPECT_EQ((*trace)[1].output_tokens, 40);
  EXPECT_EQ((*trace)[1].blocks, (std::vector<int64_t>{7, 8}));
}

TEST(ReadTrace, NamesTheLineAndWhatIsWrong) {
  TempDir dir;
  const std::string good =
      "{\"timestamp\": 9, \"input_length\": 2, \"output_length\": 3, \"hash_ids\": [7]}\n";
  for (const auto& [line, text] : std::vector<std::pair<std::string, std::string>>{
           {"nonsense", "JSON object"},
           {"{\"input_length\": 2, \"output_length\": 3, \"hash_ids\": [7]}", "timestamp"},
           {"{\"timestamp\": -1, \"input_length\": 2, \"output_length\": 3, \"hash_ids\": [7]}", "timestamp"},
           {"{\"timestamp\": 8, \"input_length\": 2, \"output_length\": 3, \"hash_ids\": [7]}", "earlier"},
           {"{\"timestamp\": 9, \"input_length\": 0, \"output_length\": 3, \"hash_ids\": []}",
            "input_length"},
           {"{\"timestamp\": 9, \"input_length\": 18446744073709551615, \"output_length\": 3}",
            "input_length"},
           {"{\"timestamp\": 9, \"input_length\": 2, \"output_length\": 1.5, \"hash_ids\": [7]}",
            "output_length"},
           {"{\"timestamp\": 9, \"input_length\": 513, \"output_length\": 3, \"hash_ids\": [7]}",
            "hash_ids: want 2"},
           {"{\"timestamp\": 9, \"input_length\": 2, \"output_length\": 3, \"hash_ids\": [\"x\"]}",
            "hash_ids"}}) {
    const absl::Status status = ReadTrace(dir.Write("t.jsonl", good + line)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(status.message()), HasSubstr("line 2")) << line;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text)) << line;
  }
  EXPECT_THAT(std::string(ReadTrace(dir.Write("t.jsonl", " \n")).status().message()),
              HasSubstr("no request"));
}

TEST(TraceDialogue, SharesTextExactlyWhereIdsAreEqual) {
  const TokenFit fit{7, 1.25};
  const TraceRequest first{absl::ZeroDuration(), 1500, 10, {0, 1, 2}};
  const TraceRequest longer{absl::ZeroDuration(), 2600, 10, {0, 1, 2, 3, 4, 5}};
  const TraceRequest other{absl::ZeroDuration(), 1500, 10, {0, 6, 2}};
  const auto words = [&](const TraceRequest& request, double scale, uint64_t run = 0) {
    return Words(TraceDialogue(request, scale, fit, 9, run));
  };
  for (double scale : {1.0, 0.258, 0.05}) {
    const size_t block = std::lround(512 * scale / 1.25);
    EXPECT_EQ(words(first, scale).size(), std::lround((std::lround(1500 * scale) - 7) / 1.25)) << scale;
    // All of the first prompt, the part of a block at its end included, begins the longer one.
    EXPECT_EQ(Shared(words(first, scale), words(longer, scale)), words(first, scale).size()) << scale;
    const size_t common = Shared(words(first, scale), words(other, scale));
    EXPECT_GE(common, block) << scale;
    EXPECT_LE(common, block + 3) << scale;  // two random words may be the same
    const auto a = words(first, scale), b = words(other, scale);
    EXPECT_TRUE(std::equal(a.begin() + 2 * block, a.end(), b.begin() + 2 * block)) << scale;
    EXPECT_LE(Shared(words(first, scale), words(first, scale, 1)), 3u) << "runs share nothing";
  }
  EXPECT_EQ(words(longer, 1), words(longer, 1));
  EXPECT_EQ(TraceDialogue(first, 0.26, fit, 9, 0).output_tokens, 3);
  EXPECT_EQ(TraceDialogue(first, 0.001, fit, 9, 0).output_tokens, 1);
  EXPECT_EQ(words(first, 0.001).size(), 1u);
}

std::string TwoRequests(TempDir* dir) {
  return dir->Write(
      "t.jsonl",
      "{\"timestamp\": 0, \"input_length\": 100, \"output_length\": 10, \"hash_ids\": [0]}\n"
      "{\"timestamp\": 3000, \"input_length\": 900, \"output_length\": 100, \"hash_ids\": [0, 1]}\n");
}

TEST(TraceSource, FitsTheContextAndArrivesInTime) {
  TempDir dir;
  const MeasureFit measure = [] { return TokenFit(); };
  TraceOptions options;
  options.path = TwoRequests(&dir);
  options.speed = 2;
  auto source = TracePrompts(options, 500, measure);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->Requests(), 2);
  Arrivals arrivals = (*source)->OwnArrivals();
  EXPECT_EQ(arrivals(), absl::ZeroDuration());
  EXPECT_EQ(arrivals(), absl::Seconds(1.5));
  EXPECT_EQ(arrivals(), std::nullopt);
  EXPECT_EQ((*source)->OwnArrivals()(), absl::ZeroDuration()) << "each run from the first on";
  const Dialogue longest = (*source)->At(0, 1);
  const int tokens = static_cast<int>(Words(longest).size()) + *longest.output_tokens;
  EXPECT_LE(tokens, 500);
  EXPECT_GE(tokens, 450);

  EXPECT_EQ(Words((*TracePrompts(options, 0, measure))->At(0, 1)).size(), 900u) << "context unknown";
  options.scale = 0.5;
  const absl::Status refused = TracePrompts(options, 500, measure).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--trace-scale 0.5"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at most 0.48"));
  EXPECT_EQ(Words((*TracePrompts(options, 0, measure))->At(0, 1)).size(), 450u);
}

RequestRecord Record(int sent, int first, int end) {
  RequestRecord record;
  record.arrival = record.sent = absl::Milliseconds(sent);
  record.first_token = absl::Milliseconds(first);
  record.last_token = record.end = absl::Milliseconds(end);
  record.done.mutable_usage()->set_completion_tokens(3);
  return record;
}

// The points of each polyline.
std::vector<std::vector<std::pair<double, double>>> Lines(const std::string& svg) {
  std::vector<std::vector<std::pair<double, double>>> lines;
  for (absl::string_view text : absl::StrSplit(svg, '\n')) {
    const size_t at = text.find("points=\"");
    if (at == absl::string_view::npos) continue;
    text = text.substr(at + 8, text.rfind('"') - at - 8);
    lines.emplace_back();
    for (absl::string_view point : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
      const std::vector<std::string> xy = absl::StrSplit(point, ',');
      lines.back().emplace_back(std::stod(xy[0]), std::stod(xy[1]));
    }
  }
  return lines;
}

TEST(LoadPlot, DrawsALineForEachPresetInEachPanel) {
  std::vector<LoadColumn> columns(2);
  columns[0].name = "full";
  columns[1].name = "a<b";
  columns[0].result.records = {Record(0, 50, 100), Record(10, 110, 200), Record(20, 220, 300)};
  columns[1].result.records = {Record(0, 10, 30), Record(50, 60, 90)};
  columns[1].result.records.push_back(Record(60, 70, 80));
  columns[1].result.records.back().status = absl::InternalError("not a latency");
  const std::string svg = LoadPlot(columns, "model & more");
  EXPECT_TRUE(absl::StartsWith(svg, "<svg "));
  EXPECT_TRUE(absl::EndsWith(svg, "</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("model &amp; more"));
  EXPECT_THAT(svg, HasSubstr(">a&lt;b<"));
  EXPECT_THAT(svg, ::testing::Not(HasSubstr("nan")));
  const auto lines = Lines(svg);
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines[0].size(), 6u);  // TTFT: a step for each request
  EXPECT_EQ(lines[1].size(), 4u);  // the failed one has none
  EXPECT_EQ(lines[6].size(), 12u);
  for (const auto& line : lines) {
    for (size_t i = 1; i < line.size(); ++i) EXPECT_GE(line[i].first, line[i - 1].first);
  }
  // TTFT 50, 100, 200 ms on a logarithmic axis: equal steps to the right.
  EXPECT_NEAR(lines[0][2].first - lines[0][0].first, lines[0][4].first - lines[0][2].first, 0.2);
  // All three of the first preset are in flight from 20 ms to 100 ms, and that is the top of the panel.
  const auto highest = [](const auto& line) {  // y grows downwards
    return std::min_element(line.begin(), line.end(), [](auto& a, auto& b) { return a.second < b.second; })
        ->second;
  };
  EXPECT_LT(highest(lines[6]), highest(lines[7]));
  EXPECT_NEAR(lines[6].back().second, lines[6].front().second, 0.2) << "and none at the end";
}

TEST(LoadPlot, OfNothingSaysSo) {
  std::vector<LoadColumn> columns(1);
  EXPECT_THAT(LoadPlot(columns, ""), HasSubstr("nothing"));
  EXPECT_TRUE(Lines(LoadPlot(columns, "")).empty());
}

}  // namespace
}  // namespace sluice
