// The boards, the rules and the alerts against a real Prometheus that watches real servers under a load of
// `sluice bench`: they ask for nothing that is not there, everything that is there is asked for, and what
// they show is what the load saw.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/metrics/buckets.h"
#include "tests/client/client_run.h"
#include "tests/deploy/dashboards/board_files.h"
#include "tests/support/process_cluster.h"
#include "tests/support/prometheus_server.h"

namespace sluice {
namespace {

constexpr char kModel[] = "needle-14m";
constexpr int kOutputTokens = 12;
const std::vector<std::string> kProcesses = {"router", "prefill0", "decode0"};

// What the machine of a test does not have.
bool NeedsMore(absl::string_view metric) {
  return absl::StartsWith(metric, "sluice_gpu_") || absl::StartsWith(metric, "sluice_certificate_") ||
         absl::StartsWith(metric, "sluice_admission_") || absl::StartsWith(metric, "sluice_slo_");
}

// Words that no two prompts begin alike with.
std::string Words(int seed, int count) {
  constexpr const char* kWords[] = {"river", "stone", "lamp", "garden", "winter", "paper", "silver", "road"};
  std::string text = absl::StrCat("Report ", seed, ".");
  for (int i = 0; i < count; ++i) absl::StrAppend(&text, " ", kWords[(i * (seed + 3) + i / 7) % 8]);
  return text;
}

// Single requests, of which the first is too short to compress, and sessions.
std::string Prompts() {
  std::string lines;
  for (int i = 0; i < 6; ++i) {
    nlohmann::json line = {{"prompt", Words(i, i == 0 ? 10 : 120 + 90 * i)}};
    if (i % 2 == 1) line = {{"turns", {Words(i, 200), "And then?", "Why so?"}}};
    lines += line.dump() + "\n";
  }
  return lines;
}

struct Request {
  double ttft, tpot, e2el, prefill, transfer;
  std::vector<double> itl;
  int input, cached, output, turn;
  double full, kept, wire;
  std::string method;
};

// The whole of it: servers, Prometheus, a load. Started once.
class World {
 public:
  World() {
    ProcessCluster::Options options;
    options.prefill_flags = {"--shadow-rate", "1"};
    cluster_ = std::make_unique<ProcessCluster>(options);
    std::vector<ScrapeTarget> targets;
    for (const std::string& process : kProcesses) {
      const std::string role = process == "router" ? process : process.substr(0, process.size() - 1);
      targets.push_back({"sluice-" + role, cluster_->metrics_port(process)});
    }
    const std::string rules = SLUICE_SOURCE_DIR "/deploy/prometheus/";
    auto started = PrometheusServer::Start(targets, {rules + "recording.yml", rules + "alerts.yml"});
    if (!started.ok()) {
      missing_ = started.status();
      return;
    }
    prometheus_ = *std::move(started);
    if (!cluster_->WaitReady()) Fail("the servers do not become ready");
    AwaitFreshScrapes();
    before_ = absl::Now();
    absl::SleepFor(absl::Milliseconds(10));
    for (const auto& [preset, requests] : {std::pair("full", 8), std::pair("rocketkv", 9)})
      Load(preset, requests);
    AwaitTrue("sum(sluice_requests_in_flight) + sum(sluice_kv_transfer_in_flight) == 0",
              "requests do not end");
    AwaitTrue("sum(sluice_shadow_measured_total) > 0", "no prompt is measured");
    AwaitFreshScrapes();
    absl::SleepFor(kPatience * absl::Seconds(2));  // for rules, which are evaluated each second
    AwaitFreshScrapes();
    after_ = absl::Now();
  }

  const absl::Status& missing() const { return missing_; }
  const std::string& trouble() const { return trouble_; }
  const std::vector<Request>& requests() const { return requests_; }
  std::string Scrape(const std::string& process) const {
    const std::string answer = *ScrapeMetrics(cluster_->metrics_port(process));
    return answer.substr(answer.find("\r\n\r\n") + 4);
  }
  const PrometheusServer& prometheus() const { return *prometheus_; }
  // When all was over.
  absl::StatusOr<std::vector<PromSample>> InTheEnd(const std::string& expression) const {
    return prometheus_->Query(Filled(expression, kModel, "1m"), after_);
  }
  // Counts of the load where the expression has rates.
  absl::StatusOr<std::vector<PromSample>> OfTheLoad(const std::string& expression) const {
    return prometheus_->Query(OverLoad(expression, kModel, absl::ToInt64Milliseconds(after_ - before_)),
                              after_);
  }

