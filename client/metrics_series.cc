#include "client/metrics_series.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace sluice {
namespace {

// Takes name="value" pairs from the text behind "{", up to "}". False: the text is not like that.
bool TakeLabels(absl::string_view* text, MetricLabels* labels) {
  while (!text->empty() && text->front() != '}') {
    const size_t equals = text->find("=\"");
    if (equals == absl::string_view::npos) return false;
    std::string value;
    size_t at = equals + 2;
    for (; at < text->size() && (*text)[at] != '"'; ++at) {
      if ((*text)[at] == '\\' && at + 1 < text->size()) {
        ++at;
        value += (*text)[at] == 'n' ? '\n' : (*text)[at];
      } else {
        value += (*text)[at];
      }
    }
    if (at >= text->size()) return false;
    labels->emplace(std::string(text->substr(0, equals)), std::move(value));
    text->remove_prefix(at + 1);
    if (!text->empty() && text->front() == ',') text->remove_prefix(1);
  }
  if (text->empty()) return false;
  text->remove_prefix(1);
  return true;
}

bool Holds(const MetricLabels& labels, const MetricLabels& with) {
  return std::all_of(with.begin(), with.end(), [&](const auto& one) {
    const auto found = labels.find(one.first);
    return found != labels.end() && found->second == one.second;
  });
}

double Bound(const std::string& le) {
  double bound = 0;
  return absl::SimpleAtod(le, &bound) ? bound : std::numeric_limits<double>::infinity();
}

}  // namespace

void AddSeries(absl::string_view text, MetricSeries* series) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t name_end = line.find_first_of("{ ");
    if (name_end == absl::string_view::npos || line.front() == '#') continue;
    const std::string name(line.substr(0, name_end));
    const bool labelled = line[name_end] == '{';
    line.remove_prefix(name_end + (labelled ? 1 : 0));
    MetricLabels labels;
    double value = 0;
    if (labelled && !TakeLabels(&line, &labels)) continue;
    if (absl::SimpleAtod(line, &value)) (*series)[name][std::move(labels)] += value;
  }
}

double SumOf(const MetricSeries& series, const std::string& name, const MetricLabels& with) {
  double sum = 0;
  const auto found = series.find(name);
  if (found == series.end()) return 0;
  for (const auto& [labels, value] : found->second) sum += Holds(labels, with) ? value : 0;
  return sum;
}

std::map<std::string, double> SumBy(const MetricSeries& series, const std::string& label,
                                    const std::string& name, const MetricLabels& with) {
  std::map<std::string, double> sums;
  const auto found = series.find(name);
  if (found == series.end()) return sums;
  for (const auto& [labels, value] : found->second) {
    const auto of = labels.find(label);
    if (of != labels.end() && Holds(labels, with)) sums[of->second] += value;
  }
  return sums;
}

MetricSeries Increases(const MetricSeries& before, const MetricSeries& after) {
  MetricSeries increases = after;
  for (auto& [name, values] : increases) {
    const auto old = before.find(name);
    if (old == before.end()) continue;
    for (auto& [labels, value] : values) {
      const auto then = old->second.find(labels);
      if (then != old->second.end() && then->second <= value) value -= then->second;
    }
  }
  return increases;
}

std::optional<double> QuantileOf(const MetricSeries& increases, const std::string& histogram, double share,
                                 const MetricLabels& with) {
  std::map<double, double> below;  // by bound
  for (const auto& [le, count] : SumBy(increases, "le", histogram + "_bucket", with))
    below[Bound(le)] += count;
  if (below.empty() || below.rbegin()->second <= 0) return std::nullopt;
  const double rank = share * below.rbegin()->second;
  double from = 0, counted = 0;
  for (const auto& [bound, count] : below) {
    if (count >= rank) {
      if (bound == std::numeric_limits<double>::infinity() || count == counted) return from;
      return from + (bound - from) * (rank - counted) / (count - counted);
    }
    from = bound;
    counted = count;
  }
  return from;
}

std::optional<double> MeanOf(const MetricSeries& increases, const std::string& histogram,
                             const MetricLabels& with) {
  const double count = SumOf(increases, histogram + "_count", with);
  if (count <= 0) return std::nullopt;
  return SumOf(increases, histogram + "_sum", with) / count;
}

}  // namespace sluice
