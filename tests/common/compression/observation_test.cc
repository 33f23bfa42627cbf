// The scores that snapkv and tsp rank by, and what fading pooling does to them (algorithms.md §2b).
#include "common/compression/observation.h"

#include <algorithm>
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/compression/test_layer.h"

namespace sluice {
namespace {

constexpr Pooling kNone = {.kind = Pooling::kMax, .kernel = 1};
constexpr Pooling kFading = {.kind = Pooling::kFading, .kernel = 1, .after = 16, .before = 4};

std::vector<float> Scores(TestLayer& layer, int window, const Pooling& pooling) {
  const Observation observation = {.window = window, .pooling = pooling};
  auto scores = ObservationScores(layer.view(), observation, layer.ops(), layer.workspace());
  SLUICE_CHECK(scores.ok());
  return layer.Read<float>(*scores);
}

// Pooling on a row of scores by itself.
std::vector<float> Pooled(TestLayer& layer, std::vector<float> scores, const Pooling& pooling) {
  std::vector<float> out(scores.size());
  const int64_t n = static_cast<int64_t>(scores.size());
  layer.ops().Pool(TensorView::Contiguous(scores.data(), DType::kF32, {1, n}), pooling,
                   TensorView::Contiguous(out.data(), DType::kF32, {1, n}));
  SLUICE_CHECK(layer.ops().Sync().ok());
  return out;
}

TEST(ObservationTest, ScoresAreAttentionMassOfThePrefix) {
  TestLayer layer({.group = 3, .n = 200}, 4);
  const std::vector<float> scores = Scores(layer, 8, kNone);
  ASSERT_EQ(scores.size(), 2u * 192);
  for (int h = 0; h < 2; ++h) {
    double mass = 0;
    for (int i = 0; i < 192; ++i) {
      EXPECT_GT(scores[h * 192 + i], 0);
      mass += scores[h * 192 + i];
    }
    EXPECT_LT(mass, 8 * 3);  // one per query and query head, less what the window itself takes
    EXPECT_GT(mass, 8 * 3 * 0.8);
  }
}

// The view may hold more queries than a gate asks for: it reads the last ones.
TEST(ObservationTest, AShorterWindowReadsTheLastQueries) {
  TestLayer one({.n = 200, .held = 1}, 4), many({.n = 200, .held = 8}, 4);
  // The last query of `many` is its eighth: give `one` the same.
  std::copy_n(many.view().q_window.as<float>() + 7 * 32, 32, one.view().q_window.as<float>());
  for (int head = 0; head < 2; ++head) {
    one.view().window_lse.as<float>()[head] = many.view().window_lse.as<float>()[head * 8 + 7];
  }
  EXPECT_EQ(Scores(one, 1, kNone), Scores(many, 1, kNone));
}

TEST(FadingPoolingTest, NeverLowersAScoreAndNeverRaisesTheHighest) {
  TestLayer layer({.n = 600}, 4);
  const std::vector<float> raw = Scores(layer, 8, kNone), faded = Scores(layer, 8, kFading);
  for (size_t i = 0; i < raw.size(); ++i) EXPECT_GE(faded[i], raw[i]);
  for (int h = 0; h < 2; ++h) {
    const auto at = [&](const std::vector<float>& s) {
      return *std::max_element(s.begin() + h * 592, s.begin() + (h + 1) * 592);
    };
    EXPECT_EQ(at(raw), at(faded));
  }
}

TEST(FadingPoolingTest, APeakReachesFurtherBehindThanAhead) {
  TestLayer layer({.n = 20}, 4);
  std::vector<float> scores(1400, 0.f);
  scores[700] = 1;
  const std::vector<float> out = Pooled(layer, scores, kFading);
  for (int distance : {0, 1, 5, 16, 100, 512}) {
    EXPECT_NEAR(out[700 + distance] / std::exp(-distance / 16.0), 1, 1e-4) << distance;
  }
  for (int distance : {0, 1, 5, 16, 100, 128}) {
    EXPECT_NEAR(out[700 - distance] / std::exp(-distance / 4.0), 1, 1e-4) << distance;
  }
  // The cut at 32 reaches.
  EXPECT_EQ(out[700 + 513], 0);
  EXPECT_EQ(out[700 - 129], 0);
}

TEST(FadingPoolingTest, AStrongTokenKeepsAWiderNeighbourhoodThanAWeakOne) {
  TestLayer layer({.n = 20}, 4);
  std::vector<float> scores(400, 1e-3f);
  scores[100] = 1;
  scores[300] = 0.01f;
  const std::vector<float> out = Pooled(layer, scores, kFading);
  const auto raised = [&](int begin, int end) {
    return std::count_if(out.begin() + begin, out.begin() + end, [](float s) { return s > 1e-3f; });
  };
  EXPECT_EQ(raised(0, 100), 27);     // 4 ln(1000) = 27.6 rows ahead
  EXPECT_EQ(raised(101, 250), 110);  // 16 ln(1000) = 110.5 rows behind
  EXPECT_EQ(raised(250, 300), 9);
  EXPECT_EQ(raised(301, 400), 36);
}

TEST(FadingPoolingTest, IsTheMaxOverWhatEachTokenGives) {
  TestLayer layer({.n = 20}, 4);
  std::vector<float> a(300), b(300), both(300);
  for (int i = 0; i < 300; ++i) {
    a[i] = std::max(0.f, HashedValue(1, i));
    b[i] = std::max(0.f, HashedValue(2, i));
    both[i] = std::max(a[i], b[i]);
  }
  const std::vector<float> pa = Pooled(layer, a, kFading), pb = Pooled(layer, b, kFading);
  const std::vector<float> pooled = Pooled(layer, both, kFading);
  for (int i = 0; i < 300; ++i) EXPECT_EQ(pooled[i], std::max(pa[i], pb[i]));
}

}  // namespace
}  // namespace sluice
