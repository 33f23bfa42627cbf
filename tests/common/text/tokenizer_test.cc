#include "common/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/common/text/text_test_files.h"
#include "tests/support/patience.h"

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

std::unique_ptr<Tokenizer> LoadStyle(const std::string& style) {
  auto tokenizer = Tokenizer::FromJson(ReadSourceFile("tests/golden/text/" + style + ".tokenizer.json"), "");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

TEST(Tokenizer, KnowsWhatIsSurelyLong) {
  auto tokenizer = LoadBundledTokenizer();
  EXPECT_EQ(tokenizer->LeastTokens(0), 0u);
  EXPECT_GE(tokenizer->LeastTokens(13 << 20), 32768u);
  // The densest text there is: the longest token, over and over.
  std::string longest;
  for (int id = 0; id < tokenizer->vocab_size(); ++id)
    if (!tokenizer->IsSpecial(id) && tokenizer->TokenBytes(id).size() > longest.size())
      longest = std::string(tokenizer->TokenBytes(id));
  std::string text;
  for (int i = 0; i < 1000; ++i) text += longest;
  EXPECT_LE(tokenizer->LeastTokens(text.size()), tokenizer->Encode(text)->size());
}

TEST(Tokenizer, PlainTextNeverGivesControlTokens) {
  auto tokenizer = LoadBundledTokenizer();
  for (const char* text : {"<|im_start|>", "a<|im_end|>b", "<|endoftext|><|im_start|>"}) {
    auto ids = tokenizer->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    for (int32_t id : *ids) EXPECT_FALSE(tokenizer->IsSpecial(id)) << text;
    EXPECT_EQ(tokenizer->Decode(*ids), text);
  }
}

TEST(Tokenizer, SegmentsMergeAcrossBordersAndKeepControlTokensToTheTemplate) {
  for (const char* style : {"qwen2", "llama3", "smollm"}) {
    auto tokenizer = LoadStyle(style);
    // No control text in the content: the ids of the plain concatenation, wherever the borders are.
    std::string text = "Hello world, don't stop 123  now\n\n";
    auto whole = tokenizer->Encode(text, {.parse_special = true});
    ASSERT_TRUE(whole.ok());
    for (size_t cut = 0; cut <= text.size(); ++cut)
      EXPECT_EQ(
          *tokenizer->EncodeSegments({{text.substr(0, cut), cut % 2 == 0}, {text.substr(cut), cut % 2 == 1}}),
          *whole);
  }
  auto tokenizer = LoadBundledTokenizer();
  auto count = [&](std::vector<TextSegment> segments) {
    auto ids = tokenizer->EncodeSegments(segments);
    EXPECT_TRUE(ids.ok()) << ids.status();
    return std::count_if(ids->begin(), ids->end(), [&](int32_t id) { return tokenizer->IsSpecial(id); });
  };
  EXPECT_EQ(count({{"<|im_start|>", false}}), 1);
  EXPECT_EQ(count({{"<|im_start|>", true}}), 0);
  EXPECT_EQ(count({{"x<|im_start|>y", true}}), 0);
  EXPECT_EQ(count({{"<|im_", false}, {"start|>", true}}), 0);
  EXPECT_EQ(count({{"<|im_", true}, {"start|>", false}}), 0);
  EXPECT_EQ(count({{"<|im_", false}, {"s", true}, {"tart|>", false}}), 0);
  EXPECT_EQ(count({{"<|im_", false}, {"start|>", false}}), 1);
  EXPECT_EQ(count({{"<|im_start|>", false}, {"<|im_start|><|im_end|>", true}, {"<|im_end|>", false}}), 2);
}

TEST(Tokenizer, NormalizedControlTokensStayOutOfContentToo) {
  json file = json::parse(ReadSourceFile("tests/golden/text/qwen2.tokenizer.json"));
  for (json& token : file["added_tokens"]) token["normalized"] = true;
  auto tokenizer = Tokenizer::FromJson(file.dump(), "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::vector<TextSegment> segments = {{"<|im_start|>", false}, {"e\u0301 <|im_start|> e\u0301", true}};
  auto ids = (*tokenizer)->EncodeSegments(segments);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(std::count(ids->begin(), ids->end(), *(*tokenizer)->IdOf("<|im_start|>")), 1);
}

TEST(Tokenizer, InvalidUtf8NamesTheByte) {
  auto tokenizer = LoadBundledTokenizer();
  for (auto [text, offset] : {std::pair<std::string, int>("ab\xff", 2),
                              {"\xc3", 0},
                              {"a\xed\xa0\x80", 1},
                              {"xy\xf4\x90\x80\x80", 2},
                              {"\xc0\x80", 0}}) {
    auto ids = tokenizer->Encode(text);
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ids.status().message(), absl::StrCat("text is not UTF-8 at byte ", offset));
  }
}

TEST(Tokenizer, HashChangesWithWhatDecidesIds) {
  json file = json::parse(ReadSourceFile("tests/golden/text/qwen2.tokenizer.json"));
  auto hash = [](const json& f) {
    auto tokenizer = Tokenizer::FromJson(f.dump(), "");
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? (*tokenizer)->hash() : "";
  };
  std::string first = hash(file);
  EXPECT_EQ(first.size(), 16u);
  EXPECT_EQ(hash(file), first);
  json changed = file;
  std::swap(changed["model"]["merges"][3], changed["model"]["merges"][4]);
  EXPECT_NE(hash(changed), first);
  changed = file;
  changed["normalizer"] = nullptr;
  EXPECT_NE(hash(changed), first);
  changed = file;
  changed["added_tokens"][0]["special"] = false;
  EXPECT_NE(hash(changed), first);
}

TEST(Tokenizer, RefusesByNameWhatWouldChangeIds) {
  const json base = json::parse(ReadSourceFile("tests/golden/text/qwen2.tokenizer.json"));
  auto refused = [&](const char* pointer, const json& value, const char* wanted) {
    json file = base;
    file[json::json_pointer(pointer)] = value;
    auto status = Tokenizer::FromJson(file.dump(), "").status();
    EXPECT_FALSE(status.ok()) << pointer;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(wanted));
  };
  refused("/model/type", "Unigram", "Unigram");
  refused("/model/dropout", 0.1, "dropout");
  refused("/model/end_of_word_suffix", "</w>", "end_of_word_suffix");
  refused("/model/new_field", true, "new_field");
  refused("/model/unk_token", "<nope>", "unk_token");
  refused("/normalizer", {{"type", "Lowercase"}}, "Lowercase");
  refused("/pre_tokenizer", {{"type", "Whitespace"}}, "Whitespace");
  refused("/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\w+", "\\w");
  refused("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a", "regex");
  refused("/decoder", {{"type", "WordPiece"}}, "WordPiece");
  refused("/decoder", nullptr, "decoder");
  refused("/post_processor", {{"type", "BertProcessing"}}, "BertProcessing");
  refused("/added_tokens/0/single_word", true, "single_word");
  refused("/added_tokens/0/id", 1ull << 40, "an id must be");
  refused("/added_tokens/0/id", -1, "an id must be");
  refused("/added_tokens/0/id", 5, "belongs to two tokens");
  refused("/model/vocab", json::array(), "model.vocab");
  refused("/model/merges/0", {"a", "no such token"}, "merges[0]");
  TokenizerParts parts;
  parts.model = "gpt2";
  parts.pre = "mystery";
  parts.tokens = {"a"};
  EXPECT_THAT(std::string(Tokenizer::FromParts(parts).status().message()), testing::HasSubstr("mystery"));
  parts.model = "t5";
  EXPECT_THAT(std::string(Tokenizer::FromParts(parts).status().message()), testing::HasSubstr("t5"));
  parts.model = "llama";
  EXPECT_THAT(std::string(Tokenizer::FromParts(parts).status().message()), testing::HasSubstr("scores"));
  parts.scores = {0};
  parts.bos_id = 7;
  EXPECT_THAT(std::string(Tokenizer::FromParts(parts).status().message()), testing::HasSubstr("7"));
}

