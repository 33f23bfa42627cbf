// sluice bench: puts a load on a router and tells what its clients saw, preset by preset.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/command.h"
#include "client/load_grpc.h"
#include "client/load_openai.h"
#include "client/load_plot.h"
#include "client/load_report.h"
#include "client/load_source.h"
#include "client/real_range.h"
#include "client/sampling_flags.h"
#include "client/terminal.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr int kDefaultRequests = 64;
constexpr int kDefaultOpenBound = 1024;
constexpr int kFewWords = 32, kManyWords = 160;  // of the two prompts that tell how many tokens words are

struct Options {
  ConnectionOptions connection;
  std::optional<int> concurrency, requests, budget;
  std::optional<double> rate, duration_seconds;
  std::optional<uint64_t> seed;
  int warmup = 0;
  SyntheticShape synthetic;
  std::string prompts;
  TraceOptions trace;
  OpenAiOptions openai;
  int output_tokens = 128;
  std::vector<std::string> presets;
  Slo slo;
  std::string json, plot;
};

absl::Status Check(const Options& options) {
  if (options.synthetic.shared_prefix_tokens >= options.synthetic.prompt_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--shared-prefix-tokens ", options.synthetic.shared_prefix_tokens,
        ": want fewer than --prompt-tokens ", options.synthetic.prompt_tokens, ", which counts them"));
  }
  for (const auto& [flag, path] : {std::pair("--json ", options.json), {"--plot ", options.plot}}) {
    if (!path.empty() && !std::ofstream(path, std::ios::app)) {
      return absl::InvalidArgumentError(absl::StrCat(flag, path, ": ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteFile(const char* flag, const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::endl;
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(flag, " ", path, ": ", std::strerror(errno)));
}

// The tokens of a prompt of `words` made-up words.
absl::StatusOr<int> CountTokens(const LoadTarget& target, int words, uint64_t seed) {
  std::seed_seq seeds{seed & 0xFFFFFFFF, seed >> 32, static_cast<uint64_t>(words)};
  return target.CountTokens(RandomWords(words, &seeds));
}

class Bench {
 public:
  Bench(const Options& options, const LoadTarget& target, const Console& console)
      : options_(options), target_(target), console_(console) {}

  absl::Status Prepare() {
    SLUICE_ASSIGN_OR_RETURN(source_, Source());
    return absl::OkStatus();
  }

  // Preset after preset; Ctrl-C ends it early.
  void Run() {
    std::vector<std::string> presets = options_.presets;
    if (presets.empty()) presets = {""};  // the server's own
    for (size_t i = 0; i < presets.size() && !interrupted_; ++i) RunPreset(presets[i], i);
  }

  // What the load was, in one line.
  std::string Title() const {
    std::string text = absl::StrCat(
        target_.model(), " at ", target_.address(), "; ",
        replays()                   ? absl::StrFormat("open loop, arrivals x %g", options_.trace.speed)
        : options_.rate.has_value() ? absl::StrFormat("open loop, %g requests/s", *options_.rate)
                                    : absl::StrCat("closed loop, concurrency ", Shape().concurrency),
        "; ", source_->Title());
    if (!replays()) absl::StrAppend(&text, "; ", options_.output_tokens, " tokens out");
    return absl::StrCat(text, "; seed ", Seed());
  }

  nlohmann::ordered_json Json() const {
    const LoadShape shape = Shape();
    const auto or_null = [](const auto& value) {
      return value.has_value() ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
    };
    nlohmann::ordered_json parameters = {
        {"request_rate", or_null(options_.rate)},
        {"max_concurrency", shape.concurrency},
        {"num_requests", or_null(shape.requests)},
        {"duration_s", or_null(options_.duration_seconds)},
        {"num_warmups", options_.warmup},
        {"seed", Seed()},
        {"output_tokens", or_null(replays() ? std::nullopt : std::optional(options_.output_tokens))},
        {"budget_tokens", or_null(options_.budget)},
        {"slo_ttft_ms", or_null(options_.slo.ttft_ms)},
        {"slo_tpot_ms", or_null(options_.slo.tpot_ms)},
        {"slo_e2el_ms", or_null(options_.slo.e2el_ms)}};
    source_->AddParameters(&parameters);
    nlohmann::ordered_json runs = nlohmann::ordered_json::array();
    for (const LoadColumn& column : columns_) runs.push_back(LoadJson(column, options_.slo));
    return {{"model", target_.model()},
            {options_.openai.url.empty() ? "router" : "endpoint", target_.address()},
            {"parameters", std::move(parameters)},
            {"runs", std::move(runs)}};
  }

  const std::vector<LoadColumn>& columns() const { return columns_; }
  bool interrupted() const { return interrupted_; }
  bool open_loop() const { return replays() || options_.rate.has_value(); }

 private:
  uint64_t Seed() const { return options_.synthetic.seed; }

  bool replays() const { return !options_.trace.path.empty(); }

  absl::StatusOr<std::unique_ptr<LoadSource>> Source() const {
    if (!options_.prompts.empty()) return FilePrompts(options_.prompts);
    const MeasureFit measure = [this]() -> absl::StatusOr<TokenFit> {
      SLUICE_ASSIGN_OR_RETURN(const int few, CountTokens(target_, kFewWords, Seed()));
      SLUICE_ASSIGN_OR_RETURN(const int many, CountTokens(target_, kManyWords, Seed()));
      return FitTokens(kFewWords, few, kManyWords, many);
    };
    if (!replays()) {
      return MadeUpPrompts(options_.synthetic, options_.output_tokens, target_.context(), measure);
    }
    TraceOptions trace = options_.trace;
    trace.seed = Seed();
    return TracePrompts(trace, target_.context(), measure);
  }

  Arrivals NewArrivals() const {
    if (!options_.rate.has_value()) return source_->OwnArrivals();
    return [arrivals = PoissonArrivals(*options_.rate / source_->TurnsPerDialogue(), Seed())]() mutable {
      return std::optional(arrivals.Next());
    };
  }

  LoadShape Shape() const {
    LoadShape shape;
    shape.arrivals = NewArrivals();
    shape.concurrency = options_.concurrency.value_or(open_loop() ? kDefaultOpenBound : 1);
    shape.requests = options_.requests;
    if (options_.duration_seconds.has_value()) shape.duration = absl::Seconds(*options_.duration_seconds);
    if (const std::optional<int> most = source_->Requests()) {
      shape.requests = std::min(shape.requests.value_or(*most), *most);
    } else if (!shape.requests.has_value() && !shape.duration.has_value()) {
      shape.requests = kDefaultRequests;
    }
    return shape;
  }

  void RunPreset(const std::string& preset, uint64_t run) {
    const LoadSettings settings = {preset, options_.budget, options_.output_tokens};
    LoadColumn column;
    column.name = preset.empty() ? "default" : preset;
    ProgressBar bar(console_.err, console_.err_tty);
    const auto load = [&](const LoadShape& shape, const std::string& label, uint64_t text_of,
                          uint64_t index) {
      const LoadHooks hooks = {[&] { return source_->At(text_of, index++); },
                               [&](double share, int ended, int failed) {
                                 bar.Show(absl::StrCat(label, ", ", ended, " ended, ", failed, " failed"),
                                          share);
                               }};
      return RunLoad(target_, shape, settings, hooks);
    };
    const LoadShape shape = Shape();
    if (options_.warmup > 0) {
      LoadShape warmup;
      warmup.concurrency = std::min(shape.concurrency, options_.warmup);
      warmup.requests = options_.warmup;
      interrupted_ = load(warmup, absl::StrCat(column.name, ": warm-up"), 2 * run + 1, 0).interrupted;
      if (interrupted_) return;
    }
    // A trace is replayed from its first request on; the prompts of a file go on after those of the warm-up.
    const uint64_t first = replays() ? 0 : static_cast<uint64_t>(options_.warmup);
    column.result = load(shape, column.name, 2 * run, first);
    column.summary = Summarize(column.result.records, column.result.duration, options_.slo);
    interrupted_ = column.result.interrupted;
    columns_.push_back(std::move(column));
  }

  const Options& options_;
  const LoadTarget& target_;
  const Console& console_;
  std::unique_ptr<LoadSource> source_;
  std::vector<LoadColumn> columns_;
  bool interrupted_ = false;
};

absl::StatusOr<int> RunBench(Options options, const Console& console) {
  SLUICE_RETURN_IF_ERROR(Check(options));
  options.synthetic.seed = options.seed.has_value() ? *options.seed : std::random_device()();
  Interrupts interrupts;
  std::unique_ptr<Connection> connection;
  std::unique_ptr<LoadTarget> target;
  if (options.openai.url.empty()) {
    SLUICE_ASSIGN_OR_RETURN(connection, Connection::Open(options.connection, &interrupts));
    SLUICE_ASSIGN_OR_RETURN(target, LoadRouter(connection.get()));
  } else {
    options.openai.timeout = absl::Seconds(options.connection.timeout_seconds);
    options.openai.api_key = options.connection.credentials.api_key;
    SLUICE_ASSIGN_OR_RETURN(target, LoadOpenAi(options.openai, &interrupts));
  }
  Bench bench(options, *target, console);
  SLUICE_RETURN_IF_ERROR(bench.Prepare());
  bench.Run();
  if (!bench.columns().empty()) {
    *console.out << bench.Title() << "\n\n"
                 << TextFor(console, LoadTable(bench.columns(), options.slo, bench.open_loop()))
                 << std::flush;
  }
  if (!options.json.empty()) {
    SLUICE_RETURN_IF_ERROR(
        WriteFile("--json", options.json,
                  bench.Json().dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)));
  }
  if (!options.plot.empty()) {
    SLUICE_RETURN_IF_ERROR(WriteFile("--plot", options.plot, LoadPlot(bench.columns(), bench.Title())));
  }
  if (bench.interrupted()) return Interrupted();
  for (const LoadColumn& column : bench.columns()) {
    if (column.summary.failed > 0 && column.summary.completed == 0)
      return column.result.records.front().status;
  }
  return kExitOk;
}

}  // namespace

