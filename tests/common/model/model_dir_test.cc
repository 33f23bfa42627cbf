#include "common/model/model_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/gguf_bytes.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

const std::string kSource = SLUICE_SOURCE_DIR;
const std::string kTiny = kSource + "/tests/golden/models/";

TEST(ModelDir, OpensTheBundledModel) {
  auto files = OpenModel(kSource + "/models/needle-14m/");
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->shape.name, "needle-14m");
  auto tokenizer = OpenTokenizer(kSource + "/models/needle-14m");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), files->shape.vocab);
  EXPECT_THAT((*tokenizer)->chat_template(), HasSubstr("<|im_start|>"));
  EXPECT_EQ(OpenShape(kSource + "/models/needle-14m")->inv_freq, files->shape.inv_freq);
}

TEST(ModelDir, OpensShardsAndGguf) {
  auto sharded = OpenModel(kTiny + "nemo-sharded");
  ASSERT_TRUE(sharded.ok()) << sharded.status();
  auto gguf = OpenModel(kTiny + "llama3/model.gguf");
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ(gguf->shape.name, "model");
  auto hf = OpenModel(kTiny + "llama3");
  ASSERT_TRUE(hf.ok()) << hf.status();
  // The interleaved rows of GGUF are put back on the way.
  EXPECT_EQ(*gguf->weights.ReadAll({Weight::kK, 2}), *hf->weights.ReadAll({Weight::kK, 2}));
}

TEST(ModelDir, HashesTellModelsApartAndAreStable) {
  auto a = OpenModel(kTiny + "qwen3"), again = OpenModel(kTiny + "qwen3"),
       b = OpenModel(kTiny + "qwen2-window");
  ASSERT_TRUE(a.ok() && again.ok() && b.ok());
  EXPECT_EQ(WeightsHash(*a), WeightsHash(*again));
  EXPECT_EQ(RopeHash(a->shape), RopeHash(again->shape));
  EXPECT_NE(WeightsHash(*a), WeightsHash(*b));
  EXPECT_NE(RopeHash(a->shape), RopeHash(b->shape));
  a->shape.rms_eps *= 2;
  EXPECT_NE(WeightsHash(*a), WeightsHash(*again));
  a->shape.sliding_window[0] = 5;
  EXPECT_NE(RopeHash(a->shape), RopeHash(again->shape));
}

TEST(ModelDir, ASafetensorsFileIsNoModel) {
  absl::Status status = OpenShape("models/needle-14m/model.safetensors").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("name the directory"));
}

TEST(ModelDir, SaysWhatIsMissing) {
  TempDir dir;
  EXPECT_EQ(OpenModel(dir.path() + "/nowhere").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(OpenModel(dir.path()).status().message()), HasSubstr("/config.json"));
  EXPECT_THAT(std::string(OpenTokenizer(dir.path()).status().message()), HasSubstr("/tokenizer.json"));
  dir.Write("config.json", "{}");
  EXPECT_THAT(std::string(OpenModel(dir.path()).status().message()),
              HasSubstr(dir.path() + "/config.json: model_type"));
  std::filesystem::copy_file(kTiny + "qwen3/config.json", dir.path() + "/config.json",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(std::string(OpenModel(dir.path()).status().message()),
              HasSubstr("neither model.safetensors nor"));
  EXPECT_THAT(std::string(OpenModel(dir.Write("x.bin", "text")).status().message()),
              HasSubstr("not a GGUF file"));
  EXPECT_THAT(std::string(OpenTokenizer(kTiny + "llama3/model.gguf").status().message()),
              HasSubstr("tokenizer.ggml.tokens"));
}

TEST(ModelDir, ATemplateFileWins) {
  TempDir dir;
  const std::string needle = kSource + "/models/needle-14m/";
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    std::filesystem::copy_file(needle + name, dir.path() + "/" + name);
  dir.Write("chat_template.jinja", "own template");
  auto tokenizer = OpenTokenizer(dir.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->chat_template(), "own template");
  dir.Write("tokenizer_config.json", "{");
  EXPECT_THAT(std::string(OpenTokenizer(dir.path()).status().message()), HasSubstr("tokenizer_config.json"));
}

TEST(ModelDir, GgufTokenizerKeysOfTheWrongKindAreNamed) {
  TempDir dir;
  auto open = [&](GgufBytes& bytes) {
    return std::string(OpenTokenizer(dir.Write("m.gguf", bytes.Finish(""))).status().message());
  };
  auto base = [] {
    GgufBytes bytes;
    bytes.Text("tokenizer.ggml.model", "gpt2").Array("tokenizer.ggml.tokens", 8, 0, "");
    return bytes;
  };
  EXPECT_THAT(open(base().Text("tokenizer.ggml.merges", "a b")),
              HasSubstr("tokenizer.ggml.merges is not an array"));
  EXPECT_THAT(open(base().U32("tokenizer.ggml.bos_token_id", 4000000000)), HasSubstr("is no token id"));
  EXPECT_THAT(open(base().U32("tokenizer.ggml.add_bos_token", 1)),
              HasSubstr("add_bos_token is not a boolean"));
}

// The real GGUF models are not in the repository. Empty when the file is not there.
std::string RealModel(const std::string& file) {
  const char* directory = std::getenv("SLUICE_MODELS_DIR");
  std::string path = absl::StrCat(directory == nullptr ? "." : directory, "/", file);
  return std::filesystem::exists(path) ? path : "";
}

TEST(ModelDir, RealSmolLm2Gguf) {
  std::string path = RealModel("SmolLM2-135M-Instruct.Q4_1.gguf");
  if (path.empty()) GTEST_SKIP() << "needs $SLUICE_MODELS_DIR/SmolLM2-135M-Instruct.Q4_1.gguf";
  auto files = OpenModel(path);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->shape.n_layers, 30);
  EXPECT_EQ(files->shape.n_q_heads, 9);
  EXPECT_EQ(files->shape.n_kv_heads, 3);
  EXPECT_EQ(files->shape.head_dim, 64);
  EXPECT_EQ(files->shape.vocab, 49152);
  EXPECT_TRUE(files->shape.tied_embeddings);
  auto tokenizer = OpenTokenizer(path);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 49152);
}

TEST(ModelDir, RealQwen25CoderGguf) {
  std::string path = RealModel("qwen2.5-coder-0.5b.gguf");
  if (path.empty()) GTEST_SKIP() << "needs $SLUICE_MODELS_DIR/qwen2.5-coder-0.5b.gguf";
  auto files = OpenModel(path);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->shape.n_layers, 24);
  EXPECT_EQ(files->shape.n_q_heads, 14);
  EXPECT_EQ(files->shape.n_kv_heads, 2);
  EXPECT_TRUE(files->shape.qkv_bias);
  EXPECT_FALSE(files->shape.tied_embeddings);
  auto tokenizer = OpenTokenizer(path);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->chat_template(), HasSubstr("tools"));
}

}  // namespace
}  // namespace sluice
