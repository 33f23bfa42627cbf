#include "common/text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "common/text/unicode.h"
#include "tests/common/text/text_test_files.h"

namespace sluice {
namespace {

std::unique_ptr<Tokenizer> Load(const std::string& style) {
  auto tokenizer = Tokenizer::FromJson(ReadSourceFile("tests/golden/text/" + style + ".tokenizer.json"), "");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

TEST(Detokenizer, EveryPieceOfARandomStreamIsValidUtf8) {
  for (const char* style : {"qwen2", "llama"}) {
    auto tokenizer = Load(style);
    std::mt19937 random(11);
    for (int round = 0; round < 3000; ++round) {
      Detokenizer detokenizer(tokenizer.get(), {.skip_special = round % 2 == 0});
      std::string all;
      std::vector<int32_t> ids;
      for (size_t n = random() % 20; n > 0; --n) {
        // Byte tokens mostly, and now and then an id without a token.
        ids.push_back(
            static_cast<int32_t>(random() % (random() % 4 == 0 ? tokenizer->vocab_size() + 5 : 262)));
        std::string piece = detokenizer.Push(ids.back());
        ASSERT_FALSE(FirstInvalidUtf8(piece).has_value());
        all += piece;
      }
      std::string rest = detokenizer.Flush();
      ASSERT_FALSE(FirstInvalidUtf8(rest).has_value());
      ASSERT_EQ(all + rest, tokenizer->Decode(ids, round % 2 == 0));
    }
  }
}

TEST(Detokenizer, GivesAnEmojiOnlyWhenItIsWhole) {
  auto tokenizer = Load("llama");
  Detokenizer detokenizer(tokenizer.get());
  auto byte = [&](const char* name) { return tokenizer->IdOf(name).value(); };
  EXPECT_EQ(detokenizer.Push(byte("<0xF0>")), "");
  EXPECT_EQ(detokenizer.Push(byte("<0x9F>")), "");
  EXPECT_EQ(detokenizer.Push(byte("<0x99>")), "");
  EXPECT_EQ(detokenizer.Push(byte("<0x82>")), "\xF0\x9F\x99\x82");
  EXPECT_EQ(detokenizer.Push(byte("<0xF0>")), "");
  EXPECT_EQ(detokenizer.Push(byte("<0x9F>")), "");
  EXPECT_EQ(detokenizer.Flush(), "\uFFFD\uFFFD");
}

TEST(Detokenizer, TheLeadingSpaceFallsOffOnlyAtTheStartOfAText) {
  auto tokenizer = Load("llama");
  auto ids = tokenizer->Encode("the end");
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(tokenizer->Decode(*ids), "the end");
  Detokenizer continued(tokenizer.get(), {.at_start = false});
  std::string text;
  for (int32_t id : *ids) text += continued.Push(id);
  EXPECT_EQ(text + continued.Flush(), " the end");
}

}  // namespace
}  // namespace sluice
