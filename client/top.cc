#include <poll.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/command.h"
#include "client/errors.h"
#include "client/flags.h"
#include "client/interrupts.h"
#include "client/metrics_scrape.h"
#include "client/real_range.h"
#include "client/top_figures.h"
#include "client/up_plan.h"
#include "common/base/host_port.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr absl::Duration kScrapeTimeout = absl::Seconds(1);
constexpr char kToTop[] = "\x1b[H\x1b[J";  // of the terminal, and nothing below

struct Options {
  std::vector<std::string> servers;
  double interval_seconds = 2;
  bool once = false, json = false;
};

// One look at all servers.
struct Look {
  absl::Time at;
  MetricSeries series;
  std::vector<std::string> silent;
};

Look LookAt(const std::vector<std::string>& servers) {
  Look look;
  look.at = absl::Now();
  for (const std::string& server : servers) {
    if (const std::optional<std::string> text = ScrapeMetrics(server, kScrapeTimeout)) {
      AddSeries(*text, &look.series);
    } else {
      look.silent.push_back(server);
    }
  }
  return look;
}

void Print(const Options& options, const Look& before, const Look& after, const Console& console) {
  const TopFigures figures = FiguresOf(before.series, after.series, after.at - before.at);
  if (options.json) {
    nlohmann::ordered_json json = TopJson(figures);
    json["silent"] = after.silent;
    *console.out << json.dump() << "\n" << std::flush;
    return;
  }
  if (!options.once && console.out_tty) *console.out << kToTop;
  *console.out << TextFor(console, TopText(figures));
  if (!after.silent.empty()) *console.out << "no answer from " << absl::StrJoin(after.silent, ", ") << "\n";
  if (!options.once && !console.out_tty) *console.out << "\n";
  *console.out << std::flush;
}

// False: Ctrl-C came.
bool Wait(Interrupts* interrupts, absl::Duration time) {
  pollfd signals{interrupts->fd(), POLLIN, 0};
  return poll(&signals, 1, static_cast<int>(absl::ToInt64Milliseconds(time))) == 0;
}

absl::StatusOr<int> RunTop(const Options& options, const Console& console) {
  for (const std::string& server : options.servers)
    SLUICE_RETURN_IF_ERROR(CheckHostPort("--metrics", server));
  Interrupts interrupts;
  Look before = LookAt(options.servers);
  if (before.silent.size() == options.servers.size()) {
    return absl::UnavailableError(absl::StrCat("no server answers at ", absl::StrJoin(options.servers, ", "),
                                               ": start them with `sluice up`, or name them with --metrics"));
  }
  while (Wait(&interrupts, absl::Seconds(options.interval_seconds))) {
    Look after = LookAt(options.servers);
    Print(options, before, after, console);
    if (options.once) return kExitOk;
    before = std::move(after);
  }
  return Interrupted();
}

}  // namespace

Command AddTop(CLI::App* parent) {
  CLI::App* app =
      parent->add_subcommand("top", "what the servers do, live: the boards' figures in a terminal");
  auto options = std::make_shared<Options>();
  for (const int index : {kRouterMetrics, kPrefillMetrics, kDecodeMetrics})
    options->servers.push_back(UpAddress(kDefaultPortBase, index));
  AddFlag(app, "--metrics", options->servers,
          "metrics pages, host:port, of routers and workers, separated by commas", "SLUICE_METRICS",
          "Servers")
      ->delimiter(',')
      ->allow_extra_args(false);
  app->add_option("--interval", options->interval_seconds, "between two looks [seconds]")
      ->check(RealRange(0.05, 3600))
      ->capture_default_str();
  app->add_flag("--once", options->once, "two looks, one answer");
  app->add_flag("--json", options->json, "one JSON object for each interval");
  app->footer(
      "Rates and percentiles are of the last interval; percentiles come from histograms and are as fine as "
      "their\n"
      "buckets. Counts are of the last look.\n"
      "Examples:\n"
      "  sluice top\n"
      "  sluice top --metrics 10.0.0.1:9100,10.0.0.2:9100,10.0.0.3:9100 --interval 10\n"
      "  sluice top --once --json");
  return {app, [options](const Console& console) { return RunTop(*options, console); }};
}

}  // namespace sluice
