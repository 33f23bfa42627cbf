// Every backend draws the token that the reference draws, whatever the logits and the rules.
#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/kernels/parity.h"

namespace sluice {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kUndrawn = -7;  // what out holds before

// A rule and the lists that it borrows.
struct OwnRule {
  SampleRule rule;
  std::vector<SeenToken> seen;
  std::vector<int32_t> forbidden;
};

class SampleParity : public ParityTest {
 protected:
  float Uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(random_); }
  template <class T>
  T OneOf(std::initializer_list<T> values) {
    return *(values.begin() + random_() % values.size());
  }

  OwnRule RandomRule(int row) {
    OwnRule own;
    own.rule.row = row;
    own.rule.temperature = OneOf({0.f, 0.1f, 0.7f, 1.f, 1.f, 2.f});
    own.rule.top_k = OneOf({0, 0, 1, 5, 50, 1000});
    own.rule.top_p = OneOf({1.f, 1.f, 0.95f, 0.5f, 1e-6f});
    own.rule.min_p = OneOf({0.f, 0.f, 0.05f, 1.f});
    own.rule.uniform = std::uniform_real_distribution<double>(0, 1)(random_);
    return own;
  }
  void AddPenalties(int n, OwnRule* own) {
    own->rule.repetition_penalty = OneOf({1.f, 1.3f, 0.8f});
    own->rule.presence_penalty = OneOf({0.f, 1.1f, -0.3f});
    own->rule.frequency_penalty = OneOf({0.f, 0.37f});
    std::vector<int32_t> ids(n);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random_);
    ids.resize(std::min<size_t>(ids.size(), OneOf({1, 40, 7000})));
    for (int32_t id : ids) own->seen.push_back({id, static_cast<int32_t>(random_() % 4)});
    own->seen.push_back({n, 3});
    own->forbidden = {-1, n, static_cast<int32_t>(random_() % n), static_cast<int32_t>(random_() % n)};
  }

  Tensor Draw(const Tensor& logits, std::vector<OwnRule>& owns) {
    std::vector<SampleRule> rules;
    for (OwnRule& own : owns) {
      own.rule.seen = own.seen;
      own.rule.forbidden = own.forbidden;
      rules.push_back(own.rule);
    }
    const int64_t rows = logits.host.shape[0];
    Tensor out = Ints({rows}, std::vector<int>(rows, kUndrawn));
    ops().Sample(logits.device, rules, out.device);
    EXPECT_TRUE(ops().Sync().ok());
    reference::Sample(logits.host, rules, out.host);
    return out;
  }
};

TEST_P(SampleParity, RandomLogitsAndRules) {
  for (int n : {1, 2, 37, 4096, 49152, 128256}) {
    const int rows = n > 100000 ? 6 : 24;
    for (float scale : {0.f, 0.3f, 4.f, 40.f}) {
      Tensor logits = Random(DType::kF32, {rows, n}, scale);
      std::vector<OwnRule> rules;
      for (int row = 0; row < rows; ++row) rules.push_back(RandomRule(row));
      const Tensor out = Draw(logits, rules);
      ExpectSame(out, 0, absl::StrCat("n ", n, " scale ", scale));
      ExpectSame(logits, 0, "nothing is written without penalties");
    }
  }
}

TEST_P(SampleParity, Penalties) {
  for (int n : {2, 37, 49152}) {
    for (float scale : {0.f, 4.f}) {
      Tensor logits = Random(DType::kF32, {24, n}, scale);
      std::vector<OwnRule> rules;
      for (int row = 0; row < 24; ++row) {
        rules.push_back(RandomRule(row));
        AddPenalties(n, &rules.back());
      }
      ExpectSame(Draw(logits, rules), 0, absl::StrCat("n ", n, " scale ", scale));
    }
  }
}

