#include "client/up.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/command.h"
#include "client/connection.h"
#include "client/metrics_scrape.h"
#include "client/real_range.h"
#include "client/terminal.h"
#include "common/base/status.h"
#include "common/transport/transports.h"
#include "kernels/make_backend.h"

namespace sluice {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kGrace = absl::Seconds(10);
constexpr int kLogLines = 20;
constexpr char kLoadProgress[] = "sluice_model_load_progress_ratio";
constexpr char kInferenceService[] = "sluice.v1.Inference";

absl::Status FillDefaults(UpOptions* options) {
  if (options->model.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--model: name a Hugging Face directory or a GGUF file (",
                                                   kDefaultModel, " is the default, and is not here)"));
  }
  std::error_code error;
  if (!std::filesystem::exists(options->model, error)) {
    return absl::NotFoundError(absl::StrCat("--model ", options->model, ": no such file or directory"));
  }
  PlanDevices(CountGpus(), options);
  if (options->threads == 0) options->threads = DefaultThreads();
  if (options->log_dir.empty()) {
    char pattern[] = "/tmp/sluice-up-XXXXXX";
    if (mkdtemp(pattern) == nullptr) {
      return absl::InternalError(
          absl::StrCat("cannot make a directory under /tmp: ", std::strerror(errno), "; set --log-dir"));
    }
    options->log_dir = pattern;
  }
  std::filesystem::create_directories(options->log_dir, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("--log-dir ", options->log_dir, ": ", error.message()));
  }
  if (options->sessions_db.empty()) options->sessions_db = absl::StrCat(options->log_dir, "/sessions.db");
  if (options->bin_dir.empty()) {
    options->bin_dir = std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
    if (error) return absl::InternalError(absl::StrCat("/proc/self/exe: ", error.message()));
  }
  return absl::OkStatus();
}

absl::Status Died(const ChildExit& exit) {
  std::string text =
      absl::StrCat(exit.name, " ", DescribeExit(exit.wait_status), "; the end of ", exit.log, ":");
  const std::string tail = InTermsOfUp(exit.name, TailOf(exit.log, kLogLines));
  absl::StrAppend(&text, "\n", tail.empty() ? "(it is empty)" : tail);
  return absl::AbortedError(text);
}

// The children with what is asked of them.
class Stack {
 public:
  Stack(const UpOptions& options, const Console& console) : options_(options), console_(console) {}

  absl::Status Start() {
    for (const ChildSpec& spec : PlanChildren(options_)) {
      absl::Status status = children_.Start(spec);
      if (absl::IsNotFound(status)) {
        return absl::NotFoundError(absl::StrCat(status.message(), "; install or build sluice-", spec.name,
                                                " next to the sluice command"));
      }
      SLUICE_RETURN_IF_ERROR(status);
    }
    return absl::OkStatus();
  }

  // 0 when the router serves; the signal that came before.
  absl::StatusOr<int> WaitUntilReady(Interrupts* interrupts) {
    SLUICE_ASSIGN_OR_RETURN(
        std::unique_ptr<Connection> connection,
        Connection::Open(UpAddress(options_.port_base, kRouterPublic), "--port-base", kGrace, nullptr));
    ProgressBar bar(console_.err, console_.err_tty);
    while (true) {
      SLUICE_ASSIGN_OR_RETURN(int signal, Wait(interrupts));
      if (signal != 0) return signal;
      const double loaded = Loaded();
      bar.Show(loaded < 1 ? "loading the model" : "workers join the router", loaded);
      absl::StatusOr<bool> serving = connection->Serving(kInferenceService, absl::Seconds(1));
      if (serving.ok() && *serving) return 0;
    }
  }

  // The signal that ended the wait.
  absl::StatusOr<int> WaitForSignal(Interrupts* interrupts) {
    while (true) {
      SLUICE_ASSIGN_OR_RETURN(int signal, Wait(interrupts));
      if (signal != 0) return signal;
    }
  }

  // Aborted if a child crashed.
  absl::Status Stop() {
    absl::Status stopped;
    for (const ChildExit& exit : children_.Stop(kGrace)) {
      if (WTERMSIG(exit.wait_status) == SIGKILL) {
        *console_.err << exit.name << " did not stop in " << absl::FormatDuration(kGrace) << " and was killed"
                      << std::endl;
      } else {
        stopped.Update(Died(exit));
      }
    }
    return stopped;
  }

 private:
  // One tick: the signal that came, or 0; Aborted if a child has died.
  absl::StatusOr<int> Wait(Interrupts* interrupts) {
    pollfd fd = {interrupts->fd(), POLLIN, 0};
    poll(&fd, 1, static_cast<int>(absl::ToInt64Milliseconds(kTick)));
    if (std::optional<ChildExit> exit = children_.PollExit()) return Died(*exit);
    return interrupts->Take();
  }

  // Of the slower worker.
  double Loaded() {
    double loaded = 1;
    for (int index : {kPrefillMetrics, kDecodeMetrics}) {
      std::optional<std::string> text =
          ScrapeMetrics(UpAddress(options_.port_base, index), absl::Milliseconds(500));
      loaded = std::min(loaded, text.has_value() ? FindMetric(*text, kLoadProgress).value_or(0) : 0);
    }
    return loaded;
  }

  const UpOptions& options_;
  const Console& console_;
  ChildProcesses children_;
};

