#include "common/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <sstream>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/metrics/gpu_stats.h"
#include "common/metrics/metrics_http.h"
#include "common/metrics/process_stats.h"

namespace sluice {
namespace {

constexpr char kOther[] = "other";

prometheus::Labels ToLabels(const std::vector<MetricLabel>& labels) {
  prometheus::Labels out;
  for (const MetricLabel& label : labels) out[label.name] = label.value;
  return out;
}

std::vector<MetricLabel> With(std::vector<MetricLabel> labels, const std::string& name,
                              const std::string& value) {
  labels.push_back({name, value});
  return labels;
}

using Type = prometheus::MetricType;

// Families that are read at each scrape, one value after another.
class ReadMetrics {
 public:
  explicit ReadMetrics(std::vector<prometheus::MetricFamily>* out) : out_(out) {}

  void Add(const char* name, const char* help, Type type, double value,
           const prometheus::Labels& labels = {}) {
    prometheus::ClientMetric metric;
    metric.gauge.value = metric.counter.value = value;
    for (const auto& [label, of] : labels) metric.label.push_back({label, of});
    auto family = std::find_if(out_->begin(), out_->end(), [&](const auto& one) { return one.name == name; });
    if (family == out_->end()) family = out_->insert(out_->end(), {name, help, type, {}});
    family->metric.push_back(std::move(metric));
  }

 private:
  std::vector<prometheus::MetricFamily>* const out_;
};

void ReadProcess(ReadMetrics out) {
  absl::StatusOr<ProcessStats> stats = ReadProcessStats();
  if (!stats.ok()) return;  // absent, not zero
  out.Add("process_resident_memory_bytes", "Resident memory.", Type::Gauge, stats->resident_memory_bytes);
  out.Add("process_cpu_seconds_total", "User and system CPU time.", Type::Counter, stats->cpu_seconds);
  out.Add("process_open_fds", "Open file descriptors.", Type::Gauge, stats->open_fds);
  out.Add("process_max_fds", "File descriptors that may be open.", Type::Gauge, stats->max_fds);
  out.Add("process_start_time_seconds", "Start of the process, unix time.", Type::Gauge,
          stats->start_time_seconds);
  if (!stats->network.has_value()) return;
  out.Add("process_network_receive_bytes_total",
          "IP bytes that came into the network namespace of the process, from this machine, too.",
          Type::Counter, stats->network->received_bytes);
  out.Add("process_network_transmit_bytes_total",
          "IP bytes that left the network namespace of the process, or went round in it.", Type::Counter,
          stats->network->transmitted_bytes);
}

void ReadGpus(const GpuReader& gpus, const prometheus::Labels& common, ReadMetrics out) {
  for (const GpuStats& stats : gpus.Read()) {
    prometheus::Labels labels = common;
    labels["gpu"] = stats.gpu;
    if (stats.utilization_ratio.has_value())
      out.Add("sluice_gpu_utilization_ratio", "Share of the time in which the GPU ran a kernel.", Type::Gauge,
              *stats.utilization_ratio, labels);
    if (stats.temperature_celsius.has_value())
      out.Add("sluice_gpu_temperature_celsius", "Temperature of the GPU.", Type::Gauge,
              *stats.temperature_celsius, labels);
    const auto memory = [&](const char* kind, const std::optional<double>& bytes) {
      labels["kind"] = kind;
      if (bytes.has_value())
        out.Add("sluice_gpu_memory_bytes", "Memory of the GPU: used by anyone, and in all.", Type::Gauge,
                *bytes, labels);
    };
    memory("used", stats.memory_used_bytes);
    memory("total", stats.memory_total_bytes);
  }
}

}  // namespace

void Counter::Increment(double by) const { impl_->Increment(by); }
double Counter::Value() const { return impl_->Value(); }
void Gauge::Set(double value) const { impl_->Set(value); }
void Gauge::Add(double by) const { impl_->Increment(by); }
double Gauge::Value() const { return impl_->Value(); }
void Histogram::Observe(double value) const { impl_->Observe(value); }

struct MetricsRegistry::Impl {
  // Of all series but those that name another role.
  prometheus::Labels CommonOf(const std::vector<MetricLabel>& labels) const {
    prometheus::Labels out = common;
    for (const MetricLabel& label : labels) out.erase(label.name);
    return out;
  }