Command AddBench(CLI::App* parent) {
  CLI::App* app =
      parent->add_subcommand("bench", "put a load on a router or an OpenAI endpoint; latencies, throughput");
  auto options = std::make_shared<Options>();
  const auto add = [app](const char* name, auto& value, const char* help, const char* group) {
    return app->add_option(name, value, help)->group(group);
  };
  const CLI::Range positive(1, 1 << 24);
  const CLI::Validator time = RealRange(0.001, 1e6);
  add("--concurrency", options->concurrency,
      "closed loop: users, each with one request at a time (default: 1); with --rate: most requests in "
      "flight "
      "(default: 1024)",
      "Load")
      ->check(CLI::Range(1, 1 << 16));
  CLI::Option* rate = add("--rate", options->rate,
                          "open loop: Poisson arrivals [requests/s], measured from the arrival", "Load");
  rate->check(RealRange(0.001, 1e6));
  add("--requests", options->requests,
      "of each preset; every turn is one (default: 64, or what --duration allows, or the whole trace)",
      "Load")
      ->check(positive);
  add("--duration", options->duration_seconds, "of each preset; what is under way then still ends [seconds]",
      "Load")
      ->check(time);
  add("--warmup", options->warmup, "requests before each preset that do not count", "Load")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  add("--seed", options->seed, "of arrivals and prompts (default: a new one)", "Load")->check(SeedRange());

  std::vector<CLI::Option*> synthetic = {
      add("--prompt-tokens", options->synthetic.prompt_tokens, "length of made-up prompts [tokens]",
          "Prompts"),
      add("--turns", options->synthetic.turns, "more than 1: sessions of so many requests", "Prompts"),
      add("--turn-tokens", options->synthetic.turn_tokens, "of each turn after the first [tokens]",
          "Prompts"),
      add("--shared-prefix-tokens", options->synthetic.shared_prefix_tokens,
          "of --prompt-tokens, the part that all prompts of a preset begin with; the servers remember it for "
          "sessions (--turns) [tokens]",
          "Prompts")};
  CLI::Option* prompts =
      add("--prompts", options->prompts,
          "JSONL file instead: {\"prompt\"}, {\"messages\"} or {\"turns\"} a line, and optional "
          "\"output_tokens\"; begins again at its end",
          "Prompts");
  for (CLI::Option* option : synthetic) {
    option->check(option == synthetic.back() ? CLI::Range(0, 1 << 24) : positive)->capture_default_str();
    prompts->excludes(option);
  }
  CLI::Option* output =
      add("--output-tokens", options->output_tokens, "of each request, never fewer [tokens]", "Prompts");
  output->check(positive)->capture_default_str();

  CLI::Option* trace =
      add("--trace", options->trace.path,
          "open loop: replay a recorded load, JSONL with \"timestamp\" [ms], \"input_length\", "
          "\"output_length\" and \"hash_ids\" a line; prompts share text where they share hash ids",
          "Trace");
  for (CLI::Option* option : synthetic) trace->excludes(option);
  trace->excludes(prompts)->excludes(output)->excludes(rate);
  add("--trace-speed", options->trace.speed, "arrivals so many times as fast as recorded", "Trace")
      ->needs(trace)
      ->check(RealRange(0.001, 1e6))
      ->capture_default_str();
  add("--trace-scale", options->trace.scale,
      "factor of all lengths (default: at most 1, so that the longest request fits the model)", "Trace")
      ->needs(trace)
      ->check(RealRange(1e-6, 1));

  add("--preset", options->presets,
      "compression presets, one after another, separated by commas (default: the server's own); see: sluice "
      "methods",
      "Compression")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember(PresetNames()));
  AddBudgetFlag(app, &options->budget);

  add("--slo-ttft", options->slo.ttft_ms, "time to the first token of a good request [ms]", "Goodput")
      ->check(time);
  add("--slo-tpot", options->slo.tpot_ms, "time per token after the first [ms]", "Goodput")->check(time);
  add("--slo-e2e", options->slo.e2el_ms, "time to the end [ms]", "Goodput")->check(time);
  add("--json", options->json, "file for every figure, every parameter and every request", "Output");
  add("--plot", options->plot, "SVG file: how the latencies are spread, and what was in flight", "Output");
  AddConnectionFlags(app, &options->connection);
  CLI::Option* openai =
      add("--openai", options->openai.url,
          "instead of a router: any endpoint of OpenAI's chat protocol, such as http://127.0.0.1:8000/v1",
          "OpenAI");
  add("--model", options->openai.model, "as the endpoint calls it (default: the first that it lists)",
      "OpenAI")
      ->needs(openai);
  app->add_flag_callback(
         "--no-ignore-eos", [options] { options->openai.ignore_eos = false; },
         "leave ignore_eos out, which not every endpoint knows; answers may then be shorter")
      ->group("OpenAI")
      ->needs(openai);
  app->footer(
      "Measured at the client. TTFT: to the first token; ITL: between two events with tokens; TPOT: (last "
      "token - "
      "first)\n"
      "/ (tokens - 1); E2EL: to the end of the stream. Ctrl-C ends the load and prints what there is.\n"
      "Examples:\n"
      "  sluice bench --concurrency 8 --requests 200 --preset full,rocketkv,sluice --budget 1024\n"
      "  sluice bench --rate 4 --duration 60 --warmup 8 --slo-ttft 500 --slo-tpot 30 --json out.json\n"
      "  sluice bench --trace conversation_trace.jsonl --trace-speed 0.5 --duration 300 --warmup 4 --plot "
      "a.svg\n"
      "  sluice bench --openai http://127.0.0.1:8000/v1 --concurrency 8 --requests 200\n"
      "  sluice bench --turns 4 --prompt-tokens 16384 --concurrency 4 --preset rocketkv-mt,sluice-mt");
  return {app, [options](const Console& console) { return RunBench(*options, console); }};
}

}  // namespace sluice