 private:
  void Fail(const std::string& what) { absl::StrAppend(&trouble_, what, "\n", cluster_->Logs()); }

  void Load(const std::string& preset, int requests) {
    const TempDir directory;
    const std::string out = directory.path() + "/out.json";
    const int code =
        run_.Run({"bench", "--router", cluster_->router_address(), "--json", out, "--prompts",
                  directory.Write("prompts.jsonl", Prompts()), "--requests", absl::StrCat(requests),
                  "--concurrency", "2", "--output-tokens", absl::StrCat(kOutputTokens), "--preset", preset,
                  "--budget", "128", "--seed", "1"});
    if (code != 0) return Fail(absl::StrCat("bench ends with ", code, ": ", run_.err()));
    std::ifstream file(out);
    const nlohmann::json json = nlohmann::json::parse(file);
    for (const nlohmann::json& one : json["runs"][0]["requests"]) {
      if (one["code"] != "OK") return Fail("a request failed: " + one.dump());
      Request request{one["ttft_ms"].get<double>() / 1e3,
                      one["tpot_ms"].get<double>() / 1e3,
                      one["e2el_ms"].get<double>() / 1e3,
                      one["server_prefill_s"],
                      one["server_transfer_s"],
                      {},
                      one["input_tokens"],
                      one["cached_tokens"],
                      one["output_tokens"],
                      one["turn"],
                      one["kv_bytes_full"],
                      one["kv_bytes_kept"],
                      one["wire_bytes"],
                      one["method"]};
      for (const nlohmann::json& gap : one["itls_ms"]) request.itl.push_back(gap.get<double>() / 1e3);
      requests_.push_back(std::move(request));
    }
  }

  // Until Prometheus has seen each process twice from now on.
  void AwaitFreshScrapes() {
    for (int i = 0; i < 2; ++i) {
      const absl::Time from = absl::Now();
      AwaitTrue(absl::StrCat("min(timestamp(up)) > ", absl::ToUnixMillis(from), " / 1000 and min(up) == 1"),
                "Prometheus does not see all processes");
    }
  }
  void AwaitTrue(const std::string& expression, const std::string& what) {
    const absl::Time deadline = absl::Now() + kPatience * absl::Seconds(30);
    while (absl::Now() < deadline) {
      const auto result = prometheus_->Query(expression, absl::Now());
      if (result.ok() && !result->empty()) return;
      absl::SleepFor(absl::Milliseconds(100));
    }
    Fail(what);
  }

  ClientRun run_;  // first: it blocks the signals before gRPC starts threads
  std::unique_ptr<ProcessCluster> cluster_;
  std::unique_ptr<PrometheusServer> prometheus_;
  absl::Status missing_;
  std::string trouble_;
  absl::Time before_, after_;
  std::vector<Request> requests_;
};

class Boards : public testing::Test {
 protected:
  static void SetUpTestSuite() { world_ = new World; }
  static void TearDownTestSuite() { delete world_; }
  void SetUp() override {
    if (!world_->missing().ok()) GTEST_SKIP() << world_->missing().message();
    ASSERT_EQ(world_->trouble(), "");
  }
  static World& world() { return *world_; }

  // Expressions of panels and rules, with where they stand.
  static std::vector<std::pair<std::string, std::string>> Expressions() {
    std::vector<std::pair<std::string, std::string>> all;
    for (const PanelTarget& target : ReadTargets())
      all.emplace_back(absl::StrCat(target.board, ": ", target.panel), target.expression);
    const nlohmann::json rules = *world().prometheus().Get("/api/v1/rules");
    for (const nlohmann::json& group : rules["groups"])
      for (const nlohmann::json& rule : group["rules"])
        all.emplace_back(absl::StrCat("rule ", rule["name"].get<std::string>()), rule["query"]);
    return all;
  }

