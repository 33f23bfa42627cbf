#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "common/model/model_config.h"
#include "common/model/model_weights.h"
#include "common/weights/gguf.h"
#include "tests/support/gguf_bytes.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Metadata of a small model; `more` adds keys. The embedding is [10, 64].
absl::StatusOr<ModelShape> Shape(const std::string& architecture, const std::function<void(GgufBytes&)>& more,
                                 uint32_t q_heads = 4, uint32_t kv_heads = 2) {
  GgufBytes bytes;
  bytes.Text("general.architecture", architecture)
      .U32(architecture + ".block_count", 2)
      .U32(architecture + ".context_length", 4096)
      .U32(architecture + ".embedding_length", 64)
      .U32(architecture + ".feed_forward_length", 96)
      .U32(architecture + ".attention.head_count", q_heads)
      .U32(architecture + ".attention.head_count_kv", kv_heads)
      .F32(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f)
      .Tensor("token_embd.weight", {64, 10}, 0, 0);
  more(bytes);
  TempDir dir;
  auto file = GgufFile::Open(dir.Write("m.gguf", bytes.Finish(std::string(64 * 10 * 4 + 32, '\0'))));
  if (!file.ok()) return file.status();
  return ShapeFromGguf(**file);
}

void Nothing(GgufBytes&) {}

TEST(GgufConfig, ReadsAPlainModel) {
  auto shape = Shape("qwen2", [](GgufBytes& b) {
    b.F32("qwen2.rope.freq_base", 1e6f)
        .U32("tokenizer.ggml.bos_token_id", 3)
        .U32("tokenizer.ggml.eos_token_id", 5);
    b.U32("tokenizer.ggml.eot_token_id", 6).U32("tokenizer.ggml.eom_token_id", 5).U32("qwen2.vocab_size", 10);
  });
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->family, "qwen2");
  EXPECT_EQ(shape->head_dim, 16);
  EXPECT_EQ(shape->vocab, 10);
  EXPECT_TRUE(shape->qkv_bias);
  EXPECT_FALSE(shape->qk_norm);
  EXPECT_TRUE(shape->tied_embeddings);
  EXPECT_THAT(shape->eos_ids, ElementsAre(5, 6));
  EXPECT_EQ(shape->bos_id, 3);
  EXPECT_THAT(shape->sliding_window, ElementsAre(0, 0));
  EXPECT_NEAR(shape->inv_freq[1], std::pow(1e6, -1.0 / 8), 1e-7);
}

TEST(GgufConfig, KeyLengthIsTheHeadDimension) {
  auto shape = Shape("qwen3", [](GgufBytes& b) {
    b.U32("qwen3.attention.key_length", 32).U32("qwen3.attention.value_length", 32);
  });
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->head_dim, 32);
  EXPECT_TRUE(shape->qk_norm);
}

TEST(GgufConfig, YarnAndLinearScaling) {
  auto yarn = Shape("llama", [](GgufBytes& b) {
    b.Text("llama.rope.scaling.type", "yarn").F32("llama.rope.scaling.factor", 4);
    b.U32("llama.rope.scaling.original_context_length", 1024);
  });
  ASSERT_TRUE(yarn.ok()) << yarn.status();
  EXPECT_FLOAT_EQ(yarn->rope_attention_scale, 0.1f * std::log(4.0f) + 1);
  // The same rule as the Hugging Face spelling of it.
  auto hf = ParseHfConfig(
      R"({"model_type":"llama","vocab_size":10,"hidden_size":64,"intermediate_size":96,"num_hidden_layers":2,
          "num_attention_heads":4,"max_position_embeddings":4096,"rms_norm_eps":1e-5,
          "rope_scaling":{"type":"yarn","factor":4,"original_max_position_embeddings":1024}})",
      "");
  ASSERT_TRUE(hf.ok()) << hf.status();
  EXPECT_EQ(yarn->inv_freq, hf->inv_freq);
  auto linear = Shape("llama", [](GgufBytes& b) {
    b.Text("llama.rope.scaling.type", "linear").F32("llama.rope.scaling.factor", 4);
  });
  ASSERT_TRUE(linear.ok()) << linear.status();
  EXPECT_EQ(linear->inv_freq[0], 0.25f);
}

TEST(GgufConfig, RefusesByName) {
  auto expect = [](const absl::StatusOr<ModelShape>& shape, const std::string& what) {
    EXPECT_EQ(shape.status().code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(shape.status().message()), HasSubstr("m.gguf: "));
    EXPECT_THAT(std::string(shape.status().message()), HasSubstr(what));
  };
  expect(Shape("gemma", Nothing), "general.architecture: 'gemma'");
  expect(Shape("llama", [](GgufBytes& b) { b.U32("llama.expert_count", 8); }),
         "llama.expert_count: unknown key");
  expect(Shape("llama", [](GgufBytes& b) { b.U32("split.count", 3); }), "split.count: one of 3 parts");
  expect(Shape("llama", [](GgufBytes& b) { b.U32("llama.attention.sliding_window", 8); }), "sliding_window");
  expect(Shape("llama", [](GgufBytes& b) { b.U32("llama.rope.dimension_count", 8); }),
         "rope.dimension_count");
  expect(Shape("llama", [](GgufBytes& b) { b.U32("llama.attention.value_length", 8); }), "value_length");
  expect(Shape("llama", [](GgufBytes& b) { b.U32("llama.attention.key_length", 15); }), "odd");
  expect(Shape("llama", [](GgufBytes& b) { b.Text("llama.rope.scaling.type", "longrope"); }), "longrope");
  expect(Shape("llama", [](GgufBytes& b) { b.F32("llama.rope.freq_base", NAN); }), "rope.freq_base");
  expect(Shape("llama", [](GgufBytes& b) { b.U32("tokenizer.ggml.eos_token_id", 10); }),
         "eos_token_id: 10 is outside");
  expect(Shape("llama", [](GgufBytes& b) { b.Tensor("rope_freqs.weight", {8}, 0, 2560); }),
         "rope_freqs.weight: entry 0 is not a positive");
  expect(Shape("llama", [](GgufBytes& b) { b.Tensor("rope_freqs.weight", {4}, 0, 2560); }),
         "rope_freqs.weight: is not [8]");
  expect(Shape("llama", Nothing, 0), "llama.attention.head_count: 0 is outside");
  expect(Shape("llama", Nothing, 5), "does not divide embedding_length");
  expect(Shape("llama", Nothing, 4, 3), "llama.attention.head_count_kv");
  expect(Shape("llama", Nothing, 4, 0), "llama.attention.head_count_kv: 0 is outside");
}

TEST(GgufConfig, AlteredFilesDoNotCrash) {
  std::ifstream in(SLUICE_SOURCE_DIR "/tests/golden/models/llama3/model.gguf", std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(in), {});
  TempDir dir;
  std::string path = dir.Write("altered.gguf", bytes);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  auto put = [&](size_t at, char value) {
    file.seekp(static_cast<std::streamoff>(at));
    file.put(value);
  };
  std::mt19937 random(5);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    size_t at = random() % 2800;
    put(at, static_cast<char>(random()));
    file.flush();
    auto opened = GgufFile::Open(path);
    absl::Status status = opened.status();
    if (opened.ok()) {
      auto shape = ShapeFromGguf(**opened);
      status = shape.status();
      if (shape.ok())
        status = ModelWeights::Create(*std::move(opened), *shape, WeightLayout::kGgufInterleaved).status();
    }
    if (!status.ok()) ++refused;
    put(at, bytes[at]);
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace sluice
