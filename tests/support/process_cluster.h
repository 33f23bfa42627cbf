// Role: routers and workers, any number of each, as real processes on this machine, for end-to-end tests:
// started, killed, started again, and asked for their metrics. Threads: the test's.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/tls.h"
#include "sluice/v1/admin.grpc.pb.h"
#include "sluice/v1/inference.grpc.pb.h"
#include "sluice/v1/models.grpc.pb.h"
#include "sluice/v1/sessions.grpc.pb.h"
#include "tests/support/free_port.h"
#include "tests/support/patience.h"

namespace sluice {

// The program of a server: "router", "prefill", "decode".
std::string ServerPath(const std::string& role);

// The value of one series in a Prometheus text, or nothing. series: name and labels that must occur, e.g.
// "sluice_kv_blocks" and {"state=\"free\""}.
absl::StatusOr<double> MetricValue(const std::string& text, const std::string& name,
                                   const std::vector<std::string>& labels);
absl::StatusOr<std::string> ScrapeMetrics(int port);

class ProcessCluster {
 public:
  struct Options {
    int routers = 1;  // over one store: more than one needs `sessions`
    int prefill = 1;
    int decode = 1;
    std::string model = "models/needle-14m";  // inside the source tree
    std::vector<std::string> router_flags, worker_flags;
    std::vector<std::string> prefill_flags, decode_flags;  // behind worker_flags
    std::string sessions;  // --sessions-db; empty: a file of the cluster's own
    int stop_seconds = 1;  // --stop-timeout of every process
    // What flags of the routers ask of the clients below.
    std::shared_ptr<Tls> tls;
    std::string admin_key;
  };
  explicit ProcessCluster(const Options& options);
  ~ProcessCluster();  // SIGTERM, then SIGKILL

  // Waits until every live router serves and lists every live worker as ready. False at the timeout.
  bool WaitReady(absl::Duration timeout = kPatience * absl::Seconds(30));

  void Kill(
      const std::string& process,
      int signal);  // "router", "router1" (the second one), "prefill0", "decode1"; and waits for its end
  // SIGSTOP, SIGCONT. A process that stands still answers no Metric either.
  void Signal(const std::string& process, int signal);
  void Start(const std::string& process);  // again, after it died
  bool Alive(const std::string& process);
  int metrics_port(const std::string& process) const { return processes_.at(process).metrics_port; }
  // The sum of a gauge over the live workers named.
  double Metric(const std::string& process, const std::string& name, const std::vector<std::string>& labels);
  // Free KV pages of a decode worker are back at what they were when it was idle.
  bool WaitPagesFree(const std::string& decode, absl::Duration timeout = kPatience * absl::Seconds(15));

  v1::Inference::Stub& inference(int router = 0) { return *routers_[router].inference; }
  v1::Sessions::Stub& sessions(int router = 0) { return *routers_[router].sessions; }
  v1::Models::Stub& models() { return *routers_[0].models; }
  v1::Admin::Stub& admin(int router = 0) { return *routers_[router].admin; }
  std::shared_ptr<grpc::Channel> channel() { return routers_[0].channel; }
  const std::string& router_address() const { return routers_[0].address; }
  const std::string& internal_address() const { return routers_[0].internal_address; }
  pid_t pid(const std::string& process) const { return processes_.at(process).pid; }
  std::string Logs() const;
  std::string sessions_db() const { return directory_ + "/sessions.db"; }

 private:
  struct Process {
    std::vector<std::string> command;
    pid_t pid = -1;
    int wait_status = 0;  // of its end, where Alive saw it
    int metrics_port = 0;
  };
  struct Router {
    std::string process, address, internal_address;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::Inference::Stub> inference;
    std::unique_ptr<v1::Sessions::Stub> sessions;
    std::unique_ptr<v1::Models::Stub> models;
    std::unique_ptr<v1::Admin::Stub> admin;
  };
  std::string directory_;
  const std::string admin_key_;
  std::map<std::string, Process> processes_;
  std::vector<Router> routers_;
};

}  // namespace sluice
