#include "tests/common/metrics/scrape.h"

#include <cstdlib>
#include <set>
#include <sstream>

#include "gtest/gtest.h"

namespace sluice {
namespace {

// name{a="b",c="d"} 1.5; values in these tests hold no escapes.
Sample ParseSample(const std::string& line) {
  Sample sample;
  size_t at = line.find_first_of("{ ");
  sample.name = line.substr(0, at);
  if (line[at] == '{') {
    ++at;
    while (line[at] != '}') {
      const size_t equals = line.find("=\"", at), quote = line.find('"', equals + 2);
      const std::string name = line.substr(at, equals - at);
      EXPECT_TRUE(sample.labels.emplace(name, line.substr(equals + 2, quote - equals - 2)).second) << line;
      at = quote + 1;
      if (line[at] == ',') ++at;
    }
    ++at;
  }
  EXPECT_EQ(line[at], ' ') << line;
  char* end = nullptr;
  sample.value = std::strtod(line.c_str() + at + 1, &end);
  EXPECT_EQ(*end, '\0') << line;
  return sample;
}

bool BelongsTo(const std::string& sample, const std::string& family, const std::string& type) {
  if (type != "histogram") return sample == family;
  return sample == family + "_bucket" || sample == family + "_sum" || sample == family + "_count";
}

}  // namespace

std::optional<double> Scrape::Value(const std::string& sample,
                                    std::map<std::string, std::string> labels) const {
  for (const auto& [name, family] : families) {
    for (const Sample& found : family.samples) {
      std::map<std::string, std::string> own = found.labels;
      own.erase("model");
      if (!labels.contains("role")) own.erase("role");
      if (found.name == sample && own == labels) return found.value;
    }
  }
  return std::nullopt;
}

size_t Scrape::sample_count() const {
  size_t count = 0;
  for (const auto& [name, family] : families) count += family.samples.size();
  return count;
}

Scrape ParseScrape(const std::string& text) {
  Scrape scrape;
  std::set<std::string> series;
  std::string current;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, keyword;
    if (line.rfind("# ", 0) == 0) {
      std::string name, rest;
      words >> hash >> keyword >> name >> std::ws;
      std::getline(words, rest);
      if (keyword == "HELP") {
        EXPECT_TRUE(scrape.families.emplace(name, Family{rest, "", {}}).second) << "twice: " << name;
        EXPECT_FALSE(rest.empty()) << "no help: " << name;
        current = name;
      } else {
        EXPECT_EQ(keyword, "TYPE");
        EXPECT_EQ(name, current) << "TYPE not after its HELP";
        scrape.families[name].type = rest;
      }
      continue;
    }
    Sample sample = ParseSample(line);
    Family& family = scrape.families[current];
    EXPECT_TRUE(BelongsTo(sample.name, current, family.type)) << line << " under " << current;
    EXPECT_TRUE(series.insert(line.substr(0, line.rfind(' '))).second) << "twice: " << line;
    family.samples.push_back(std::move(sample));
  }
  return scrape;
}

}  // namespace sluice
