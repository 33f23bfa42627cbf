#include "client/load_plot.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace sluice {
namespace {

// A line: points in the order of x.
using Curve = std::vector<std::pair<double, double>>;

constexpr const char* kColours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                    "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"};
constexpr double kWidth = 960, kHeight = 700, kTop = 70;
constexpr double kPanelWidth = 400, kPanelHeight = 220;

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string Text(double x, double y, const char* anchor, absl::string_view text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
                         Escaped(text));
}

std::string Line(double x1, double y1, double x2, double y2) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#cccccc\"/>\n", x1,
                         y1, x2, y2);
}

// One direction of a panel: from values to [0, 1], and where its labels stand.
struct Axis {
  double low = 0, high = 1;
  bool logarithmic = false;

  double At(double value) const {
    if (logarithmic) return std::log(value / low) / std::log(high / low);
    return (value - low) / (high - low);
  }

  // 1, 2 and 5 times powers of ten.
  std::vector<double> Ticks() const {
    std::vector<double> ticks;
    if (logarithmic) {
      for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10) {
        for (int digit : {1, 2, 5}) {
          if (digit * power >= low && digit * power <= high) ticks.push_back(digit * power);
        }
      }
      std::vector<double> few;  // those that fit beside each other
      const size_t step = ticks.size() / 9 + 1;
      for (size_t i = 0; i < ticks.size(); i += step) few.push_back(ticks[i]);
      return few;
    }
    const double rough = (high - low) / 5, power = std::pow(10, std::floor(std::log10(rough)));
    const double step = power * (rough <= power ? 1 : rough <= 2 * power ? 2 : rough <= 5 * power ? 5 : 10);
    for (int i = 0; low + i * step <= high * (1 + 1e-9); ++i) ticks.push_back(low + i * step);
    return ticks;
  }
};

// The share of values up to each: it climbs at each of them.
Curve Spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  Curve curve;
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = std::max(values[i], 0.01);
    curve.emplace_back(x, 100.0 * static_cast<double>(i) / static_cast<double>(values.size()));
    curve.emplace_back(x, 100.0 * static_cast<double>(i + 1) / static_cast<double>(values.size()));
  }
  return curve;
}

Curve InFlight(const std::vector<RequestRecord>& records) {
  std::vector<std::pair<double, int>> changes;  // when, by how many; ends before starts of the same moment
  for (const RequestRecord& record : records) {
    changes.emplace_back(absl::ToDoubleSeconds(record.sent), 1);
    changes.emplace_back(absl::ToDoubleSeconds(record.end), -1);
  }
  std::sort(changes.begin(), changes.end());
  Curve curve;
  int count = 0;
  for (const auto& [when, by] : changes) {
    curve.emplace_back(when, count);
    curve.emplace_back(when, count += by);
  }
  return curve;
}

class Panel {
 public:
  Panel(int place, bool logarithmic, const char* name, const char* across)
      : left_(place % 2 == 0 ? 60 : kWidth / 2 + 50),
        top_(kTop + 20 + (place / 2) * (kPanelHeight + 80)),
        name_(name),
        across_(across) {
    x_.logarithmic = logarithmic;
  }

  // high: of the upright axis; unset: what the curves reach.
  std::string Draw(const std::vector<Curve>& curves, std::optional<double> high) {
    std::vector<double> xs, ys;
    for (const Curve& curve : curves) {
      for (const auto& [x, y] : curve) {
        xs.push_back(x);
        ys.push_back(y);
      }
    }
    std::string svg = Text(left_ + kPanelWidth / 2, top_ - 8, "middle", name_);
    if (xs.empty()) return svg + Text(left_ + kPanelWidth / 2, top_ + kPanelHeight / 2, "middle", "nothing");
    const auto [least, most] = std::minmax_element(xs.begin(), xs.end());
    constexpr double kMargin = 1.6;  // 2.5 or more between the ends: there is a tick
    x_.low = x_.logarithmic ? *least / kMargin : 0;
    x_.high = x_.logarithmic ? *most * kMargin : std::max(*most, 1e-3);
    y_.high = high.value_or(std::max(1.0, *std::max_element(ys.begin(), ys.end())));
    for (double tick : x_.Ticks()) {
      svg += Line(X(tick), top_, X(tick), top_ + kPanelHeight);
      svg += Text(X(tick), top_ + kPanelHeight + 16, "middle", absl::StrFormat("%g", tick));
    }
    for (double tick : y_.Ticks()) {
      svg += Line(left_, Y(tick), left_ + kPanelWidth, Y(tick));
      svg += Text(left_ - 6, Y(tick) + 4, "end", absl::StrFormat("%g", tick));
    }
    svg += Text(left_ + kPanelWidth / 2, top_ + kPanelHeight + 34, "middle", across_);
    for (size_t i = 0; i < curves.size(); ++i) {
      if (curves[i].empty()) continue;
      absl::StrAppend(&svg, "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"",
                      kColours[i % std::size(kColours)], "\" points=\"");
      for (const auto& [x, y] : curves[i]) absl::StrAppendFormat(&svg, "%.1f,%.1f ", X(x), Y(y));
      svg += "\"/>\n";
    }
    return svg;
  }

 private:
  double X(double value) const { return left_ + kPanelWidth * x_.At(value); }
  double Y(double value) const { return top_ + kPanelHeight * (1 - y_.At(value)); }

  const double left_, top_;
  const char* const name_;
  const char* const across_;
  Axis x_, y_;
};

// One value of each completed request that has it [ms].
std::vector<Curve> Spreads(const std::vector<LoadColumn>& columns,
                           std::optional<absl::Duration> (*value)(const RequestRecord&)) {
  std::vector<Curve> curves;
  for (const LoadColumn& column : columns) {
    std::vector<double> values;
    for (const RequestRecord& record : column.result.records) {
      if (!record.completed()) continue;
      if (const auto duration = value(record)) values.push_back(absl::ToDoubleMilliseconds(*duration));
    }
    curves.push_back(Spread(std::move(values)));
  }
  return curves;
}

}  // namespace

std::string LoadPlot(const std::vector<LoadColumn>& columns, absl::string_view title) {
  using Value = std::optional<absl::Duration>;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  svg += Text(kWidth / 2, 24, "middle", title);
  double x = 60;
  std::vector<Curve> in_flight;
  for (size_t i = 0; i < columns.size(); ++i) {
    absl::StrAppendFormat(&svg, "<rect x=\"%.1f\" y=\"38\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x,
                          kColours[i % std::size(kColours)]);
    svg += Text(x + 18, 48, "start", columns[i].name);
    x += 44 + 7.5 * static_cast<double>(columns[i].name.size());
    in_flight.push_back(InFlight(columns[i].result.records));
  }
  const auto ttft = [](const RequestRecord& record) { return record.ttft(); };
  const auto tpot = [](const RequestRecord& record) { return record.tpot(); };
  const auto e2el = [](const RequestRecord& record) -> Value { return record.e2el(); };
  svg += Panel(0, true, "TTFT: % of requests within", "ms").Draw(Spreads(columns, ttft), 100);
  svg += Panel(1, true, "TPOT: % of requests within", "ms").Draw(Spreads(columns, tpot), 100);
  svg += Panel(2, true, "E2EL: % of requests within", "ms").Draw(Spreads(columns, e2el), 100);
  svg += Panel(3, false, "requests in flight", "s").Draw(in_flight, std::nullopt);
  return svg + "</svg>\n";
}

}  // namespace sluice