 private:
  static World* world_;
};
World* Boards::world_ = nullptr;

TEST_F(Boards, PromtoolFindsNothingToSayAboutAScrape) {
  for (const std::string& process : kProcesses) {
    const PromtoolRun run = Promtool("check metrics", world().Scrape(process));
    EXPECT_EQ(run.exit_code, 0) << process << "\n" << run.output;
    EXPECT_EQ(run.output, "") << process;
  }
}

TEST_F(Boards, PromtoolReadsThePanelsAndTheRules) {
  nlohmann::json rules = nlohmann::json::array();
  for (const PanelTarget& target : ReadTargets()) {
    rules.push_back({{"record", absl::StrCat("panel:p", rules.size(), ":x")},
                     {"expr", Filled(target.expression, kModel, "1m")}});
  }
  EXPECT_GT(rules.size(), 100u);
  const TempDir directory;
  const nlohmann::json file = {{"groups", {{{"name", "panels"}, {"rules", rules}}}}};
  const PromtoolRun panels = Promtool("check rules " + directory.Write("panels.yml", file.dump()));
  EXPECT_EQ(panels.exit_code, 0) << panels.output;
  const PromtoolRun config = Promtool("check config " SLUICE_SOURCE_DIR "/deploy/prometheus/prometheus.yml");
  EXPECT_EQ(config.exit_code, 0) << config.output;
}

TEST_F(Boards, EverySelectorFindsASeriesAndEveryLabelIsThere) {
  for (const auto& [where, expression] : Expressions()) {
    const std::string filled = Filled(expression, kModel, "1m");
    std::set<std::string> known = {"le"};
    bool elsewhere = false;
    for (const Selector& selector : SelectorsOf(filled)) {
      if (NeedsMore(selector.metric)) {
        elsewhere = true;
        continue;
      }
      const std::string series = absl::StrCat(selector.metric, "{", selector.matchers, "}");
      const auto found = world().InTheEnd(series);
      ASSERT_TRUE(found.ok()) << where << ": " << found.status();
      // Nothing is recorded of what never happened: a ratio over 6 hours is there, one of nothing is not a
      // number.
      ASSERT_FALSE(found->empty()) << where << ": no " << series;
      for (const PromSample& sample : *found)
        for (const auto& [label, value] : sample.labels.items()) known.insert(label);
      for (const std::string& label : selector.labels)
        EXPECT_TRUE((*found)[0].labels.contains(label)) << where << ": " << series << " has no " << label;
    }
    for (const std::string& label : GroupingLabelsOf(filled))
      EXPECT_TRUE(elsewhere || known.contains(label)) << where << ": no label " << label;
  }
}

TEST_F(Boards, EverythingThatIsMeasuredIsOnABoardOrInARule) {
  std::set<std::string> asked;
  for (const auto& [where, expression] : Expressions())
    for (const Selector& selector : SelectorsOf(expression)) asked.insert(selector.metric);
  const auto shown = [&](const std::string& family) {
    return std::any_of(asked.begin(), asked.end(), [&](absl::string_view metric) {
      return absl::ConsumePrefix(&metric, family) &&
             (metric.empty() || metric == "_bucket" || metric == "_sum" || metric == "_count");
    });
  };
  for (const std::string& process : kProcesses) {
    int families = 0;
    for (absl::string_view line : absl::StrSplit(world().Scrape(process), '\n')) {
      if (!absl::ConsumePrefix(&line, "# TYPE ")) continue;
      const std::string family(line.substr(0, line.find(' ')));
      EXPECT_TRUE(shown(family)) << process << " measures " << family << ", which nobody sees";
      ++families;
    }
    EXPECT_GT(families, 20) << process;
  }
}

// Panels for which the load gives nothing to draw.
bool MayBeEmpty(const PanelTarget& target) {
  static const std::set<std::string> empty = {"Hand-offs that failed"};
  if (empty.contains(target.panel) || absl::StartsWith(target.legend, "skipped")) return true;
  const auto selectors = SelectorsOf(target.expression);
  return std::any_of(selectors.begin(), selectors.end(),
                     [](const Selector& selector) { return NeedsMore(selector.metric); });
}

TEST_F(Boards, EveryPanelHasSomethingToDraw) {
  for (const PanelTarget& target : ReadTargets()) {
    const std::string where = absl::StrCat(target.board, ": ", target.panel, ": ", target.expression);
    const auto result = world().OfTheLoad(target.expression);
    ASSERT_TRUE(result.ok()) << where << ": " << result.status();
    if (MayBeEmpty(target)) continue;
    const bool drawn = std::any_of(result->begin(), result->end(), [](const PromSample& sample) {
      return std::isfinite(sample.value) && sample.value >= 0;
    });
    EXPECT_TRUE(drawn) << where;
  }
}

// The values of a panel's series by legend, over exactly the load.
std::map<std::string, double> Shown(World& world, const std::string& board, const std::string& panel) {
  std::map<std::string, double> values;
  for (const PanelTarget& target : ReadTargets()) {
    if (target.board != board || target.panel != panel) continue;
    const auto result = world.OfTheLoad(target.expression);
    EXPECT_TRUE(result.ok()) << target.expression << ": " << result.status();
    if (!result.ok()) continue;
    for (const PromSample& sample : *result) {
      std::string legend = target.legend;
      for (const auto& [label, value] : sample.labels.items())
        legend = absl::StrReplaceAll(legend, {{absl::StrCat("{{", label, "}}"), value.get<std::string>()}});
      values[legend] += sample.value;
    }
  }
  EXPECT_FALSE(values.empty()) << board << ": " << panel;
  return values;
}

TEST_F(Boards, CountsAreThoseOfTheLoad) {
  const std::vector<Request>& all = world().requests();
  const auto sum = [&](auto of) {
    return std::accumulate(all.begin(), all.end(), 0.0,
                           [&](double so_far, const Request& one) { return so_far + of(one); });
  };
  const auto n = static_cast<double>(all.size());
  ASSERT_EQ(n, 17);
  const auto shown = [&](const char* board, const char* panel) { return Shown(world(), board, panel); };
  using Values = std::map<std::string, double>;

  EXPECT_EQ(shown("overview", "Requests served"), (Values{{"", n}}));
  EXPECT_EQ(shown("overview", "Requests by code"), (Values{{"OK", n}}));
  EXPECT_EQ(shown("overview", "Requests by method"), (Values{{"ChatStream", n}}));
  EXPECT_EQ(shown("overview", "Error ratio"), (Values{{"of all requests", 0}}));
  EXPECT_EQ(shown("overview", "In flight"), (Values{{"", 0}}));
  EXPECT_EQ(shown("overview", "Ready prefill workers"), (Values{{"", 1}}));
  EXPECT_EQ(shown("overview", "Ready decode workers"), (Values{{"", 1}}));
  const double prompt = sum([](auto&r) { return r.input; }), cached = sum([](auto&r) { return r.cached; });
  EXPECT_EQ(shown("overview", "Tokens"),
            (Values{{"prompt", prompt}, {"cached", cached}, {"completion", n * kOutputTokens}}));

  EXPECT_GT(cached, 0);
  EXPECT_EQ(shown("prefill", "Prompt tokens"), (Values{{"hit", cached}, {"miss", prompt - cached}}));
  EXPECT_NEAR(shown("prefill", "Cached share of prompts")["found in history"], cached / prompt, 1e-9);
  EXPECT_NEAR(shown("sessions", "Prompt tokens cached")[""], cached / prompt, 1e-9);
  EXPECT_NEAR(shown("sessions", "Hit ratio of history")["prompt tokens"], cached / prompt, 1e-9);
  const double heat_prompts = shown("prefill", "Prompt length")["+Inf"];
  EXPECT_EQ(heat_prompts, n);

  // The first token of an answer is prefill's.
  double decoded = 0;
  for (const auto& [instance, tokens] : shown("decode", "Tokens")) decoded += tokens;
  EXPECT_EQ(decoded, n * (kOutputTokens - 1));
  EXPECT_EQ(shown("decode", "Orphaned KV pages").begin()->second, 0);

  const double full = sum([](auto&r) { return r.full; }), wire = sum([](auto&r) { return r.wire; });
  EXPECT_EQ(shown("transfer", "KV of prompts, and what was sent"),
            (Values{{"logical", full}, {"wire", wire}}));
  EXPECT_LT(wire, full);
  EXPECT_EQ(shown("transfer", "Rate on the wire").begin()->second, wire);
  EXPECT_EQ(shown("transfer", "Hand-offs, offer to commit")["+Inf"], n);
  for (const std::string method : {"full", "rocketkv"}) {
    double ratio = 0, count = 0;
    for (const Request& one : all) {
      if (one.method != method) continue;
      ratio += one.kept / one.full;
      ++count;
    }
    ASSERT_GT(count, 0) << method;
    EXPECT_NEAR(shown("transfer", "Kept rows")[method + ", mean"], ratio / count, 1e-6);
  }

  const double later = sum([](auto&r) { return r.turn > 0; }),
               warm = sum([](auto&r) { return r.turn > 0 && r.cached > 0; });
  ASSERT_GT(warm, 0);
  Values turns = shown("sessions", "Turns");
  EXPECT_EQ(turns["warm"], warm);
  EXPECT_EQ(turns["remote"], 0);
  EXPECT_GE(turns["cold"], later - warm + 1);  // first turns
  EXPECT_NEAR(shown("sessions", "Turns served warm")[""], warm / (warm + turns["cold"]), 1e-9);
}

// The bucket that a value falls into.
int BucketOf(double value, const std::vector<double>& bounds) {
  return static_cast<int>(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin());
}

// The value that a share of all values does not exceed.
double Quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::max<size_t>(rank, 1) - 1];
}

