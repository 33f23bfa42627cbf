#include "common/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <sstream>

#include "common/base/status.h"
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

void AppendProcessMetric(const char* name, const char* help, prometheus::MetricType type, double value,
                         std::vector<prometheus::MetricFamily>* out) {
  prometheus::ClientMetric metric;
  metric.gauge.value = metric.counter.value = value;
  out->push_back({name, help, type, {metric}});
}

void AppendProcessMetrics(std::vector<prometheus::MetricFamily>* out) {
  absl::StatusOr<ProcessStats> stats = ReadProcessStats();
  if (!stats.ok()) return;  // absent, not zero
  using Type = prometheus::MetricType;
  AppendProcessMetric("process_resident_memory_bytes", "Resident memory.", Type::Gauge,
                      stats->resident_memory_bytes, out);
  AppendProcessMetric("process_cpu_seconds_total", "User and system CPU time.", Type::Counter,
                      stats->cpu_seconds, out);
  AppendProcessMetric("process_open_fds", "Open file descriptors.", Type::Gauge, stats->open_fds, out);
  AppendProcessMetric("process_start_time_seconds", "Start of the process, unix time.", Type::Gauge,
                      stats->start_time_seconds, out);
}

}  // namespace

void Counter::Increment(double by) const { impl_->Increment(by); }
double Counter::Value() const { return impl_->Value(); }
void Gauge::Set(double value) const { impl_->Set(value); }
void Gauge::Add(double by) const { impl_->Increment(by); }
double Gauge::Value() const { return impl_->Value(); }
void Histogram::Observe(double value) const { impl_->Observe(value); }

struct MetricsRegistry::Impl {
  prometheus::Labels model;
  prometheus::Registry registry;
  std::unique_ptr<MetricsHttp> http;  // last: its threads read the registry
};

MetricsRegistry::MetricsRegistry(const MetricsIdentity& identity) : impl_(std::make_unique<Impl>()) {
  impl_->model = {{"model", identity.model}};
  AddGauge("sluice_build_info", "Always 1; the labels say what runs.",
           {{"role", identity.role}, {"version", identity.version}})
      .Set(1);
}

MetricsRegistry::~MetricsRegistry() = default;

Counter MetricsRegistry::AddCounter(const std::string& name, const std::string& help,
                                    const std::vector<MetricLabel>& labels) {
  auto& family =
      prometheus::BuildCounter().Name(name).Help(help).Labels(impl_->model).Register(impl_->registry);
  return Counter(&family.Add(ToLabels(labels)));
}

Gauge MetricsRegistry::AddGauge(const std::string& name, const std::string& help,
                                const std::vector<MetricLabel>& labels) {
  auto& family =
      prometheus::BuildGauge().Name(name).Help(help).Labels(impl_->model).Register(impl_->registry);
  return Gauge(&family.Add(ToLabels(labels)));
}

Histogram MetricsRegistry::AddHistogram(const std::string& name, const std::string& help,
                                        const std::vector<double>& buckets,
                                        const std::vector<MetricLabel>& labels) {
  auto& family =
      prometheus::BuildHistogram().Name(name).Help(help).Labels(impl_->model).Register(impl_->registry);
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

std::string MetricsRegistry::Render() const {
  std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  AppendProcessMetrics(&families);
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return std::move(text).str();
}

}  // namespace sluice
