// Role: a Prometheus of the test's own, in a temporary directory, on a free port of the loopback interface,
// and promtool. Threads: one caller.
#pragma once

#include <sys/types.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/support/temp_dir.h"

namespace sluice {

struct ScrapeTarget {
  std::string job;
  int port = 0;
};

// One element of an instant vector.
struct PromSample {
  nlohmann::json labels;
  double value = 0;
};

class PrometheusServer {
 public:
  // Scrapes the targets twice a second and evaluates the rules once. NotFound: Prometheus is not installed
  // here; the text says how to. Unavailable: it does not come up; the text has its log.
  static absl::StatusOr<std::unique_ptr<PrometheusServer>> Start(const std::vector<ScrapeTarget>& targets,
                                                                 const std::vector<std::string>& rule_files);
  ~PrometheusServer();

  // An instant query. InvalidArgument has what Prometheus says.
  absl::StatusOr<std::vector<PromSample>> Query(const std::string& expression, absl::Time at) const;
  // GET of an API path; its "data".
  absl::StatusOr<nlohmann::json> Get(const std::string& path) const;

 private:
  PrometheusServer() = default;
  TempDir directory_;
  int port_ = 0;
  pid_t pid_ = -1;
};

// promtool's exit code and what it wrote.
struct PromtoolRun {
  int exit_code = -1;
  std::string output;
};
PromtoolRun Promtool(const std::string& arguments, const std::string& input = "");

}  // namespace sluice
