#include "common/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/base/status.h"
#include "common/model/model_dir.h"
#include "tests/support/test_model.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

// Logits of every token: the whole forward pass with nothing but the model's four steps and attention.
std::vector<std::vector<float>> Forward(const Model& model, const std::vector<int32_t>& ids) {
  const ModelShape& shape = model.shape();
  const KvShape& kv = model.kv_shape();
  const auto n = static_cast<int64_t>(ids.size());
  std::unique_ptr<Ops> ops = model.backend()->NewOps();
  Workspace workspace(model.backend());
  std::vector<int32_t> places(n);
  for (int64_t i = 0; i < n; ++i) places[i] = static_cast<int32_t>(i);
  auto take = [&](DType dtype, std::initializer_list<int64_t> dims) { return *workspace.Take(dtype, dims); };

  const TensorView device_ids = take(DType::kI32, {n}), positions = take(DType::kI32, {n});
  const TensorView hidden = take(DType::kF32, {n, shape.hidden});
  ops->CopyIn(ids.data(), device_ids);
  ops->CopyIn(places.data(), positions);
  model.Embed(device_ids, hidden, *ops);
  TensorView shared = positions;
  shared.rank = 2;
  shared.shape = {kv.n_kv_heads, n, 0, 0};
  shared.stride = {0, 1, 0, 0};
  for (int l = 0; l < shape.n_layers; ++l) {
    auto qkv = model.Qkv(LayerId(l), hidden, positions, *ops, workspace);
    EXPECT_TRUE(qkv.ok()) << qkv.status();
    const TensorView k = take(kv.dtype, {kv.n_kv_heads, n, kv.head_dim});
    const TensorView v = take(kv.dtype, {kv.n_kv_heads, n, kv.head_dim});
    const TensorView out = take(DType::kF32, {n, kv.n_q_heads, kv.head_dim});
    ops->StoreKv(qkv->k, qkv->v, k, v);
    AttentionArgs args;
    args.q = qkv->q;
    args.k = k;
    args.v = v;
    args.out = out;
    args.positions = shared;
    args.sliding_window = shape.sliding_window[l];
    ops->Attention({args});
    EXPECT_TRUE(model.Finish(LayerId(l), out, hidden, *ops, workspace).ok());
  }
  const TensorView logits = *workspace.Take(DType::kF32, {hidden.shape[0], model.shape().vocab});
  SLUICE_CHECK(model.Logits(hidden, logits, *ops, workspace).ok());
  std::vector<std::vector<float>> result(n, std::vector<float>(shape.vocab));
  for (int64_t i = 0; i < n; ++i) ops->CopyOut(logits.At(i), result[i].data());
  EXPECT_TRUE(ops->Sync().ok());
  return result;
}

nlohmann::json Json(const std::string& path) { return nlohmann::json::parse(ReadFile(path)); }

class Golden : public ::testing::TestWithParam<CpuIsa> {};

// golden.json: Transformers in f32 on the bf16 weights.
TEST_P(Golden, LogitsOfTheBundledModel) {
  const nlohmann::json golden = Json(SourcePath("models/needle-14m/golden.json"));
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const float tolerance = LogitTolerance(dtype, GetParam());
    for (const auto& prompt : golden["prompts"]) {
      const std::vector<float> logits = Forward(NeedleModel(dtype, GetParam()), prompt["ids"]).back();
      for (size_t i = 0; i < 5; ++i) {
        EXPECT_NEAR(logits[prompt["top5_ids"][i]], prompt["top5_logits"][i].get<float>(), tolerance)
            << prompt["name"] << (dtype == DType::kF32 ? ", f32 KV" : ", bf16 KV");
      }
    }
  }
}

// Of a zero hidden state nothing but the rotated bias is left: over all positions it must cancel.
TEST(CentredKeys, TheMeanOfTheRotatedBiasIsGone) {
  const Model& model = TestModel(SourcePath("tests/golden/models/qwen2-bias"), DType::kF32);
  const ModelShape& shape = model.shape();
  const int64_t n = shape.context;
  std::unique_ptr<Ops> ops = model.backend()->NewOps();
  Workspace workspace(model.backend());
  const TensorView hidden = *workspace.Take(DType::kF32, {n, shape.hidden});
  const TensorView positions = *workspace.Take(DType::kI32, {n});
  const std::vector<float> zeros(n * shape.hidden);
  std::vector<int32_t> places(n);
  std::iota(places.begin(), places.end(), 0);
  ops->CopyIn(zeros.data(), hidden);
  ops->CopyIn(places.data(), positions);
  auto qkv = model.Qkv(LayerId(0), hidden, positions, *ops, workspace);
  ASSERT_TRUE(qkv.ok()) << qkv.status();
  const TensorView k = *workspace.Take(DType::kF32, {n, shape.n_kv_heads, shape.head_dim});
  ops->Copy(qkv->k, k);
  std::vector<float> keys(n * shape.n_kv_heads * shape.head_dim);
  ops->CopyOut(k, keys.data());
  ASSERT_TRUE(ops->Sync().ok());
  const int64_t width = shape.n_kv_heads * shape.head_dim;
  float largest = 0;
  for (int64_t i = 0; i < width; ++i) {
    double sum = 0;
    for (int64_t p = 0; p < n; ++p) {
      sum += keys[p * width + i];
      largest = std::max(largest, std::abs(keys[p * width + i]));
    }
    EXPECT_NEAR(sum / n, 0, 1e-5) << "element " << i;
  }
  EXPECT_GT(largest, 0.01);  // fast pairs keep their bias
}

