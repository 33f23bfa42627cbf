// sluice top: what two scrapes say, and the command against metrics pages of real registries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/metrics_series.h"
#include "client/top_figures.h"
#include "common/metrics/kv_transfer_metrics.h"
#include "common/metrics/router_metrics.h"
#include "common/metrics/worker_metrics.h"
#include "tests/client/client_run.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

MetricSeries SeriesOf(const std::string& text) {
  MetricSeries series;
  AddSeries(text, &series);
  return series;
}

TEST(MetricsSeriesTest, ReadsNamesLabelsAndValues) {
  const MetricSeries series = SeriesOf(
      "# HELP x Text {with} braces 1\n# TYPE x gauge\nx 3\nx{a=\"1\",b=\"two words, \\\"quoted\\\" {}\"} "
      "4.5e2\n"
      "y{a=\"1\"} +Inf\nbroken{a=\"1 5\nx{a=\"1\"}\n\n");
  EXPECT_EQ(SumOf(series, "x"), 453);
  EXPECT_EQ(SumOf(series, "x", {{"b", "two words, \"quoted\" {}"}}), 450);
  EXPECT_EQ(SumOf(series, "x", {{"a", "2"}}), 0);
  EXPECT_EQ(SumOf(series, "z"), 0);
  EXPECT_EQ(series.size(), 2u);
  EXPECT_THAT(SumBy(series, "a", "x"), ElementsAre(Pair("1", 450)));
}

TEST(MetricsSeriesTest, SeveralServersAreSummedAndARestartBeginsAnew) {
  MetricSeries before = SeriesOf("x{a=\"1\"} 10\n"), after = SeriesOf("x{a=\"1\"} 12\nx{a=\"2\"} 5\n");
  AddSeries("x{a=\"1\"} 100\n", &before);
  AddSeries("x{a=\"1\"} 101\n", &after);
  EXPECT_EQ(SumOf(Increases(before, after), "x"), 3 + 5);
  EXPECT_EQ(SumOf(Increases(SeriesOf("x 10\n"), SeriesOf("x 4\n")), "x"), 4);
}

TEST(MetricsSeriesTest, QuantilesAreThoseOfPrometheus) {
  const MetricSeries series = SeriesOf(
      "h_bucket{le=\"1\"} 0\nh_bucket{le=\"2\"} 50\nh_bucket{le=\"4\"} 100\nh_bucket{le=\"+Inf\"} "
      "110\nh_count 110\n"
      "h_sum 330\n");
  EXPECT_DOUBLE_EQ(*QuantileOf(series, "h", .25), 1 + 27.5 / 50);
  EXPECT_DOUBLE_EQ(*QuantileOf(series, "h", .5), 2 + 2 * 5. / 50);
  EXPECT_DOUBLE_EQ(*QuantileOf(series, "h", .99), 4);  // beyond the last bound
  EXPECT_DOUBLE_EQ(*MeanOf(series, "h"), 3);
  EXPECT_FALSE(QuantileOf(SeriesOf("h_bucket{le=\"1\"} 0\nh_bucket{le=\"+Inf\"} 0\n"), "h", .5).has_value());
  EXPECT_FALSE(QuantileOf(series, "other", .5).has_value());
}

// Pages of a router and two workers, as the servers make them.
struct Servers {
  MetricsRegistry router_registry{{"router", "needle", "test"}},
      prefill_registry{{"prefill", "needle", "test"}}, decode_registry{{"decode", "needle", "test"}};
  RouterMetrics router{&router_registry, {{"ChatStream"}, {"short_prompt"}}};
  PrefillMetrics prefill{&prefill_registry, {{"full", "rocketkv"}, {"ucx"}}};
  KvTransferMetrics transfer{&prefill_registry, {"peer_lost"}};
  DecodeMetrics decode{&decode_registry};

  Servers() {
    router.prefill_workers.ready.Set(1);
    router.decode_workers.ready.Set(2);
    router.decode_workers.lost.Set(1);
    decode.kv_blocks_free.Set(90);
    decode.kv_blocks_active.Set(10);
  }
  // Two seconds of work.
  void Work() {
    for (int i = 0; i < 10; ++i) {
      router.requests.At("ChatStream").At("OK").Increment();
      router.time_to_first_token_seconds.Observe(.05);
      decode.batch_size.Observe(4);
    }
    router.requests.At("ChatStream").At("UNAVAILABLE").Increment(4);
    router.inter_token_seconds.Observe(.004);
    router.tokens_prompt.Increment(2000);
    router.tokens_completion.Increment(50);
    router.in_flight_decode.Set(3);
    prefill.kv_transfer_bytes_wire.Increment(3e9);
    prefill.compression_kept_ratio.At("rocketkv").Observe(.25);
    prefill.compression_kept_ratio.At("rocketkv").Observe(.15);
    transfer.failures.At("peer_lost").Increment(2);
  }
  MetricSeries Look() const {
    MetricSeries series;
    for (const MetricsRegistry* registry : {&router_registry, &prefill_registry, &decode_registry})
      AddSeries(registry->Render(), &series);
    return series;
  }
};

