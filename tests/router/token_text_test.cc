#include "router/token_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/router/router_fixture.h"

namespace sluice {
namespace {

using testing::ElementsAre;

class TokenTextTest : public testing::Test {
 protected:
  TokenText Make(std::vector<std::string> stops, int min_tokens = 0) {
    return TokenText(model.tokenizer.get(), *StopMatcher::Create(std::move(stops)), min_tokens, true);
  }
  std::vector<int32_t> Ids(const std::string& text) { return *model.tokenizer->Encode(text); }
  // One token a byte.
  std::vector<int32_t> Bytes(const std::string& text) {
    std::vector<int32_t> ids;
    for (char c : text) ids.push_back(Ids(std::string(1, c))[0]);
    return ids;
  }
  static const ServedModel model;
};
const ServedModel TokenTextTest::model = SmallModel();

TEST_F(TokenTextTest, PiecesSpellTheTextAndCarryEachTokenOnce) {
  TokenText text = Make({});
  std::vector<int32_t> ids = Ids("A caf\u00e9 in the morning \u2014 \u65e5\u672c"), seen;
  std::string shown;
  for (int32_t id : ids) {
    TokenText::Piece piece = text.Push(id);
    shown += piece.text;
    seen.insert(seen.end(), piece.ids.begin(), piece.ids.end());
    EXPECT_EQ(piece.text.empty(), piece.ids.empty());
  }
  TokenText::Piece last = text.Finish();
  shown += last.text;
  seen.insert(seen.end(), last.ids.begin(), last.ids.end());
  EXPECT_EQ(shown, "A caf\u00e9 in the morning \u2014 \u65e5\u672c");
  EXPECT_EQ(seen, ids);
  EXPECT_EQ(text.TrimmedIds(), ids);
}

TEST_F(TokenTextTest, TextThatMayBeginAStopWaits) {
  TokenText text = Make({"cd"});
  std::vector<int32_t> ids = Bytes("abcx");
  EXPECT_EQ(text.Push(ids[0]).text, "a");
  EXPECT_EQ(text.Push(ids[1]).text, "b");
  TokenText::Piece held = text.Push(ids[2]);
  EXPECT_EQ(held.text, "");
  EXPECT_THAT(held.ids, ElementsAre());
  TokenText::Piece released = text.Push(ids[3]);
  EXPECT_EQ(released.text, "cx");
  EXPECT_THAT(released.ids, ElementsAre(ids[2], ids[3]));
}

TEST_F(TokenTextTest, WhatWaitedIsShownAtTheEnd) {
  TokenText text = Make({"cd"});
  for (int32_t id : Bytes("abc")) text.Push(id);
  EXPECT_EQ(text.Finish().text, "c");
  EXPECT_EQ(text.text(), "abc");
}

TEST_F(TokenTextTest, AStopEndsTheTextBeforeItAndTheIdsToo) {
  TokenText text = Make({"xx", "cd"});
  std::vector<int32_t> ids = Bytes("abcd");
  for (int i = 0; i < 3; ++i) text.Push(ids[i]);
  TokenText::Piece piece = text.Push(ids[3]);
  EXPECT_EQ(piece.stop, 1);
  EXPECT_EQ(text.text(), "ab");
  EXPECT_EQ(text.TrimmedIds(), Bytes("ab"));
  EXPECT_EQ(text.ids(), ids);
  EXPECT_THAT(text.Finish().ids, ElementsAre());
}

TEST_F(TokenTextTest, AStopInTheMiddleOfATokenLeavesIdsThatSpellTheText) {
  std::vector<int32_t> ids = Ids(" the morning");
  ASSERT_LT(ids.size(), 12u);
  TokenText text = Make({"orn"});
  for (int32_t id : ids) {
    if (text.Push(id).stop.has_value()) break;
  }
  EXPECT_EQ(text.text(), " the m");
  EXPECT_EQ(model.tokenizer->Decode(text.TrimmedIds()), " the m");
}

TEST_F(TokenTextTest, AStopIdIsCountedNotShownAndTrimmed) {
  TokenText text = Make({});
  for (int32_t id : Bytes("hi")) text.Push(id);
  EXPECT_EQ(text.Push(4095, true).text, "");
  EXPECT_THAT(text.Finish().ids, ElementsAre(4095));
  EXPECT_EQ(text.TrimmedIds(), Bytes("hi"));
  EXPECT_EQ(text.ids().size(), 3u);
}

TEST_F(TokenTextTest, StopsCountOnlyAfterMinTokens) {
  TokenText text = Make({"b"}, 2);
  std::vector<int32_t> ids = Bytes("abab");
  EXPECT_FALSE(text.Push(ids[0]).stop.has_value());
  EXPECT_FALSE(text.Push(ids[1]).stop.has_value());
  EXPECT_FALSE(text.Push(ids[2]).stop.has_value());
  EXPECT_TRUE(text.Push(ids[3]).stop.has_value());
  EXPECT_EQ(text.text(), "aba");
}

}  // namespace
}  // namespace sluice
