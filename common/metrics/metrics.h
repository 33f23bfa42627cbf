// Role: the metrics of one process: cheap handles for the code that counts, one registry that serves them.
// Why it exists: nothing else includes prometheus-cpp. What a process measures is a plain struct of handles
// (router_metrics.h, worker_metrics.h, kv_transfer_metrics.h), made once in main.
// Threads: handles may be used from any thread; adding metrics is done before Serve, by one thread. A handle
// is a pointer into the registry and must not outlive it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace sluice {

class Counter {
 public:
  void Increment(double by = 1) const;  // by >= 0
  double Value() const;

 private:
  friend class MetricsRegistry;
  explicit Counter(prometheus::Counter* impl) : impl_(impl) {}
  prometheus::Counter* impl_;
};

class Gauge {
 public:
  void Set(double value) const;
  void Add(double by) const;  // may be negative
  double Value() const;

 private:
  friend class MetricsRegistry;
  explicit Gauge(prometheus::Gauge* impl) : impl_(impl) {}
  prometheus::Gauge* impl_;
};

class Histogram {
 public:
  void Observe(double value) const;

 private:
  friend class MetricsRegistry;
  explicit Histogram(prometheus::Histogram* impl) : impl_(impl) {}
  prometheus::Histogram* impl_;
};

// One series per value of a label, all made at start: rates see the first event, and no request can add a
// series.
template <class Handle>
class Labeled {
 public:
  // A value that was not announced counts as "other".
  const Handle& At(absl::string_view value) const {
    for (const auto& [name, handle] : series_) {
      if (name == value) return handle;
    }
    return series_.back().second;
  }

 private:
  friend class MetricsRegistry;
  std::vector<std::pair<std::string, Handle>> series_;  // the last one is "other"
};

struct MetricLabel {
  std::string name;
  std::string value;
};

// Which process this is. `role` and `model` are labels of every series of ours; a metric that says
// something of another process names that one's role.
struct MetricsIdentity {
  std::string role;  // router, prefill or decode
  std::string model;
  std::string version;
};

class MetricsRegistry {
 public:
  // Adds sluice_build_info. At each scrape, process_* is read from /proc.
  explicit MetricsRegistry(const MetricsIdentity& identity);
  ~MetricsRegistry();

  Counter AddCounter(const std::string& name, const std::string& help,
                     const std::vector<MetricLabel>& labels = {});
  Gauge AddGauge(const std::string& name, const std::string& help,
                 const std::vector<MetricLabel>& labels = {});
  Histogram AddHistogram(const std::string& name, const std::string& help, const std::vector<double>& buckets,
                         const std::vector<MetricLabel>& labels = {});

  // One series per value, and one for "other".
  Labeled<Counter> AddCounters(const std::string& name, const std::string& help, const std::string& label,
                               const std::vector<std::string>& values,
                               const std::vector<MetricLabel>& labels = {});
  Labeled<Labeled<Counter>> AddCounters(const std::string& name, const std::string& help,
                                        const std::string& label, const std::vector<std::string>& values,
                                        const std::string& inner_label,
                                        const std::vector<std::string>& inner_values);
  Labeled<Gauge> AddGauges(const std::string& name, const std::string& help, const std::string& label,
                           const std::vector<std::string>& values);
  Labeled<Histogram> AddHistograms(const std::string& name, const std::string& help,
                                   const std::vector<double>& buckets, const std::string& label,
                                   const std::vector<std::string>& values);

  // From here on sluice_gpu_* of these GPUs is read from the driver at each scrape; absent where there is
  // none. Any thread.
  void WatchGpus(const std::vector<std::string>& pci_addresses,
                 const std::string& nvml = "libnvidia-ml.so.1");

  // Serves GET /metrics on `address` (host:port; port 0 takes a free one) until the registry goes; returns
  // the bound port. `flag`: the option that set the address, for the error text. Called once.
  absl::StatusOr<int> Serve(const std::string& address, absl::string_view flag);

  // The scrape's text.
  std::string Render() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