TEST(TopFiguresTest, AreWhatHappenedBetweenTwoLooks) {
  Servers servers;
  servers.Work();  // before the first look: not counted
  const MetricSeries before = servers.Look();
  servers.Work();
  const TopFigures figures = FiguresOf(before, servers.Look(), absl::Seconds(2));
  EXPECT_EQ(figures.model, "needle");
  EXPECT_EQ(figures.requests_per_second, 5);
  EXPECT_EQ(figures.failed_per_second, 2);
  EXPECT_GT(*figures.first_token.p50, .04);
  EXPECT_LE(*figures.first_token.p99, .06);
  EXPECT_LE(*figures.inter_token.p50, .005);
  EXPECT_EQ(figures.prompt_per_second, 1000);
  EXPECT_EQ(figures.cached_per_second, 0);
  EXPECT_EQ(figures.completion_per_second, 25);
  EXPECT_EQ(figures.decoded_per_second, 20);
  EXPECT_EQ(*figures.mean_batch, 4);
  EXPECT_EQ(figures.in_flight.at("decode"), 3);
  EXPECT_THAT(figures.workers.at("decode"), ElementsAre(Pair("lost", 1), Pair("ready", 2)));
  EXPECT_THAT(figures.workers.at("prefill"), ElementsAre(Pair("ready", 1)));
  EXPECT_EQ(figures.kv_pages.at("free"), 90);
  EXPECT_EQ(figures.wire_bytes_per_second, 1.5e9);
  EXPECT_FALSE(figures.exposed.p50.has_value());
  EXPECT_EQ(figures.failed_handoffs_per_second, 1);
  ASSERT_EQ(figures.kept_ratio.size(), 1u);
  EXPECT_DOUBLE_EQ(figures.kept_ratio.at("rocketkv"), .2);
  const std::string text = TopText(figures);
  for (const char* part :
       {"5.00/s ok, 2.00/s failed", "decode 3", "in 1000/s (cached 0/s), out 25/s; decoding 20/s",
        "lost 1, ready 2", "active 10, free 90", "4.0 sequences a step", "1.50 GB/s, 1.00/s failed", "p50 -",
        "rocketkv 20.0 %"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(TopCommandTest, OnceAsJsonAndWhoIsSilent) {
  Servers servers;
  const auto page = [](MetricsRegistry& registry) {
    return absl::StrCat("127.0.0.1:", *registry.Serve("127.0.0.1:0", "--metrics-listen"));
  };
  const std::string pages = absl::StrCat(page(servers.router_registry), ",", page(servers.prefill_registry),
                                         ",", page(servers.decode_registry), ",127.0.0.1:1");
  ClientRun run;
  std::thread work([&] {
    absl::SleepFor(absl::Milliseconds(100));
    servers.Work();
  });
  const int code = run.Run({"top", "--metrics", pages, "--once", "--json", "--interval", "0.5"});
  work.join();
  ASSERT_EQ(code, 0) << run.err();
  const nlohmann::json json = nlohmann::json::parse(run.out());
  EXPECT_EQ(json["model"], "needle");
  EXPECT_EQ(json["workers"]["decode"]["ready"], 2);
  EXPECT_EQ(json["kv_pages"]["free"], 90);
  EXPECT_EQ(json["silent"], nlohmann::json({"127.0.0.1:1"}));
  EXPECT_EQ(run.out().find('\x1b'), std::string::npos);
}

TEST(TopCommandTest, NobodyAnswersSaysWhatToDo) {
  ClientRun run;
  EXPECT_EQ(run.Run({"top", "--metrics", "127.0.0.1:1", "--once"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("sluice up"));
  EXPECT_THAT(run.err(), HasSubstr("--metrics"));
  ClientRun wrong;
  EXPECT_EQ(wrong.Run({"top", "--metrics", "nonsense"}), 1);
  EXPECT_THAT(wrong.err(), HasSubstr("--metrics"));
}

TEST(TopCommandTest, OnATerminalItDrawsOverItselfUntilCtrlC) {
  ClientRun run;  // before the servers: their threads block the signal, too
  run.out_tty = true;
  Servers servers;
  const std::string page =
      absl::StrCat("127.0.0.1:", *servers.router_registry.Serve("127.0.0.1:0", "--metrics-listen"));
  std::thread stop([&] {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    const auto blocks = [&] {
      int n = 0;
      const std::string out = run.out();
      for (size_t at = 0; (at = out.find("\x1b[H\x1b[J", at)) != std::string::npos; ++at) ++n;
      return n;
    };
    while (blocks() < 2 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(20));
    kill(getpid(), SIGINT);
  });
  EXPECT_EQ(run.Run({"top", "--metrics", page, "--interval", "0.1"}), 130);
  stop.join();
  EXPECT_THAT(run.out(), HasSubstr("first token"));
}

}  // namespace
}  // namespace sluice