absl::StatusOr<int> Serve(const UpOptions& options, const Console& console, Interrupts* interrupts,
                          Stack* stack) {
  SLUICE_RETURN_IF_ERROR(stack->Start());
  SLUICE_ASSIGN_OR_RETURN(int signal, stack->WaitUntilReady(interrupts));
  if (signal == 0) {
    const int base = options.port_base;
    *console.out << "ready router=" << UpAddress(base, kRouterPublic)
                 << " admin=" << UpAddress(base, kRouterAdmin)
                 << " metrics=" << UpAddress(base, kRouterMetrics) << "," << base + kPrefillMetrics << ","
                 << base + kDecodeMetrics << " http=" << UpAddress(base, kRouterHttp) << std::endl;
    *console.err << "talk to it: sluice chat --router " << UpAddress(base, kRouterPublic)
                 << "   or OpenAI's API: http://" << UpAddress(base, kRouterHttp)
                 << "/v1   Ctrl-C stops everything" << std::endl;
    SLUICE_ASSIGN_OR_RETURN(signal, stack->WaitForSignal(interrupts));
  }
  *console.err << "stopping" << std::endl;
  return signal == SIGTERM ? kExitOk : kExitInterrupted;
}

}  // namespace

absl::StatusOr<int> RunUp(UpOptions options, const Console& console) {
  SLUICE_RETURN_IF_ERROR(CheckPortsFree(options.port_base));
  const bool own_logs = options.log_dir.empty();
  SLUICE_RETURN_IF_ERROR(FillDefaults(&options));
  *console.err << "model " << options.model << ", prefill on " << options.prefill_device << ", decode on "
               << options.decode_device << ", " << options.threads << " threads a worker, logs in "
               << options.log_dir << std::endl;
  Interrupts interrupts;
  Stack stack(options, console);
  std::error_code error;
  absl::StatusOr<int> code = Serve(options, console, &interrupts, &stack);
  if (absl::Status stopped = stack.Stop(); code.ok() && !stopped.ok()) code = stopped;
  // What went wrong is in the logs; what went well is nobody's.
  if (own_logs && code.ok()) std::filesystem::remove_all(options.log_dir, error);
  return code;
}

Command AddUp(CLI::App* parent) {
  CLI::App* app = parent->add_subcommand("up", "serve a model on this machine: router, prefill, decode");
  auto options = std::make_shared<UpOptions>();
  options->model = DefaultModel();
  AddFlag(app, "--model", options->model, "Hugging Face directory or GGUF file", "SLUICE_MODEL", "Model");
  for (auto [flag, device, env] :
       {std::tuple("--prefill-device", &options->prefill_device, "SLUICE_PREFILL_DEVICE"),
        std::tuple("--decode-device", &options->decode_device, "SLUICE_DECODE_DEVICE")}) {
    AddFlag(app, flag, *device, "auto (a GPU each, one for both, or the CPU), cpu, cuda:<index>", env,
            "Model");
  }
  AddFlag(app, "--threads", options->threads, "CPU threads of each worker; 0: half the cores",
          "SLUICE_THREADS", "Model")
      ->check(CLI::Range(0, 1024));
  AddFlag(
      app, "--port-base", options->port_base,
      "N: the router listens on N (clients), N+1 (workers) and N+2 (operators); metrics are on N+3 to N+5, "
      "workers on N+6 and N+7, HTTP (OpenAI's API) is on N+8",
      "SLUICE_PORT_BASE", "Network")
      ->check(CLI::Range(1, 65536 - static_cast<int>(kUpPorts)));
  AddFlag(app, "--transport", options->transport,
          absl::StrCat("of the KV, one of ", absl::StrJoin(ProcessTransportNames(), ", ")),
          "SLUICE_TRANSPORT", "Network")
      ->check(CLI::IsMember(ProcessTransportNames()));
  AddOptionalFlag(app, "--log-dir", options->log_dir,
                  "logs of the three (default: a new directory under /tmp, removed after a clean stop)",
                  "SLUICE_LOG_DIR", "Files");
  AddOptionalFlag(app, "--sessions-db", options->sessions_db,
                  "SQLite file of the sessions (default: in --log-dir); \"memory\" forgets them at exit",
                  "SLUICE_SESSIONS_DB", "Files");
  AddFlag(app, "--kv-memory", options->kv_memory_mb, "decode: KV pages [MB]", "SLUICE_KV_MEMORY", "Memory")
      ->check(CLI::Range(1, 1 << 24));
  AddFlag(app, "--history-memory", options->history_memory_mb, "prefill: history of sessions [MB]",
          "SLUICE_HISTORY_MEMORY", "Memory")
      ->check(CLI::Range(1, 1 << 24));
  AddFlag(app, "--work-memory", options->work_memory_mb, "prefill: prompts under way [MB]",
          "SLUICE_WORK_MEMORY", "Memory")
      ->check(CLI::Range(1, 1 << 24));
  AddFlag(app, "--shadow-rate", options->shadow_rate,
          "prefill: share of compressed prompts on which is measured what compression lost; 0: none",
          "SLUICE_SHADOW_RATE", "Measurement")
      ->check(RealRange(0, 1));
  app->footer(
      "Examples:\n"
      "  sluice up --model models/needle-14m\n"
      "  sluice up --model ~/models/smollm2.gguf --threads 4 --port-base 7300 --log-dir /var/log/sluice");
  return {app, [options](const Console& console) { return RunUp(*options, console); }};
}

}  // namespace sluice
