#include "common/model/model_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "common/model/model_config.h"
#include "common/weights/gguf.h"
#include "common/weights/safetensors.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

const std::string kModels = SLUICE_SOURCE_DIR "/tests/golden/models/";

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

ModelShape TinyShape(const std::string& name) {
  auto shape = ParseHfConfig(ReadFile(kModels + name + "/config.json"), "");
  EXPECT_TRUE(shape.ok()) << shape.status();
  return *shape;
}

std::shared_ptr<const WeightFile> TinyFile(const std::string& name) {
  auto file = SafetensorsFile::Open(kModels + name + "/model.safetensors");
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

TEST(ModelWeights, EveryTinyModelHasExactlyTheWeightsItsConfigAsksFor) {
  for (const char* name :
       {"llama-yarn", "llama3", "qwen2-bias", "qwen2-window", "qwen3", "mistral-window", "ministral-mixed"}) {
    auto weights = ModelWeights::Create(TinyFile(name), TinyShape(name), WeightLayout::kHuggingFace);
    EXPECT_TRUE(weights.ok()) << weights.status();
  }
  auto sharded = SafetensorsFile::OpenSharded(kModels + "nemo-sharded/model.safetensors.index.json");
  ASSERT_TRUE(sharded.ok()) << sharded.status();
  auto weights =
      ModelWeights::Create(*std::move(sharded), TinyShape("nemo-sharded"), WeightLayout::kHuggingFace);
  EXPECT_TRUE(weights.ok()) << weights.status();
}

TEST(ModelWeights, GgufGivesTheSameShapeAndNumbersAsSafetensors) {
  ModelShape shape = TinyShape("llama3");
  auto hf = ModelWeights::Create(TinyFile("llama3"), shape, WeightLayout::kHuggingFace);
  ASSERT_TRUE(hf.ok()) << hf.status();
  auto file = GgufFile::Open(kModels + "llama3/model.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  auto gguf_shape = ShapeFromGguf(**file);
  ASSERT_TRUE(gguf_shape.ok()) << gguf_shape.status();
  EXPECT_EQ(gguf_shape->name, "tiny llama3");
  EXPECT_EQ(gguf_shape->head_dim, shape.head_dim);
  EXPECT_EQ(gguf_shape->vocab, shape.vocab);
  EXPECT_EQ(gguf_shape->context, shape.context);
  EXPECT_EQ(gguf_shape->rms_eps, shape.rms_eps);
  EXPECT_EQ(gguf_shape->tied_embeddings, shape.tied_embeddings);
  EXPECT_EQ(gguf_shape->eos_ids, shape.eos_ids);
  EXPECT_EQ(gguf_shape->bos_id, shape.bos_id);
  ASSERT_EQ(gguf_shape->inv_freq.size(), shape.inv_freq.size());
  for (size_t i = 0; i < shape.inv_freq.size(); ++i)
    EXPECT_NEAR(gguf_shape->inv_freq[i], shape.inv_freq[i], 3e-7f * shape.inv_freq[i]) << i;

  auto gguf = ModelWeights::Create(*std::move(file), *gguf_shape, WeightLayout::kGgufInterleaved);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  for (WeightId id : WeightsOf(shape)) {
    auto a = hf->ReadAll(id), b = gguf->ReadAll(id);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(*a, *b) << TensorName(WeightLayout::kHuggingFace, id);
  }
  // A range that starts and ends inside heads.
  std::vector<float> all = *hf->ReadAll({Weight::kQ, 1}), some(5 * shape.hidden);
  ASSERT_TRUE(gguf->Read({Weight::kQ, 1}, 13, 18, absl::MakeSpan(some)).ok());
  EXPECT_EQ(some, std::vector<float>(all.begin() + 13 * shape.hidden, all.begin() + 18 * shape.hidden));
  EXPECT_FALSE(gguf->Read({Weight::kQ, 1}, 30, 35, absl::MakeSpan(some)).ok());
  EXPECT_FALSE(gguf->Read({Weight::kQ, 1}, 13, 17, absl::MakeSpan(some)).ok());
  EXPECT_FALSE(gguf->Read({Weight::kQ, 3}, 0, 5, absl::MakeSpan(some)).ok());
}

// Rows one rank after another, or columns side by side: what two and four ranks read is what one reads.
TEST(ModelWeights, TheSharesOfRanksMakeUpTheWhole) {
  const ModelShape shape = TinyShape("qwen2-heads");
  auto whole = ModelWeights::Create(TinyFile("qwen2-heads"), shape, WeightLayout::kHuggingFace);
  ASSERT_TRUE(whole.ok()) << whole.status();
  for (int n : {2, 4}) {
    for (WeightId id : WeightsOf(shape)) {
      SCOPED_TRACE(TensorName(WeightLayout::kHuggingFace, id));
      const std::vector<float> all = *whole->ReadAll(id);
      const std::vector<int64_t> dims = WeightDims(shape, id.weight),
                                 own = WeightDims(shape.OfRank(n), id.weight);
      const size_t width = dims.back(), own_width = own.back();
      std::vector<float> joined(all.size());
      for (int rank = 0; rank < n; ++rank) {
        const std::vector<float> share = *whole->OfRank(rank, n).ReadAll(id);
        const size_t rows = share.size() / own_width;
        const size_t row = rows == all.size() / width ? 0 : rank * rows;
        const size_t column = own_width == width ? 0 : rank * own_width;
        for (size_t i = 0; i < share.size(); ++i)
          joined[(row + i / own_width) * width + column + i % own_width] = share[i];
      }
      EXPECT_EQ(joined, all);
    }
    std::vector<float> row(shape.hidden);
    const int64_t past = shape.intermediate / n;
    EXPECT_FALSE(whole->OfRank(0, n).Read({Weight::kUp}, past, past + 1, absl::MakeSpan(row)).ok());
  }
}

TEST(ModelWeights, TiedHeadReadsTheEmbedding) {
  auto weights = ModelWeights::Create(TinyFile("qwen3"), TinyShape("qwen3"), WeightLayout::kHuggingFace);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(*weights->ReadAll({Weight::kLmHead}), *weights->ReadAll({Weight::kEmbedding}));
}

TEST(ModelWeights, RefusesMissingMisshapenAndUnknownTensors) {
  ModelShape shape = TinyShape("llama-yarn");
  auto create = [](const char* model, const ModelShape& s) {
    return ModelWeights::Create(TinyFile(model), s, WeightLayout::kHuggingFace).status();
  };
  ModelShape untied = shape;
  untied.tied_embeddings = false;
  EXPECT_THAT(create("llama-yarn", untied).message(), HasSubstr("lm_head.weight: is missing"));
  ModelShape wide = shape;
  wide.intermediate = 64;
  EXPECT_THAT(create("llama-yarn", wide).message(), HasSubstr("mlp.gate_proj.weight: has shape [48, 32]"));
  ModelShape shallow = shape;
  shallow.n_layers = 2;
  EXPECT_THAT(create("llama-yarn", shallow).message(), HasSubstr("tensor model.layers.2."));
  ModelShape no_bias = TinyShape("qwen2-bias");
  no_bias.qkv_bias = false;
  EXPECT_THAT(create("qwen2-bias", no_bias).message(), HasSubstr("bias: is unknown"));
  ModelShape tied = TinyShape("llama3");
  tied.tied_embeddings = true;
  EXPECT_THAT(create("llama3", tied).message(), HasSubstr("lm_head.weight: differs from the embedding"));
}

}  // namespace
}  // namespace sluice
