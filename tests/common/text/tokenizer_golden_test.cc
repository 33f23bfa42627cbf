// Ids and decodings equal those of Hugging Face's tokenizers and of SentencePiece, over 1,000 strings; the
// files come from tests/golden/text/make_tokenizer_goldens.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/text/detokenizer.h"
#include "common/text/tokenizer.h"
#include "tests/common/text/text_test_files.h"

namespace sluice {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

json Golden(const std::string& name) { return json::parse(ReadSourceFile("tests/golden/text/" + name)); }

std::unique_ptr<Tokenizer> Load(const json& tokenizer_json) {
  auto tokenizer = Tokenizer::FromJson(tokenizer_json.dump(), "");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// The same tokenizer as a GGUF file would describe it.
std::unique_ptr<Tokenizer> LoadAsGguf(const json& tokenizer_json, const std::string& pre) {
  TokenizerParts parts;
  parts.model = "gpt2";
  parts.pre = pre;
  size_t count = tokenizer_json["model"]["vocab"].size();
  for (const json& token : tokenizer_json["added_tokens"])
    count = std::max<size_t>(count, token["id"].get<size_t>() + 1);
  parts.tokens.resize(count);
  parts.token_types.assign(count, 1);
  for (const auto& [text, id] : tokenizer_json["model"]["vocab"].items()) parts.tokens[id] = text;
  for (const json& token : tokenizer_json["added_tokens"]) {
    parts.tokens[token["id"]] = token["content"];
    parts.token_types[token["id"]] = token["special"] ? 3 : 4;
    if (token["content"] == "<|begin_of_text|>") parts.bos_id = token["id"].get<int>();
  }
  for (const json& m : tokenizer_json["model"]["merges"])
    parts.merges.push_back(m[0].get<std::string>() + " " + m[1].get<std::string>());
  auto tokenizer = Tokenizer::FromParts(std::move(parts));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

void ExpectGolden(const Tokenizer& tokenizer, const json& golden) {
  const json strings = Golden("strings.json");
  ASSERT_EQ(strings.size(), 1000u);
  int wrong = 0;
  for (size_t i = 0; i < strings.size() && wrong < 10; ++i) {
    std::string text = strings[i];
    auto ids = tokenizer.Encode(text, {.parse_special = true});
    ASSERT_TRUE(ids.ok()) << ids.status();
    Ids expected = golden["ids"][i].get<Ids>();
    EXPECT_LE(tokenizer.LeastTokens(text.size()), expected.size()) << i;
    EXPECT_EQ(*ids, expected) << i << ": " << json(text).dump();
    wrong += *ids != expected;
    const json& differs = golden["decoded_differs"];
    std::string key = absl::StrCat(i);
    std::string decoded = differs.contains(key) ? differs[key].get<std::string>() : text;
    EXPECT_EQ(tokenizer.Decode(expected, /*skip_special=*/false), decoded) << i;
  }
  for (size_t i = 0; i < golden["with_special"].size(); ++i) {
    auto ids = tokenizer.Encode(strings[i].get<std::string>(), {.parse_special = true, .add_special = true});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, golden["with_special"][i].get<Ids>()) << i;
  }
  for (const json& stream : golden["streams"]) {
    Ids ids = stream["ids"].get<Ids>();
    EXPECT_EQ(tokenizer.Decode(ids, /*skip_special=*/false), stream["text"].get<std::string>())
        << stream["ids"];
    EXPECT_EQ(tokenizer.Decode(ids), stream["without_special"].get<std::string>()) << stream["ids"];
  }
}

TEST(TokenizerGolden, BundledModel) { ExpectGolden(*LoadBundledTokenizer(), Golden("bundled.golden.json")); }

class TokenizerStyle : public testing::TestWithParam<const char*> {};
TEST_P(TokenizerStyle, EqualsHuggingFace) {
  auto tokenizer = Load(Golden(absl::StrCat(GetParam(), ".tokenizer.json")));
  ASSERT_NE(tokenizer, nullptr);
  ExpectGolden(*tokenizer, Golden(absl::StrCat(GetParam(), ".golden.json")));
}
INSTANTIATE_TEST_SUITE_P(All, TokenizerStyle, testing::Values("qwen2", "llama3", "smollm", "llama"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TokenizerGolden, GgufFormGivesTheSameIds) {
  for (auto [style, pre] :
       {std::pair("qwen2", "qwen2"), std::pair("llama3", "llama-bpe"), std::pair("smollm", "smollm")}) {
    SCOPED_TRACE(style);
    auto tokenizer = LoadAsGguf(Golden(absl::StrCat(style, ".tokenizer.json")), pre);
    ASSERT_NE(tokenizer, nullptr);
    ExpectGolden(*tokenizer, Golden(absl::StrCat(style, ".golden.json")));
  }
}

TEST(TokenizerGolden, VariantsOfEverySection) {
  const json strings = Golden("strings.json");
  const json bases = {{"qwen2", Golden("qwen2.tokenizer.json")}, {"llama", Golden("llama.tokenizer.json")}};
  const json variants = Golden("variants.golden.json");
  ASSERT_GE(variants.size(), 30u);
  for (const json& variant : variants) {
    SCOPED_TRACE(variant["name"].get<std::string>());
    json file = bases[variant["base"].get<std::string>()];
    for (const auto& [section, value] : variant["sections"].items()) {
      if (section == "model") {
        file["model"].update(value);
      } else if (section == "tokens") {
        for (json& token : file["added_tokens"])
          if (value.contains(token["content"].get<std::string>()))
            token.update(value[token["content"].get<std::string>()]);
      } else {
        file[section] = value;
      }
    }
    auto tokenizer = Load(file);
    ASSERT_NE(tokenizer, nullptr);
    int wrong = 0;
    for (size_t i = 0; i < variant["ids"].size() && wrong < 3; ++i) {
      std::string text = strings[12 * i];
      auto ids = tokenizer->Encode(text, {.parse_special = true});
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(*ids, variant["ids"][i].get<Ids>()) << 12 * i << ": " << json(text).dump();
      wrong += *ids != variant["ids"][i].get<Ids>();
      EXPECT_EQ(tokenizer->Decode(variant["ids"][i].get<Ids>(), false),
                variant["decoded"][i].get<std::string>())
          << i;
    }
  }
}

TEST(TokenizerGolden, GgufLlamaKindEqualsSentencePiece) {
  const json golden = Golden("sentencepiece.golden.json");
  TokenizerParts parts;
  parts.model = "llama";
  parts.tokens = golden["tokens"].get<std::vector<std::string>>();
  parts.scores = golden["scores"].get<std::vector<float>>();
  parts.token_types = golden["types"].get<std::vector<int32_t>>();
  parts.unk_id = 0;
  parts.bos_id = 1;
  parts.eos_id = 2;
  auto tokenizer = Tokenizer::FromParts(std::move(parts));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  int checked = 0;
  for (size_t i = 0; i < golden["strings"].size(); ++i) {
    std::string text = golden["strings"][i];
    auto ids = (*tokenizer)->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, golden["ids"][i].get<Ids>()) << json(text).dump();
    EXPECT_EQ((*tokenizer)->Decode(*ids), text);
    ++checked;
  }
  EXPECT_GE(checked, 300);
  EXPECT_THAT(*(*tokenizer)->Encode("", {.add_special = true}), testing::ElementsAre(1));
}

}  // namespace
}  // namespace sluice
