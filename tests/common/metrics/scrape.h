// Role: a scrape's text taken apart, strictly: anything that the text format does not allow fails the test.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

struct Sample {
  std::string name;  // with _bucket, _sum or _count
  std::map<std::string, std::string> labels;
  double value = 0;
};

struct Family {
  std::string help;
  std::string type;
  std::vector<Sample> samples;
};

struct Scrape {
  std::map<std::string, Family> families;

  // Nothing when no sample has exactly these labels (model, and role unless asked for, aside).
  std::optional<double> Value(const std::string& sample, std::map<std::string, std::string> labels) const;
  size_t sample_count() const;
};

Scrape ParseScrape(const std::string& text);

}  // namespace sluice