// Few levels: the cuts of top-k and top-p go through thousands of equals.
TEST_P(SampleParity, TiesGoToTheLowestIds) {
  constexpr int kRows = 30, kIds = 20000;
  for (int levels : {1, 2, 5}) {
    std::vector<float> values(kRows * kIds);
    for (float& x : values) x = static_cast<float>(random_() % levels) * 0.5f;
    for (int i = 0; i < kIds; ++i) values[i] = i % 2 == 0 ? -0.f : 0.f;
    Tensor logits = Floats({kRows, kIds}, values);
    std::vector<OwnRule> rules;
    for (int row = 0; row < kRows; ++row) {
      rules.push_back(RandomRule(row));
      rules.back().rule.top_k = OneOf({0, 1, 999, 15000});
    }
    ExpectSame(Draw(logits, rules), 0, absl::StrCat("levels ", levels));
  }
}

TEST_P(SampleParity, AllButOneForbidden) {
  constexpr int kIds = 3000;
  Tensor logits = Random(DType::kF32, {8, kIds}, 3);
  std::vector<OwnRule> rules;
  for (int row = 0; row < 8; ++row) {
    rules.push_back(RandomRule(row));
    for (int id = 0; id < kIds; ++id)
      if (id != 41 * row) rules[row].forbidden.push_back(id);
  }
  rules[7].forbidden.push_back(41 * 7);
  const Tensor out = Draw(logits, rules);
  for (int row = 0; row < 7; ++row) EXPECT_EQ(out.host.as<int32_t>()[row], 41 * row);
  EXPECT_EQ(out.host.as<int32_t>()[7], -1);
  ExpectSame(out, 0);
}

TEST_P(SampleParity, BadLogitsGiveNoToken) {
  constexpr int kIds = 5000;
  std::vector<float> values(5 * kIds, 1.f);
  values[77] = std::numeric_limits<float>::quiet_NaN();
  values[kIds + 4999] = kInfinity;
  std::fill(values.begin() + 2 * kIds, values.begin() + 3 * kIds, -kInfinity);
  std::fill(values.begin() + 3 * kIds, values.begin() + 4 * kIds, -kInfinity);
  values[3 * kIds + 123] = -1e30f;
  for (float temperature : {0.f, 1.f}) {
    Tensor logits = Floats({5, kIds}, values);
    std::vector<OwnRule> rules(4);
    for (int row = 0; row < 4; ++row)
      rules[row].rule = {.row = row, .temperature = temperature, .top_k = 3, .uniform = 0.999};
    // Neither a mask nor a penalty hides what is bad.
    rules[0].forbidden = {77};
    rules[0].rule.presence_penalty = 1;
    rules[0].seen = {{77, 1}};
    rules[1].forbidden = {4999};
    const Tensor out = Draw(logits, rules);
    EXPECT_EQ(std::vector<int32_t>(out.host.as<int32_t>(), out.host.as<int32_t>() + 5),
              (std::vector<int32_t>{-1, -1, -1, 123, kUndrawn}));
    ExpectSame(out, 0, "row 4 has no rule and stays");
  }
}

// The last token is reached by the largest share, the first by none.
TEST_P(SampleParity, TheWholeRangeOfDraws) {
  Tensor logits = Poisoned(DType::kF32, {2, 9000});
  std::fill_n(logits.host.as<float>(), 18000, 2.f);
  Upload(logits);
  std::vector<OwnRule> rules(2);
  rules[0].rule = {.row = 0, .temperature = 1, .uniform = 0};
  rules[1].rule = {.row = 1, .temperature = 1e-38f, .uniform = std::nextafter(1.0, 0.0)};
  const Tensor out = Draw(logits, rules);
  EXPECT_EQ(out.host.as<int32_t>()[0], 0);
  EXPECT_EQ(out.host.as<int32_t>()[1], 8999);
  ExpectSame(out, 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, SampleParity, testing::ValuesIn(AllBackends()), CaseName);

}  // namespace
}  // namespace sluice
