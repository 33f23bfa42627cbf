#include "common/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(HfConfig, ReadsTheBundledModel) {
  const std::string dir = SLUICE_SOURCE_DIR "/models/needle-14m/";
  auto shape = ParseHfConfig(ReadFile(dir + "config.json"), ReadFile(dir + "generation_config.json"));
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->family, "llama");
  EXPECT_EQ(shape->n_layers, 8);
  EXPECT_EQ(shape->hidden, 384);
  EXPECT_EQ(shape->intermediate, 1024);
  EXPECT_EQ(shape->n_q_heads, 6);
  EXPECT_EQ(shape->n_kv_heads, 2);
  EXPECT_EQ(shape->head_dim, 64);
  EXPECT_EQ(shape->vocab, 4096);
  EXPECT_EQ(shape->context, 32768);
  EXPECT_FLOAT_EQ(shape->rms_eps, 1e-5f);
  EXPECT_TRUE(shape->tied_embeddings);
  EXPECT_FALSE(shape->qkv_bias);
  EXPECT_FALSE(shape->qk_norm);
  ASSERT_EQ(shape->inv_freq.size(), 32u);
  EXPECT_EQ(shape->inv_freq[0], 1.0f);
  EXPECT_NEAR(shape->inv_freq[1], std::pow(500000.0, -2.0 / 64), 1e-7);
  EXPECT_EQ(shape->rope_attention_scale, 1.0f);
  EXPECT_EQ(shape->sliding_window, std::vector<int>(8, 0));
  EXPECT_THAT(shape->eos_ids, ElementsAre(4095, 4093));
  EXPECT_FALSE(shape->bos_id.has_value());
  EXPECT_EQ(shape->tsp_layer, 5);
}

}  // namespace
}  // namespace sluice