  prometheus::Labels common;  // model and role
  prometheus::Registry registry;
  Mutex gpus_mu;
  std::shared_ptr<const GpuReader> gpus ABSL_GUARDED_BY(gpus_mu);
  std::unique_ptr<MetricsHttp> http;  // last: its threads read the registry
};

MetricsRegistry::MetricsRegistry(const MetricsIdentity& identity) : impl_(std::make_unique<Impl>()) {
  impl_->common = {{"model", identity.model}, {"role", identity.role}};
  AddGauge("sluice_build_info", "Always 1; the labels say what runs.", {{"version", identity.version}})
      .Set(1);
}

MetricsRegistry::~MetricsRegistry() = default;

Counter MetricsRegistry::AddCounter(const std::string& name, const std::string& help,
                                    const std::vector<MetricLabel>& labels) {
  auto& family = prometheus::BuildCounter()
                     .Name(name)
                     .Help(help)
                     .Labels(impl_->CommonOf(labels))
                     .Register(impl_->registry);
  return Counter(&family.Add(ToLabels(labels)));
}

Gauge MetricsRegistry::AddGauge(const std::string& name, const std::string& help,
                                const std::vector<MetricLabel>& labels) {
  auto& family = prometheus::BuildGauge()
                     .Name(name)
                     .Help(help)
                     .Labels(impl_->CommonOf(labels))
                     .Register(impl_->registry);
  return Gauge(&family.Add(ToLabels(labels)));
}

Histogram MetricsRegistry::AddHistogram(const std::string& name, const std::string& help,
                                        const std::vector<double>& buckets,
                                        const std::vector<MetricLabel>& labels) {
  auto& family = prometheus::BuildHistogram()
                     .Name(name)
                     .Help(help)
                     .Labels(impl_->CommonOf(labels))
                     .Register(impl_->registry);
  return Histogram(&family.Add(ToLabels(labels), buckets));
}

Labeled<Counter> MetricsRegistry::AddCounters(const std::string& name, const std::string& help,
                                              const std::string& label,
                                              const std::vector<std::string>& values,
                                              const std::vector<MetricLabel>& labels) {
  Labeled<Counter> out;
  for (const std::string& value : values) {
    out.series_.emplace_back(value, AddCounter(name, help, With(labels, label, value)));
  }
  out.series_.emplace_back(kOther, AddCounter(name, help, With(labels, label, kOther)));
  return out;
}

Labeled<Labeled<Counter>> MetricsRegistry::AddCounters(const std::string& name, const std::string& help,
                                                       const std::string& label,
                                                       const std::vector<std::string>& values,
                                                       const std::string& inner_label,
                                                       const std::vector<std::string>& inner_values) {
  Labeled<Labeled<Counter>> out;
  for (const std::string& value : values) {
    out.series_.emplace_back(value, AddCounters(name, help, inner_label, inner_values, {{label, value}}));
  }
  out.series_.emplace_back(kOther, AddCounters(name, help, inner_label, inner_values, {{label, kOther}}));
  return out;
}

Labeled<Gauge> MetricsRegistry::AddGauges(const std::string& name, const std::string& help,
                                          const std::string& label, const std::vector<std::string>& values) {
  Labeled<Gauge> out;
  for (const std::string& value : values) {
    out.series_.emplace_back(value, AddGauge(name, help, {{label, value}}));
  }
  out.series_.emplace_back(kOther, AddGauge(name, help, {{label, kOther}}));
  return out;
}

Labeled<Histogram> MetricsRegistry::AddHistograms(const std::string& name, const std::string& help,
                                                  const std::vector<double>& buckets,
                                                  const std::string& label,
                                                  const std::vector<std::string>& values) {
  Labeled<Histogram> out;
  for (const std::string& value : values) {
    out.series_.emplace_back(value, AddHistogram(name, help, buckets, {{label, value}}));
  }
  out.series_.emplace_back(kOther, AddHistogram(name, help, buckets, {{label, kOther}}));
  return out;
}

absl::StatusOr<int> MetricsRegistry::Serve(const std::string& address, absl::string_view flag) {
  SLUICE_CHECK(impl_->http == nullptr);
  SLUICE_ASSIGN_OR_RETURN(impl_->http, MetricsHttp::Start(address, flag, [this] { return Render(); }));
  return impl_->http->port();
}

void MetricsRegistry::WatchGpus(const std::vector<std::string>& pci_addresses, const std::string& nvml) {
  if (pci_addresses.empty()) return;
  absl::StatusOr<std::unique_ptr<GpuReader>> reader = GpuReader::Open(pci_addresses, nvml);
  if (!reader.ok()) return;
  MutexLock lock(&impl_->gpus_mu);
  impl_->gpus = *std::move(reader);
}

std::string MetricsRegistry::Render() const {
  std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  ReadProcess(ReadMetrics(&families));
  std::shared_ptr<const GpuReader> gpus;
  {
    MutexLock lock(&impl_->gpus_mu);
    gpus = impl_->gpus;
  }
  if (gpus != nullptr) ReadGpus(*gpus, impl_->common, ReadMetrics(&families));
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return std::move(text).str();
}

}  // namespace sluice
