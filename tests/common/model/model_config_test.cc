#include "common/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace sluice {
namespace {

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

// Relative distance in units of 2^-23: two roundings of powf and one division may differ.
void ExpectFrequencies(const std::vector<float>& got, const Json& wanted, const std::string& name) {
  ASSERT_EQ(got.size(), wanted.size()) << name;
  for (size_t i = 0; i < got.size(); ++i) {
    auto value = wanted[i].get<float>();
    EXPECT_NEAR(got[i], value, 3 * 0x1p-23f * value) << name << " " << i;
  }
}

TEST(HfConfig, ReadsRealConfigurationsAsTransformersDoes) {
  const std::string dir = SLUICE_SOURCE_DIR "/tests/golden/configs/";
  Json shapes = Json::parse(ReadFile(dir + "shapes.json"));
  ASSERT_EQ(shapes.size(), 11u);
  for (const auto& [name, wanted] : shapes.items()) {
    auto shape = ParseHfConfig(ReadFile(dir + name + ".json"), "");
    ASSERT_TRUE(shape.ok()) << name << ": " << shape.status();
    EXPECT_EQ(shape->family, wanted["family"]) << name;
    EXPECT_EQ(shape->n_layers, wanted["n_layers"]) << name;
    EXPECT_EQ(shape->hidden, wanted["hidden"]) << name;
    EXPECT_EQ(shape->intermediate, wanted["intermediate"]) << name;
    EXPECT_EQ(shape->n_q_heads, wanted["n_q_heads"]) << name;
    EXPECT_EQ(shape->n_kv_heads, wanted["n_kv_heads"]) << name;
    EXPECT_EQ(shape->head_dim, wanted["head_dim"]) << name;
    EXPECT_EQ(shape->vocab, wanted["vocab"]) << name;
    EXPECT_EQ(shape->context, wanted["context"]) << name;
    EXPECT_EQ(shape->rms_eps, wanted["rms_eps"].get<float>()) << name;
    EXPECT_EQ(shape->tied_embeddings, wanted["tied_embeddings"]) << name;
    EXPECT_EQ(shape->sliding_window, wanted["sliding_window"].get<std::vector<int>>()) << name;
    EXPECT_EQ(shape->eos_ids, wanted["eos_ids"].get<std::vector<int32_t>>()) << name;
    EXPECT_EQ(shape->bos_id, wanted["bos_id"].get<int32_t>()) << name;
    EXPECT_FLOAT_EQ(shape->rope_attention_scale, wanted["rope_attention_scale"].get<float>()) << name;
    ExpectFrequencies(shape->inv_freq, wanted["inv_freq"], name);
    EXPECT_EQ(shape->qkv_bias, shape->family == "qwen2") << name;
    EXPECT_EQ(shape->qk_norm, shape->family == "qwen3") << name;
  }
}

TEST(HfConfig, RotaryOfTheTinyModels) {
  for (std::string name : {"llama-yarn", "llama3", "qwen2-bias", "qwen2-window", "qwen3", "mistral-window",
                           "ministral-mixed", "nemo-sharded"}) {
    const std::string dir = SLUICE_SOURCE_DIR "/tests/golden/models/" + name;
    Json golden = Json::parse(ReadFile(dir + "/golden.json"));
    auto shape = ParseHfConfig(ReadFile(dir + "/config.json"), "");
    ASSERT_TRUE(shape.ok()) << name << ": " << shape.status();
    ExpectFrequencies(shape->inv_freq, golden["inv_freq"], name);
    EXPECT_FLOAT_EQ(shape->rope_attention_scale, golden["rope_attention_scale"].get<float>()) << name;
  }
}

TEST(HfConfig, KnowsThePropagationLayerByGeometry) {
  auto tsp = [](const std::string& name) {
    return ParseHfConfig(ReadFile(SLUICE_SOURCE_DIR "/tests/golden/configs/" + name + ".json"), "")
        ->tsp_layer;
  };
  EXPECT_EQ(tsp("llama-3.1-8b"), 15);
  EXPECT_EQ(tsp("mistral-nemo"), 19);
  EXPECT_EQ(tsp("ministral-8b"), 17);
  EXPECT_EQ(tsp("llama-2-7b"), std::nullopt);
}

// A small valid configuration of a family, with fields replaced; null removes.
Json Config(const std::string& type, const Json& changes = Json::object()) {
  Json config = {{"model_type", type},       {"vocab_size", 100},      {"hidden_size", 64},
                 {"intermediate_size", 128}, {"num_hidden_layers", 3}, {"num_attention_heads", 4},
                 {"num_key_value_heads", 2}, {"head_dim", 16},         {"max_position_embeddings", 512},
                 {"rms_norm_eps", 1e-5}};
  for (const auto& [key, value] : changes.items()) {
    if (value.is_null())
      config.erase(key);
    else
      config[key] = value;
  }
  return config;
}

void ExpectRefused(const Json& config, const std::string& field, const std::string& what = "") {
  absl::Status status = ParseHfConfig(config.dump(), "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field << ": " << config;
  EXPECT_THAT(std::string(status.message()), HasSubstr("config.json: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(field + ": "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(what));
}

TEST(HfConfig, RefusesFieldsItDoesNotKnowByName) {
  ExpectRefused(Config("llama", {{"logit_scale", 0.5}}), "logit_scale", "unknown field");
  ExpectRefused(Config("llama", {{"quantization_config", Json::object()}}), "quantization_config");
  ExpectRefused(Config("llama", {{"sliding_window", 16}}), "sliding_window");
  ExpectRefused(Config("llama", {{"layer_types", {"full_attention"}}}), "layer_types");
  ExpectRefused(Config("mistral", {{"use_sliding_window", true}}), "use_sliding_window");
  ExpectRefused(Config("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}, {"beta_fast", 1}}}}),
                "rope_scaling: beta_fast", "unknown field");
}

TEST(HfConfig, RefusesWhatWouldChangeTheResults) {
  ExpectRefused(Config("gemma"), "model_type");
  ExpectRefused(Config("llama", {{"model_type", nullptr}}), "model_type");
  ExpectRefused(Config("llama", {{"architectures", {"LlamaForSequenceClassification"}}}), "architectures");
  ExpectRefused(Config("llama", {{"hidden_act", "gelu"}}), "hidden_act");
  ExpectRefused(Config("llama", {{"attention_bias", true}}), "attention_bias");
  ExpectRefused(Config("qwen3", {{"attention_bias", true}}), "attention_bias");
  ExpectRefused(Config("llama", {{"mlp_bias", true}}), "mlp_bias");
  ExpectRefused(Config("llama", {{"pretraining_tp", 2}}), "pretraining_tp");
  ExpectRefused(Config("llama", {{"partial_rotary_factor", 0.5}}), "partial_rotary_factor");
  ExpectRefused(Config("llama", {{"rope_interleaved", true}}), "rope_interleaved");
  ExpectRefused(Config("llama", {{"rope_parameters", {{"partial_rotary_factor", 0.25}}}}),
                "partial_rotary_factor");
  ExpectRefused(Config("llama", {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}}), "rope_type",
                "dynamic");
  ExpectRefused(Config("llama", {{"rope_scaling", {{"type", "longrope"}, {"factor", 2.0}}}}), "rope_type");
  ExpectRefused(Config("llama", {{"rope_scaling", {{"factor", 2.0}}}}), "factor", "unknown field");
  ExpectRefused(Config("llama", {{"rope_scaling", {{"type", "linear"}}}}), "factor", "missing");
  ExpectRefused(Config("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 0.5}}}}), "factor",
                "below 1");
  ExpectRefused(Config("llama", {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}}}}),
                "low_freq_factor");
  ExpectRefused(Config("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}},
                                 {"rope_parameters", {{"rope_type", "default"}}}}),
                "rope_parameters");
  ExpectRefused(Config("llama", {{"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}}}),
                "rope_parameters: full_attention");
  ExpectRefused(Config("ministral", {{"layer_types", {"full_attention"}}}), "layer_types",
                "1 entries for 3 layers");
  ExpectRefused(
      Config("ministral", {{"layer_types", {"full_attention", "full_attention", "chunked_attention"}}}),
      "layer_types", "chunked_attention");
  Json windowless =
      Config("ministral", {{"layer_types", {"full_attention", "full_attention", "sliding_attention"}}});
  windowless["sliding_window"] = nullptr;
  ExpectRefused(windowless, "layer_types", "sliding_window is off");
}

TEST(HfConfig, RefusesNonsenseNumbers) {
  for (const char* field : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                            "num_attention_heads", "max_position_embeddings", "rms_norm_eps"})
    ExpectRefused(Config("llama", {{field, nullptr}}), field, "missing");
  for (const char* field :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const Json& value : {Json(0), Json(-1), Json(1e9), Json(2000000000), Json(18446744073709551615u),
                              Json("4"), Json(1.5), Json(true)})
      ExpectRefused(Config("llama", {{field, value}}), field);
  }
  ExpectRefused(Config("llama", {{"num_key_value_heads", 3}}), "num_key_value_heads", "does not divide");
  ExpectRefused(Config("llama", {{"head_dim", 15}}), "head_dim", "odd");
  ExpectRefused(Config("llama", {{"head_dim", nullptr}, {"hidden_size", 66}}), "num_attention_heads");
  ExpectRefused(Config("llama", {{"head_dim", nullptr}, {"hidden_size", 65536}}), "num_attention_heads");
  ExpectRefused(Config("llama", {{"rms_norm_eps", 0}}), "rms_norm_eps");
  ExpectRefused(Config("llama", {{"rms_norm_eps", 2}}), "rms_norm_eps");
  ExpectRefused(Config("llama", {{"rope_theta", 0.5}}), "rope_theta");
  ExpectRefused(Config("llama", {{"rope_theta", -1}}), "rope_theta");
  ExpectRefused(Config("llama", {{"eos_token_id", 100}}), "eos_token_id");
  ExpectRefused(Config("llama", {{"eos_token_id", {1, -1}}}), "eos_token_id");
  ExpectRefused(Config("llama", {{"tie_word_embeddings", 1}}), "tie_word_embeddings");
  ExpectRefused(Config("mistral", {{"sliding_window", 0}}), "sliding_window");
  EXPECT_EQ(ParseHfConfig("[1]", "").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseHfConfig("", "").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseHfConfig(std::string(100000, '['), "").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ParseHfConfig(Config("llama").dump(), "{").status().message()),
              HasSubstr("generation_config.json"));
}

TEST(HfConfig, SilenceMeansWhatTheFamilyMeans) {
  EXPECT_EQ(ParseHfConfig(Config("mistral").dump(), "")->sliding_window, std::vector<int>(3, 4096));
  EXPECT_EQ(ParseHfConfig(Config("qwen3", {{"head_dim", nullptr}}).dump(), "")->head_dim, 128);
  EXPECT_EQ(ParseHfConfig(Config("llama", {{"head_dim", nullptr}}).dump(), "")->head_dim, 16);
  EXPECT_EQ(ParseHfConfig(Config("llama", {{"num_key_value_heads", nullptr}}).dump(), "")->n_kv_heads, 4);
  EXPECT_FALSE(ParseHfConfig(Config("llama").dump(), "")->tied_embeddings);
  EXPECT_THAT(
      ParseHfConfig(
          Config("qwen2", {{"use_sliding_window", true}, {"sliding_window", 9}, {"max_window_layers", 2}})
              .dump(),
          "")
          ->sliding_window,
      ElementsAre(0, 0, 9));
  EXPECT_THAT(
      ParseHfConfig(
          Config("mistral", {{"sliding_window", 7},
                             {"layer_types", {"full_attention", "sliding_attention", "full_attention"}}})
              .dump(),
          "")
          ->sliding_window,
      ElementsAre(0, 7, 0));
}

TEST(HfConfig, GenerationConfigDecidesTheEndTokens) {
  Json config = Config("llama", {{"eos_token_id", 7}, {"bos_token_id", 1}});
  EXPECT_THAT(ParseHfConfig(config.dump(), "")->eos_ids, ElementsAre(7));
  EXPECT_THAT(ParseHfConfig(config.dump(), R"({"eos_token_id":[8,9],"temperature":0.6})")->eos_ids,
              ElementsAre(8, 9));
  EXPECT_THAT(ParseHfConfig(config.dump(), R"({"temperature":0.6})")->eos_ids, ElementsAre(7));
  EXPECT_EQ(ParseHfConfig(config.dump(), "")->bos_id, 1);
}

TEST(HfConfig, AlteredTextDoesNotCrash) {
  const std::string text = ReadFile(SLUICE_SOURCE_DIR "/tests/golden/configs/yarn-all-fields.json");
  std::mt19937 random(3);
  int refused = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string copy = text;
    for (int n = 1 + round % 3; n > 0; --n)
      copy[random() % copy.size()] = "0123456789-.e\"{}[],:a \xff"[random() % 22];
    auto shape = ParseHfConfig(copy, "");
    if (!shape.ok()) {
      ++refused;
      continue;
    }
    EXPECT_EQ(shape->inv_freq.size(), static_cast<size_t>(shape->head_dim / 2));
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace sluice
