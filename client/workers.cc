// sluice workers: list, drain, undrain, over the router's admin port.
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/command.h"
#include "client/connection.h"
#include "client/real_range.h"
#include "client/up_plan.h"
#include "common/base/status.h"
#include "sluice/v1/admin.grpc.pb.h"

namespace sluice {
namespace {

struct Options {
  std::string router = ConnectionOptions().router, admin;
  double timeout_seconds = 10;
  Credentials credentials;
  std::string worker;
  double deadline_seconds = 60;
};

using Run = absl::StatusOr<int> (*)(const Options&, const Connection&, v1::Admin::Stub*, const Console&);

std::string AdminAddress(const Options& options) {
  if (!options.admin.empty()) return options.admin;
  const size_t colon = options.router.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(options.router.substr(colon + 1), &port)) {
    return options.router;  // refused by name when it is opened
  }
  return absl::StrCat(options.router.substr(0, colon), ":", port + kRouterAdmin);
}

std::string Requests(int n) { return absl::StrCat(n, n == 1 ? " request" : " requests"); }

// What a worker of this role has little of, or much: tokens ahead and its rate, or free KV.
std::string LoadOf(const v1::Worker& worker) {
  if (worker.role() == "prefill") {
    std::string load = absl::StrCat(worker.queued_tokens(), " tokens ahead");
    if (worker.prefill_tokens_per_second() > 0) {
      absl::StrAppend(&load, absl::StrFormat(", %.0f a second", worker.prefill_tokens_per_second()));
    }
    if (worker.bytes_in_flight() > 0) {
      absl::StrAppend(&load, absl::StrFormat(", %.1f MB of KV on their way", worker.bytes_in_flight() / 1e6));
    }
    return load;
  }
  if (worker.kv_pages_total() == 0) return "";
  return absl::StrFormat("%.0f%% of KV free", 100.0 * static_cast<double>(worker.kv_pages_free()) /
                                                  static_cast<double>(worker.kv_pages_total()));
}

absl::StatusOr<int> List(const Options&, const Connection& connection, v1::Admin::Stub* stub,
                         const Console& console) {
  SLUICE_ASSIGN_OR_RETURN(v1::ListWorkersResponse reply,
                          connection.Call(&v1::Admin::Stub::ListWorkers, stub, v1::ListWorkersRequest()));
  *console.out << absl::StrFormat("%-16s  %-7s  %-8s  %-21s  %7s  %6s  %s\n", "worker", "role", "state",
                                  "address", "running", "queued", "load");
  for (const v1::Worker& worker : reply.workers()) {
    *console.out << absl::StrFormat("%-16s  %-7s  %-8s  %-21s  %7d  %6d  %s\n",
                                    TextFor(console, worker.name()), worker.role(), worker.state(),
                                    TextFor(console, worker.address()), worker.running(), worker.queued(),
                                    LoadOf(worker));
  }
  *console.out << std::flush;
  return kExitOk;
}

absl::StatusOr<int> Drain(const Options& options, const Connection& connection, v1::Admin::Stub* stub,
                          const Console& console) {
  v1::DrainRequest request;
  request.set_worker(options.worker);
  request.set_deadline_seconds(options.deadline_seconds);
  grpc::ClientContext context;
  // The router's own deadline speaks first.
  context.set_deadline(
      absl::ToChronoTime(absl::Now() + absl::Seconds(options.deadline_seconds + options.timeout_seconds)));
  CancelOnInterrupt cancel(connection.interrupts(), [&context] { context.TryCancel(); });
  std::unique_ptr<grpc::ClientReader<v1::DrainProgress>> reader = stub->Drain(&context, request);
  v1::DrainProgress progress;
  while (reader->Read(&progress)) {
    *console.err << options.worker << " has " << Requests(progress.remaining())
                 << absl::StrFormat(" left, %.0f s\n", progress.seconds_left()) << std::flush;
  }
  absl::Status status = connection.Result(reader->Finish(), cancel.signal());
  if (IsInterrupted(status)) *console.err << "the drain holds; sluice workers undrain ends it" << std::endl;
  if (!status.ok()) return status;
  *console.err << options.worker << " is drained" << std::endl;
  return kExitOk;
}

absl::StatusOr<int> Undrain(const Options& options, const Connection& connection, v1::Admin::Stub* stub,
                            const Console& console) {
  v1::UndrainRequest request;
  request.set_worker(options.worker);
  SLUICE_RETURN_IF_ERROR(connection.Call(&v1::Admin::Stub::Undrain, stub, request).status());
  *console.err << options.worker << " takes requests again" << std::endl;
  return kExitOk;
}

}  // namespace

Command AddWorkers(CLI::App* parent) {
  CLI::App* app = parent->add_subcommand("workers", "list, drain or undrain a router's workers");
  app->require_subcommand(1);
  auto options = std::make_shared<Options>();
  auto run = std::make_shared<Run>(nullptr);
  auto add = [&](const char* name, const char* help, Run body) {
    CLI::App* command = app->add_subcommand(name, help);
    command->callback([run, body] { *run = body; });
    AddFlag(command, "--router", options->router, "router's public address, host:port", "SLUICE_ROUTER",
            "Connection");
    AddOptionalFlag(command, "--admin", options->admin,
                    "router's admin address (default: two ports above --router)", "SLUICE_ADMIN",
                    "Connection");
    AddFlag(command, "--timeout", options->timeout_seconds, "deadline of each call [seconds]",
            "SLUICE_TIMEOUT", "Connection")
        ->check(RealRange(0.001, 1e6));
    AddOperatorFlags(command, &options->credentials);
    return command;
  };
  auto with_worker = [&](CLI::App* command) {
    command->add_option("worker", options->worker, "its name or incarnation")->required();
    return command;
  };
  add("list", "all workers, with their state and load", List);
  with_worker(add("drain", "no new requests for a worker; waits until it has none", Drain))
      ->add_option("--deadline", options->deadline_seconds,
                   "how long to wait [seconds]; the drain holds anyway")
      ->capture_default_str()
      ->check(RealRange(0.001, 86400));
  with_worker(add("undrain", "requests for a worker again", Undrain));
  app->footer("Example:\n  sluice workers drain prefill-1 --deadline 300");
  return {app, [options, run](const Console& console) -> absl::StatusOr<int> {
            Interrupts interrupts;
            SLUICE_ASSIGN_OR_RETURN(
                std::unique_ptr<Connection> connection,
                Connection::Open(AdminAddress(*options), "--admin", absl::Seconds(options->timeout_seconds),
                                 &interrupts, options->credentials));
            std::unique_ptr<v1::Admin::Stub> stub = v1::Admin::NewStub(connection->channel());
            return (*run)(*options, *connection, stub.get(), console);
          }};
}

}  // namespace sluice