TEST_F(Boards, LatenciesAreThoseOfTheLoadWithinABucket) {
  std::vector<double> ttft, tpot, e2el, itl, prefill, transfer;
  for (const Request& one : world().requests()) {
    ttft.push_back(one.ttft);
    tpot.push_back(one.tpot);
    e2el.push_back(one.e2el);
    prefill.push_back(one.prefill);
    transfer.push_back(one.transfer);
    itl.insert(itl.end(), one.itl.begin(), one.itl.end());
  }
  struct Case {
    const char *board, *panel;
    std::vector<double> values, bounds;
  };
  for (const Case& one :
       {Case{"overview", "Time to first token", ttft, buckets::FirstToken()},
        Case{"overview", "Time per output token", tpot, buckets::InterToken()},
        Case{"overview", "Whole request", e2el, buckets::Request()},
        Case{"prefill", "Prefill, first layer to last", prefill, buckets::FirstToken()},
        Case{"transfer", "Hand-off, what no compute hides", transfer, buckets::KvTransfer()},
        Case{"decode", "Time between tokens, at the routers", itl, buckets::InterToken()}}) {
    std::map<std::string, double> shown = Shown(world(), one.board, one.panel);
    for (const auto& [name, share] : {std::pair("p50", .5), std::pair("p95", .95), std::pair("p99", .99)}) {
      const double seen = Quantile(one.values, share);
      EXPECT_LE(std::abs(BucketOf(shown[name], one.bounds) - BucketOf(seen, one.bounds)), 1)
          << one.board << ": " << one.panel << " " << name << " shows " << shown[name] << ", the load saw "
          << seen;
    }
  }
  const double first = Shown(world(), "overview", "First token, p95")[""];
  EXPECT_EQ(first, Shown(world(), "overview", "Time to first token")["p95"]);
}

TEST_F(Boards, NoAlertFiresUnderAnOrdinaryLoad) {
  const auto firing = world().InTheEnd("ALERTS{alertstate=\"firing\"}");
  ASSERT_TRUE(firing.ok()) << firing.status();
  for (const PromSample& alert : *firing) ADD_FAILURE() << alert.labels.dump();
}

}  // namespace
}  // namespace sluice
