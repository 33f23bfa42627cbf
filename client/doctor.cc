// sluice doctor: is this machine able to serve, and does what serves feel well? One line a check.
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/command.h"
#include "client/connection.h"
#include "client/doctor_report.h"
#include "client/doctor_security.h"
#include "client/up_plan.h"
#include "common/base/status.h"
#include "common/model/model_dir.h"
#include "kernels/cpu/cpu_backend.h"
#include "sluice/v1/admin.grpc.pb.h"
#include "sluice/v1/models.grpc.pb.h"

namespace sluice {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(3);
constexpr uint64_t kLittleMemoryMb = 2048;

struct Options {
  std::string model, router, admin, admin_key;
  Credentials credentials;
};

// The text after "key ... :" of a file like /proc/cpuinfo, or empty.
std::string ProcField(const char* path, absl::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, key)) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos) return std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return "";
}

uint64_t AvailableMemoryMb() {
  const std::string text = ProcField("/proc/meminfo", "MemAvailable");
  uint64_t kb = 0;
  return absl::SimpleAtoi(text.substr(0, text.find(' ')), &kb) ? kb >> 10 : 0;
}

void CheckMachine(Report* report) {
  const std::string cpu = ProcField("/proc/cpuinfo", "model name");
  const char* best = CpuSupports(CpuIsa::kAvx512Bf16) ? "avx512_bf16"
                     : CpuSupports(CpuIsa::kAvx512)   ? "avx512"
                     : CpuSupports(CpuIsa::kAvx2)     ? "avx2"
                                                      : nullptr;
  if (best == nullptr) {
    report->Line(kFail, "cpu", absl::StrCat(cpu, " has no AVX2 with FMA"), "serve on another machine");
  } else {
    report->Line(kOk, "cpu", absl::StrCat(cpu, ", uses ", best));
  }
  cpu_set_t set;
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
  if (cores < 2) {
    report->Line(kWarn, "cores", absl::StrCat(cores), "prefill and decode share one: give this process more");
  } else {
    report->Line(kOk, "cores", absl::StrCat(cores, ", up gives ", DefaultThreads(), " to each worker"));
  }
  const uint64_t free_mb = AvailableMemoryMb();
  if (free_mb < kLittleMemoryMb) {
    report->Line(kWarn, "memory", absl::StrCat(free_mb, " MB available"),
                 "lower --kv-memory, --history-memory and --work-memory of sluice up");
  } else {
    report->Line(kOk, "memory", absl::StrCat(free_mb, " MB available"));
  }
}

uint64_t BytesOf(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) return std::filesystem::file_size(path, ignored);
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path, ignored)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".safetensors") bytes += entry.file_size(ignored);
  }
  return bytes;
}

void CheckModel(const std::string& path, Report* report) {
  if (path.empty()) {
    report->Line(kWarn, "model", absl::StrCat(kDefaultModel, " is not here"), "name one with --model");
    return;
  }
  absl::StatusOr<ModelFiles> files = OpenModel(path);
  absl::Status status = files.status();
  if (status.ok()) status = OpenTokenizer(path).status();
  if (!status.ok()) {
    report->Line(kFail, "model", absl::StrCat(path, ": ", status.message()), "change --model");
    return;
  }
  const uint64_t mb = BytesOf(path) >> 20;
  const std::string finding = absl::StrCat(path, ", ", files->shape.n_layers, " layers, context ",
                                           files->shape.context, ", ", mb, " MB");
  // Both workers hold the weights.
  if (2 * mb > AvailableMemoryMb()) {
    report->Line(kWarn, "model", finding, "two workers may not fit into memory: take a smaller model");
  } else {
    report->Line(kOk, "model", finding);
  }
}

void CheckPorts(int base, bool router_serves, Report* report) {
  std::vector<std::string> taken;
  for (int i = 0; i < kUpPorts; ++i) {
    if (!PortIsFree(base + i)) taken.push_back(absl::StrCat(base + i, " (", UpPortUse(i), ")"));
  }
  const std::string range = absl::StrCat(base, " to ", base + kUpPorts - 1);
  if (taken.empty()) {
    report->Line(kOk, "ports", absl::StrCat(range, " are free"));
  } else if (router_serves) {
    report->Line(kOk, "ports",
                 absl::StrCat(taken.size(), " of ", range, " are in use while a router serves"));
  } else {
    report->Line(kWarn, "ports", absl::StrCat(absl::StrJoin(taken, ", "), " taken by another program"),
                 "sluice up needs --port-base with free ports");
  }
}

absl::StatusOr<v1::ListWorkersResponse> ListWorkers(const std::string& address, const Options& options) {
  Credentials credentials = options.credentials;
  credentials.api_key = options.admin_key;
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection,
                          Connection::Open(address, "--admin", kCallTimeout, nullptr, credentials));
  std::unique_ptr<v1::Admin::Stub> stub = v1::Admin::NewStub(connection->channel());
  return connection->Call(&v1::Admin::Stub::ListWorkers, stub.get(), v1::ListWorkersRequest());
}

