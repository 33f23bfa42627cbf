// The adaptive split of a budget (algorithms.md §3.1) against published figures and an independent program.
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/common/compression/gate_requests.h"

namespace sluice {
namespace {

TEST(SplitBudgetTest, PublishedTable) {
  struct {
    int prompt, t, cap, prompt_budget, tokens, page, channels;
  } rows[] = {
      {4096, 2048, 3492, 3364, 1024, 1, 75}, {8192, 512, 2430, 2302, 256, 3, 80},
      {16384, 256, 1596, 1468, 128, 3, 61},  {32768, 256, 1617, 1489, 128, 3, 60},
      {65536, 1024, 6383, 6255, 512, 3, 61}, {111616, 256, 1352, 1224, 128, 3, 72},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.prompt);
    const RocketSplit split = SplitBudget(row.prompt, 128, row.t, 127500, 128);
    EXPECT_EQ(split.cap, row.cap);
    EXPECT_EQ(split.prompt_budget, row.prompt_budget);
    EXPECT_EQ(split.selection.kind, SelectionKind::kHsa);
    EXPECT_EQ(split.selection.tokens, row.tokens);
    EXPECT_EQ(split.selection.page, row.page);
    EXPECT_EQ(split.selection.channels, row.channels);
    // Scoring reads as many bytes as exact attention: half of the budget each.
    const double scoring = static_cast<double>(row.cap) * row.channels / (2.0 * split.selection.page * 128);
    EXPECT_NEAR(scoring, row.tokens, 0.02 * row.tokens);
  }
}

// The paper's worked example: c = 64 splits into 10.3 times less storage, then pages of 3 and 2.1 times fewer
// channels.
TEST(SplitBudgetTest, PaperExample) {
  const RocketSplit split = SplitBudget(65536 - 128, 128, 1024, 127500, 128);
  EXPECT_NEAR(65536.0 / split.cap, 10.3, 0.05);
  EXPECT_NEAR(split.cap / 1024.0, 6.2, 0.05);
  EXPECT_EQ(split.selection.page, 3);
  EXPECT_NEAR(128.0 / split.selection.channels, 2.1, 0.05);
}

TEST(SplitBudgetTest, EqualsAnIndependentProgram) {
  std::ifstream file(SLUICE_SOURCE_DIR "/tests/golden/compression/splits.json");
  const nlohmann::json rows = nlohmann::json::parse(file);
  ASSERT_GE(rows.size(), 300u);
  for (const auto& row : rows) {
    SCOPED_TRACE(row.dump());
    const RocketSplit split = SplitBudget(row["prompt"], row["m"], row["t"], row["context"], row["head_dim"]);
    EXPECT_EQ(split.cap, row["cap"]);
    EXPECT_EQ(split.prompt_budget, row["prompt_budget"]);
    EXPECT_EQ(split.selection.tokens, row["tokens"]);
    EXPECT_EQ(split.selection.page, row["page"]);
    EXPECT_EQ(split.selection.channels, row["channels"]);
  }
}

TEST(SplitBudgetTest, TheAnswerKeepsItsRoom) {
  // 16 tokens of budget alone would keep far fewer than the 128 tokens to come.
  EXPECT_EQ(SplitBudget(1000, 128, 16, 127500, 128).cap, 256);
  EXPECT_EQ(SplitBudget(1000, 128, 16, 127500, 128).prompt_budget, 128);
}

TEST(SplitBudgetTest, NeverMoreChannelsThanThereAre) {
  for (int rows = 1; rows < 20000; rows += 7) {
    const SelectionGate gate = SplitHsa(rows, 512, 64);
    ASSERT_GE(gate.page, 1);
    ASSERT_GE(gate.channels, 1);
    ASSERT_LE(gate.channels, 64);
  }
  EXPECT_EQ(SplitHsa(1 << 30, 16, 64).channels, 1);
}

}  // namespace
}  // namespace sluice
