// Role: a scrape's text as series, and what two scrapes of the same servers say about the time between them.
// Threads: pure functions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice {

using MetricLabels = std::map<std::string, std::string>;

// By name (with _bucket, _sum, _count), then labels.
using MetricSeries = std::map<std::string, std::map<MetricLabels, double>>;

// Adds the series of one server's text; those that another one has, too, are summed.
void AddSeries(absl::string_view text, MetricSeries* series);

// Sums over the series whose labels hold those of `with`.
double SumOf(const MetricSeries& series, const std::string& name, const MetricLabels& with = {});

// The sum of each value of a label.
std::map<std::string, double> SumBy(const MetricSeries& series, const std::string& label,
                                    const std::string& name, const MetricLabels& with = {});

// after - before, series by series. A counter that fell began anew: all of it came since.
MetricSeries Increases(const MetricSeries& before, const MetricSeries& after);

// As Prometheus' histogram_quantile of a sum by le. Nothing where nothing was observed.
std::optional<double> QuantileOf(const MetricSeries& increases, const std::string& histogram, double share,
                                 const MetricLabels& with = {});
std::optional<double> MeanOf(const MetricSeries& increases, const std::string& histogram,
                             const MetricLabels& with = {});

}  // namespace sluice