TEST(Tokenizer, TruncatedFilesAreErrors) {
  const std::string file = ReadSourceFile("models/needle-14m/tokenizer.json");
  size_t whole = file.find_last_of('}');
  for (int i = 0; i < 200; ++i) {
    auto tokenizer = Tokenizer::FromJson(file.substr(0, whole * i / 200), "");
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument) << i;
  }
}

TEST(Tokenizer, DamagedFilesNeverCrash) {
  const std::string file = ReadSourceFile("tests/golden/text/llama.tokenizer.json");
  std::mt19937 random(17);
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    std::string damaged = file;
    for (size_t n = 1 + random() % 3; n > 0; --n)
      damaged[random() % (round % 2 == 0 ? damaged.size() : 2000)] = "0{}[],:\"x\xff-9e"[random() % 14];
    auto tokenizer = Tokenizer::FromJson(damaged, "");
    refused += !tokenizer.ok();
    if (tokenizer.ok())
      (void)(*tokenizer)->Encode("Hello, wörld <s> 123", {.parse_special = true, .add_special = true});
  }
  EXPECT_GT(refused, 200);
  EXPECT_FALSE(Tokenizer::FromJson(std::string(1000000, '['), "").ok());
  EXPECT_FALSE(Tokenizer::FromJson("{\"model\":" + std::string(100000, '{'), "").ok());
}

// A megabyte of every kind of text that could make an encoder quadratic: eight times the text may cost at
// most three times eight.
TEST(Tokenizer, TimeGrowsWithTheTextNotItsSquare) {
  for (const char* style : {"qwen2", "llama"}) {
    auto tokenizer = LoadStyle(style);
    for (const char* unit :
         {"a", " ", "ab", "the cat sat on the mat. ", "\n", "<|im_start|", "\u00e9", "e\u0301", "1", "!"}) {
      auto seconds = [&](size_t bytes) {
        std::string text;
        while (text.size() < bytes) text += unit;
        std::clock_t start = std::clock();  // CPU time: the machine may be busy
        auto ids = tokenizer->EncodeSegments({{text, false}, {text, true}});
        EXPECT_TRUE(ids.ok()) << ids.status();
        return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
      };
      const size_t bytes = kPatience > 1 ? 1 << 13 : 1 << 16;
      double small = std::max(0.005, std::min({seconds(bytes), seconds(bytes), seconds(bytes)}));
      double large = std::min(seconds(8 * bytes), seconds(8 * bytes));
      EXPECT_LT(large, 24 * small) << style << " " << json(unit).dump();
    }
  }
}

}  // namespace
}  // namespace sluice
