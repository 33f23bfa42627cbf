#include "common/text/stop_matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace sluice {
namespace {

StopMatcher Make(std::vector<std::string> stops) {
  auto matcher = StopMatcher::Create(std::move(stops));
  EXPECT_TRUE(matcher.ok()) << matcher.status();
  return *std::move(matcher);
}

struct Outcome {
  std::string text;
  std::optional<int> stop;
};

// The definition, without streaming: the earliest end, then the earliest start.
Outcome Reference(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    for (size_t begin = 0; begin < end; ++begin)
      for (size_t i = 0; i < stops.size(); ++i)
        if (text.substr(begin, end - begin) == stops[i]) return {text.substr(0, begin), static_cast<int>(i)};
  }
  return {text, std::nullopt};
}

// A test that holds back too much would pass on texts alone: what is out must be all but a possible start.
void ExpectNothingHeldInVain(const std::string& all, size_t out, const std::vector<std::string>& stops) {
  std::string held = all.substr(out);
  bool begins = held.empty();
  for (const std::string& stop : stops) begins = begins || stop.compare(0, held.size(), held) == 0;
  EXPECT_TRUE(begins) << held;
}

TEST(StopMatcher, RandomPiecesGiveWhatTheWholeTextGives) {
  std::mt19937 random(5);
  auto letters = [&](int most) {
    std::string s(1 + random() % most, 'a');
    for (char& c : s) c = static_cast<char>('a' + random() % 2);
    return s;
  };
  int met = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (size_t n = 1 + random() % 4; n > 0; --n) stops.push_back(letters(6));
    std::string text = letters(14);
    Outcome expected = Reference(text, stops);
    StopMatcher matcher = Make(stops);
    Outcome actual;
    for (size_t at = 0; at < text.size();) {
      size_t n = random() % 4;
      auto result = matcher.Push(text.substr(at, n));
      actual.text += result.text;
      if (result.stop) actual.stop = result.stop;
      at += n;
      if (!actual.stop) ExpectNothingHeldInVain(text.substr(0, at), actual.text.size(), stops);
    }
    actual.text += matcher.Flush();
    // Equal stop strings: either index is right.
    ASSERT_EQ(actual.stop.has_value(), expected.stop.has_value());
    ASSERT_EQ(actual.text, expected.text);
    if (expected.stop) {
      ASSERT_EQ(stops[*actual.stop], stops[*expected.stop]);
      ++met;
    }
  }
  EXPECT_GT(met, 2000);
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBeginAStop) {
  StopMatcher matcher = Make({"</s>", "\n\nUser:"});
  EXPECT_EQ(matcher.Push("Hello <").text, "Hello ");
  EXPECT_EQ(matcher.Push("b> x").text, "<b> x");
  EXPECT_EQ(matcher.Push("\n").text, "");
  EXPECT_EQ(matcher.Push("\n").text, "");
  EXPECT_EQ(matcher.Push("\nUse").text, "\n");
  auto met = matcher.Push("r: more");
  EXPECT_EQ(met.text, "");
  EXPECT_EQ(met.stop, 1);
  EXPECT_EQ(matcher.Push("dropped").text, "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, FlushGivesWhatWasHeld) {
  StopMatcher matcher = Make({"stop"});
  EXPECT_EQ(matcher.Push("a sto").text, "a ");
  EXPECT_EQ(matcher.Flush(), "sto");
}

TEST(StopMatcher, WithoutStopsNothingWaits) { EXPECT_EQ(Make({}).Push("anything").text, "anything"); }

TEST(StopMatcher, RefusesWhatIsOverTheLimits) {
  EXPECT_FALSE(StopMatcher::Create(std::vector<std::string>(17, "x")).ok());
  EXPECT_FALSE(StopMatcher::Create({""}).ok());
  EXPECT_FALSE(StopMatcher::Create({std::string(257, 'x')}).ok());
  EXPECT_TRUE(StopMatcher::Create(std::vector<std::string>(16, std::string(256, 'x'))).ok());
}

}  // namespace
}  // namespace sluice