void CheckWorkers(const std::string& address, const Options& options, Report* report) {
  absl::StatusOr<v1::ListWorkersResponse> reply = ListWorkers(address, options);
  if (!reply.ok()) {
    const bool key = absl::IsUnauthenticated(reply.status()) || absl::IsPermissionDenied(reply.status());
    report->Line(
        kWarn, "workers", absl::StrCat(address, ": ", reply.status().message()),
        key ? "name an operator's key with SLUICE_ADMIN_KEY" : "--admin names the router's admin port");
    return;
  }
  for (const char* role : {"prefill", "decode"}) {
    int ready = 0;
    for (const v1::Worker& worker : reply->workers()) {
      if (worker.role() != role) continue;
      ready += worker.state() == "ready";
      const std::string finding =
          absl::StrCat(worker.name(), " at ", worker.address(), " is ", worker.state(), ", ",
                       worker.running(), " running, ", worker.queued(), " queued");
      if (worker.state() == "ready") {
        report->Line(kOk, role, finding);
      } else {
        report->Line(kWarn, role, finding, "look into its log, and start it again");
      }
    }
    if (ready == 0) report->Line(kFail, role, "no worker is ready", absl::StrCat("start sluice-", role));
  }
}

void CheckModels(const Connection& connection, Report* report) {
  std::unique_ptr<v1::Models::Stub> stub = v1::Models::NewStub(connection.channel());
  absl::StatusOr<v1::ListModelsResponse> reply =
      connection.Call(&v1::Models::Stub::ListModels, stub.get(), v1::ListModelsRequest());
  if (!reply.ok()) {
    report->Line(kFail, "served model", reply.status().message(), "look into the router's log");
    return;
  }
  for (const v1::Model& model : reply->models()) {
    report->Line(kOk, "served model",
                 absl::StrCat(model.id(), ", ", model.architecture(), ", context ", model.context_length(),
                              ", ", model.kv_bytes_per_token(), " KV bytes a token, sessions use ",
                              model.default_session_preset()));
  }
}

// router_named: somebody asked for this very router, so its absence is a failure.
absl::Status CheckRouter(const Options& options, bool router_named, Report* report) {
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<Connection> connection,
      Connection::Open(options.router, "--router", kCallTimeout, nullptr, options.credentials));
  absl::StatusOr<bool> serving = connection->Serving("sluice.v1.Inference", kCallTimeout);
  const size_t colon = options.router.rfind(':');
  const std::string host = options.router.substr(0, colon);
  int port = 0;
  if (!absl::SimpleAtoi(options.router.substr(colon + 1), &port)) port = kDefaultPortBase;
  if (host == kUpHost && port + kUpPorts <= 65536) CheckPorts(port, serving.ok(), report);
  if (!serving.ok()) {
    if (absl::IsUnauthenticated(serving.status()) || absl::IsFailedPrecondition(serving.status())) {
      report->Line(kFail, "router", serving.status().message(),
                   "change --tls-ca, or the router's --tls-cert");
      return absl::OkStatus();
    }
    report->Line(router_named ? kFail : kWarn, "router",
                 absl::StrCat("nobody answers at ", options.router, " (", serving.status().message(), ")"),
                 "start one with sluice up, or change --router");
    return absl::OkStatus();
  }
  if (*serving) {
    report->Line(kOk, "router", absl::StrCat(options.router, " serves"));
  } else {
    report->Line(kFail, "router", absl::StrCat(options.router, " answers and is not ready"),
                 "it needs a prefill and a decode worker");
  }
  const std::string admin =
      options.admin.empty() ? absl::StrCat(host, ":", port + kRouterAdmin) : options.admin;
  CheckWorkers(admin, options, report);
  CheckModels(*connection, report);
  CheckSecurity(options.router, options.credentials, report);
  return absl::OkStatus();
}

}  // namespace

Command AddDoctor(CLI::App* parent) {
  CLI::App* app =
      parent->add_subcommand("doctor", "check this machine, the model, the ports and the servers");
  auto options = std::make_shared<Options>();
  options->model = DefaultModel();
  options->router = ConnectionOptions().router;
  AddFlag(app, "--model", options->model, "Hugging Face directory or GGUF file", "SLUICE_MODEL", "Checks");
  CLI::Option* router = AddFlag(app, "--router", options->router, "router's public address, host:port",
                                "SLUICE_ROUTER", "Checks");
  AddOptionalFlag(app, "--admin", options->admin,
                  "router's admin address (default: two ports above --router)", "SLUICE_ADMIN", "Checks");
  AddAdminKeyFlag(app, &options->admin_key);
  AddCredentialFlags(app, &options->credentials);
  app->footer(
      "Each line is ok, warn or fail, and says what to do; any fail makes the exit code 1.\n"
      "Example:\n  sluice doctor --model models/needle-14m");
  return {app, [options, router](const Console& console) -> absl::StatusOr<int> {
            Report report(console);
            CheckMachine(&report);
            CheckModel(options->model, &report);
            SLUICE_RETURN_IF_ERROR(CheckRouter(*options, router->count() > 0, &report));
            return report.failed() ? kExitFailure : kExitOk;
          }};
}

}  // namespace sluice
