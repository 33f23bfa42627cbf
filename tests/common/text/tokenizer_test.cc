#include "common/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/common/text/text_test_files.h"

namespace sluice {
namespace {

using nlohmann::json;

TEST(BundledTokenizer, EncodesItsGoldenStringsAndPrompts) {
  auto tokenizer = LoadBundledTokenizer();
  json golden = json::parse(ReadSourceFile("models/needle-14m/golden.json"));
  int checked = 0;
  for (const json& item : golden["tokenizer"]) {
    std::string text = item["text"];
    auto ids = tokenizer->Encode(text, {.parse_special = true});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, item["ids"].get<std::vector<int32_t>>()) << text;
    EXPECT_EQ(tokenizer->Decode(*ids, /*skip_special=*/false), text);
    ++checked;
  }
  for (const json& item : golden["prompts"]) {
    auto ids = tokenizer->Encode(item["text"].get<std::string>(), {.parse_special = true});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, item["ids"].get<std::vector<int32_t>>()) << item["name"];
    ++checked;
  }
  EXPECT_GE(checked, 47);
}

TEST(BundledTokenizer, KnowsItsControlTokens) {
  auto tokenizer = LoadBundledTokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 4096);
  EXPECT_THAT(tokenizer->special_ids(), testing::ElementsAre(4093, 4094, 4095));
  EXPECT_THAT(tokenizer->eos_ids(), testing::ElementsAre(4095));
  EXPECT_EQ(tokenizer->eos_token(), "<|im_end|>");
  EXPECT_FALSE(tokenizer->bos_id().has_value());
  EXPECT_EQ(tokenizer->bos_token(), "");
  EXPECT_EQ(tokenizer->IdOf("<|im_start|>"), 4094);
  EXPECT_FALSE(tokenizer->IdOf("<|no_such|>").has_value());
  EXPECT_NE(tokenizer->chat_template().find("add_generation_prompt"), std::string::npos);
}

}  // namespace
}  // namespace sluice