// Random models, one for each part of the architecture (tests/golden/models/README.md).
TEST_P(Golden, LogitsOfTheTinyModels) {
  for (const char* name : {"llama-yarn", "llama3", "llama3/model.gguf", "qwen2-bias", "qwen2-window", "qwen3",
                           "mistral-window", "ministral-mixed", "nemo-sharded", "qwen2-heads"}) {
    SCOPED_TRACE(name);
    const std::string path = SourcePath("tests/golden/models/") + name;
    const std::string folder = path.substr(0, path.find("/model.gguf"));
    const nlohmann::json golden = Json(folder + "/golden.json");
    const std::vector<int32_t> ids = golden["prompt_ids"];
    const std::vector<std::vector<float>> expected = golden["prefill_logits"];
    const std::vector<std::vector<float>> logits = Forward(TestModel(path, DType::kF32, GetParam()), ids);
    float worst = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      for (size_t j = 0; j < expected[i].size(); ++j)
        worst = std::max(worst, std::abs(logits[i][j] - expected[i][j]));
    }
    EXPECT_LE(worst, LogitTolerance(DType::kF32, GetParam()));
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Golden, ::testing::ValuesIn(SupportedCpuIsas()), [](const auto& info) {
  return "Isa" + std::to_string(static_cast<int>(info.param));
});

// A backend with as much free memory as the test says.
class SmallBackend final : public Backend {
 public:
  SmallBackend(Backend* real, DeviceMemory memory) : real_(real), memory_(memory) {}
  std::string description() const override { return "a small device"; }
  DeviceMemory memory() const override { return memory_; }
  absl::StatusOr<Buffer> Allocate(size_t bytes) override { return real_->Allocate(bytes); }
  absl::StatusOr<Buffer> AllocateExposed(size_t bytes) override { return Allocate(bytes); }
  bool is_gpu() const override { return false; }
  void Enter() override {}
  absl::Status Drain() override { return absl::OkStatus(); }
  absl::StatusOr<Buffer> MapHost(void* data, size_t bytes) override { return real_->MapHost(data, bytes); }
  absl::StatusOr<std::unique_ptr<Matrix>> PackMatrix(int64_t rows, int64_t cols,
                                                     const ReadRows& read) override {
    return real_->PackMatrix(rows, cols, read);
  }
  std::unique_ptr<Ops> NewOps() override { return real_->NewOps(); }
  DType product_input() const override { return real_->product_input(); }
  int64_t rows_at_once() const override { return real_->rows_at_once(); }
  absl::Duration waiting() const override { return real_->waiting(); }

 private:
  Backend* const real_;
  const DeviceMemory memory_;
};

absl::StatusOr<std::unique_ptr<Model>> LoadNeedleOn(Backend* backend, const LoadOptions& options = {}) {
  auto files = OpenModel(SourcePath("models/needle-14m"));
  SLUICE_CHECK(files.ok());
  return Model::Load(files->shape, files->weights, backend, options);
}

TEST(ModelLoad, SaysTheArithmeticWhenItDoesNotFit) {
  auto cpu = *NewCpuBackend({});
  SmallBackend small(cpu.get(), {.total_bytes = size_t{64} << 20, .available_bytes = size_t{30} << 20});
  const absl::Status status = LoadNeedleOn(&small).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  // 14,162,304 weights at 2 bytes; 32,768 positions of 64 f32.
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("weights 0.03 GiB + rotary table of 32768 positions 0.01 GiB = 0.03 GiB, available "
                        "0.03 GiB of 0.06 GiB on a small device"));
}

TEST(ModelLoad, CountsItsBytesAndReportsProgress) {
  auto cpu = *NewCpuBackend({});
  std::vector<double> progress;
  auto model = LoadNeedleOn(
      cpu.get(), {.kv_dtype = DType::kBF16, .progress = [&](double done) { progress.push_back(done); }});
  ASSERT_TRUE(model.ok()) << model.status();
  constexpr size_t kNormWeights = (2 * 8 + 1) * 384;
  EXPECT_EQ((*model)->weight_bytes(), 2 * (14162304 - kNormWeights) + 4 * kNormWeights + 4 * 32768 * 64);
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
  ASSERT_GT(progress.size(), 8u);
  EXPECT_DOUBLE_EQ(progress.back(), 1);
}

TEST(ModelLoad, RefusesHeadsThatAttentionDoesNotServe) {
  auto cpu = *NewCpuBackend({});
  auto files = *OpenModel(SourcePath("models/needle-14m"));
  ModelShape shape = files.shape;
  shape.head_dim = 24;
  EXPECT_THAT(std::string(Model::Load(shape, files.weights, cpu.get(), {}).status().message()),
              HasSubstr("head_dim 24: attention needs a multiple of 16"));
  shape = files.shape;
  shape.n_q_heads = 130;
  EXPECT_THAT(std::string(Model::Load(shape, files.weights, cpu.get(), {}).status().message()),
              HasSubstr("130 query heads over 2 KV heads"));
}

}  // namespace
}  // namespace sluice
