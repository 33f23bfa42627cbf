// Model::Load: fuses, rounds and uploads the weights matrix by matrix; no matrix is ever whole in f32.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/model/model_layer.h"

namespace sluice {

class ModelLoader {
 public:
  ModelLoader(const ModelShape& shape, const ModelWeights& weights, Backend* backend,
              const LoadOptions& options)
      : shape_(shape), weights_(weights), backend_(backend), options_(options) {}

  absl::StatusOr<std::unique_ptr<Model>> Load() {
    SLUICE_RETURN_IF_ERROR(CheckHeads());
    for (WeightId id : WeightsOf(shape_)) {
      int64_t elements = 1;
      const std::vector<int64_t> dims = WeightDims(shape_, id.weight);
      for (int64_t n : dims) elements *= n;
      total_bytes_ += static_cast<size_t>(elements) * (dims.size() == 2 ? 2 : 4);
    }
    SLUICE_RETURN_IF_ERROR(CheckFits());

    std::unique_ptr<Model> model(new Model);
    model->shape_ = shape_;
    model->backend_ = backend_;
    model->rank_ = weights_.rank();
    model->kv_shape_ = {.n_layers = shape_.n_layers,
                        .n_q_heads = shape_.n_q_heads,
                        .n_kv_heads = shape_.n_kv_heads,
                        .head_dim = shape_.head_dim,
                        .dtype = options_.kv_dtype};
    model->weight_bytes_ = total_bytes_ + TableBytes();
    ops_ = backend_->NewOps();
    SLUICE_ASSIGN_OR_RETURN(model->cos_sin_, RotaryTable());
    SLUICE_ASSIGN_OR_RETURN(model->embedding_, Fuse({{Weight::kEmbedding}}));
    for (int l = 0; l < shape_.n_layers; ++l) {
      SLUICE_ASSIGN_OR_RETURN(Model::Layer layer, LoadLayer(l));
      model->layers_.push_back(std::move(layer));
    }
    SLUICE_ASSIGN_OR_RETURN(model->final_norm_, Vectors({{Weight::kFinalNorm}}));
    if (!shape_.tied_embeddings) {
      SLUICE_ASSIGN_OR_RETURN(model->head_, Fuse({{Weight::kLmHead}}));
    }
    SLUICE_RETURN_IF_ERROR(ops_->Sync());
    return model;
  }

 private:
  size_t TableBytes() const { return sizeof(float) * shape_.context * shape_.head_dim; }

  // What kernels/README.md asks of heads.
  absl::Status CheckHeads() const {
    if (shape_.head_dim % 16 != 0 || shape_.head_dim > 1024)
      return absl::InvalidArgumentError(
          absl::StrCat("head_dim ", shape_.head_dim, ": attention needs a multiple of 16, at most 1024"));
    if (shape_.n_q_heads > 64 * shape_.n_kv_heads)
      return absl::InvalidArgumentError(absl::StrCat(shape_.n_q_heads, " query heads over ",
                                                     shape_.n_kv_heads,
                                                     " KV heads: attention serves groups of at most 64"));
    return absl::OkStatus();
  }

  absl::Status CheckFits() const {
    const DeviceMemory memory = backend_->memory();
    const size_t need = total_bytes_ + TableBytes();
    if (need <= memory.available_bytes) return absl::OkStatus();
    auto gib = [](size_t bytes) { return absl::StrFormat("%.2f GiB", std::ldexp(bytes, -30)); };
    return absl::ResourceExhaustedError(absl::StrCat(
        "the model does not fit: weights ", gib(total_bytes_), " + rotary table of ", shape_.context,
        " positions ", gib(TableBytes()), " = ", gib(need), ", available ", gib(memory.available_bytes),
        " of ", gib(memory.total_bytes), " on ", backend_->description()));
  }

  absl::StatusOr<Model::Layer> LoadLayer(int l) {
    Model::Layer layer;
    SLUICE_ASSIGN_OR_RETURN(layer.attention_norm, Vectors({{Weight::kAttentionNorm, l}}));
    SLUICE_ASSIGN_OR_RETURN(layer.qkv, Fuse({{Weight::kQ, l}, {Weight::kK, l}, {Weight::kV, l}}));
    if (shape_.qkv_bias) {
      SLUICE_ASSIGN_OR_RETURN(layer.qkv_bias,
                              Vectors({{Weight::kQBias, l}, {Weight::kKBias, l}, {Weight::kVBias, l}}));
      SLUICE_ASSIGN_OR_RETURN(layer.key_center, KeyCenter(l));
    }
    if (shape_.qk_norm) {
      SLUICE_ASSIGN_OR_RETURN(layer.q_norm, Vectors({{Weight::kQNorm, l}}));
      SLUICE_ASSIGN_OR_RETURN(layer.k_norm, Vectors({{Weight::kKNorm, l}}));
    }
    SLUICE_ASSIGN_OR_RETURN(layer.o, Fuse({{Weight::kO, l}}));
    SLUICE_ASSIGN_OR_RETURN(layer.mlp_norm, Vectors({{Weight::kMlpNorm, l}}));
    SLUICE_ASSIGN_OR_RETURN(layer.gate_up, Fuse({{Weight::kGate, l}, {Weight::kUp, l}}));
    SLUICE_ASSIGN_OR_RETURN(layer.down, Fuse({{Weight::kDown, l}}));
    return layer;
  }

  // The rows of all parts, one part after another.
  absl::StatusOr<std::unique_ptr<Matrix>> Fuse(const std::vector<WeightId>& parts) {
    const int64_t cols = WeightDims(shape_, parts[0].weight)[1];
    std::vector<int64_t> starts = {0};
    for (WeightId id : parts) starts.push_back(starts.back() + WeightDims(shape_, id.weight)[0]);
    auto read = [&](int64_t begin, int64_t end, float* out) -> absl::Status {
      for (size_t i = 0; i < parts.size(); ++i) {
        const int64_t from = std::max(begin, starts[i]), to = std::min(end, starts[i + 1]);
        if (from >= to) continue;
        SLUICE_RETURN_IF_ERROR(
            weights_.Read(parts[i], from - starts[i], to - starts[i],
                          absl::MakeSpan(out + (from - begin) * cols, (to - from) * cols)));
      }
      Report(static_cast<size_t>((end - begin) * cols) * 2);
      return absl::OkStatus();
    };
    return backend_->PackMatrix(starts.back(), cols, read);
  }

  // Vectors joined, f32.
  absl::StatusOr<Buffer> Vectors(const std::vector<WeightId>& parts) {
    std::vector<float> host;
    for (WeightId id : parts) {
      SLUICE_ASSIGN_OR_RETURN(std::vector<float> part, weights_.ReadAll(id));
      host.insert(host.end(), part.begin(), part.end());
    }
    Report(host.size() * sizeof(float));
    return Upload(host);
  }

  absl::StatusOr<Buffer> Upload(const std::vector<float>& host) {
    SLUICE_ASSIGN_OR_RETURN(Buffer buffer, backend_->Allocate(host.size() * sizeof(float)));
    ops_->CopyIn(host.data(), buffer.View(DType::kF32, {static_cast<int64_t>(host.size())}));
    return buffer;
  }

  // The mean over all positions of each KV head's rotated bias; zeros for the query heads. Needs the rotary
  // table.
  absl::StatusOr<Buffer> KeyCenter(int l) {
    SLUICE_ASSIGN_OR_RETURN(std::vector<float> bias, weights_.ReadAll({Weight::kKBias, l}));
    const int64_t d = shape_.head_dim, half = d / 2;
    std::vector<float> host((shape_.n_q_heads + shape_.n_kv_heads) * d);
    for (int64_t h = 0; h < shape_.n_kv_heads; ++h) {
      const float* b = bias.data() + h * d;
      float* center = host.data() + (shape_.n_q_heads + h) * d;
      for (int64_t i = 0; i < half; ++i) {
        const double cos = mean_cos_sin_[i], sin = mean_cos_sin_[half + i];
        center[i] = static_cast<float>(b[i] * cos - b[half + i] * sin);
        center[half + i] = static_cast<float>(b[half + i] * cos + b[i] * sin);
      }
    }
    return Upload(host);
  }

  // Cosines and sines of f32 angles: Transformers computes them so, and at far positions a more exact angle
  // would be a different one.
  absl::StatusOr<Buffer> RotaryTable() {
    const int64_t half = shape_.head_dim / 2, width = shape_.head_dim;
    SLUICE_ASSIGN_OR_RETURN(Buffer buffer, backend_->Allocate(TableBytes()));
    const TensorView table = buffer.View(DType::kF32, {shape_.context, width});
    constexpr int64_t kRows = 4096;
    std::vector<float> host(kRows * width);
    mean_cos_sin_.assign(width, 0);
    for (int64_t begin = 0; begin < shape_.context; begin += kRows) {
      const int64_t end = std::min<int64_t>(shape_.context, begin + kRows);
      for (int64_t position = begin; position < end; ++position) {
        float* row = host.data() + (position - begin) * width;
        for (int64_t i = 0; i < half; ++i) {
          const float angle = static_cast<float>(position) * shape_.inv_freq[i];
          row[i] = std::cos(angle) * shape_.rope_attention_scale;
          row[half + i] = std::sin(angle) * shape_.rope_attention_scale;
        }
        for (int64_t i = 0; i < width; ++i) mean_cos_sin_[i] += row[i] / double(shape_.context);
      }
      ops_->CopyIn(host.data(), table.Slice(0, begin, end));
    }
    return buffer;
  }

  void Report(size_t bytes) {
    done_bytes_ += bytes;
    if (options_.progress) options_.progress(static_cast<double>(done_bytes_) / total_bytes_);
  }

  const ModelShape& shape_;
  const ModelWeights& weights_;
  Backend* const backend_;
  const LoadOptions& options_;
  std::unique_ptr<Ops> ops_;
  std::vector<double> mean_cos_sin_;  // [head_dim]: mean of the rotary table's rows
  size_t total_bytes_ = 0;            // of the weights on the device: matrices bf16, vectors f32
  size_t done_bytes_ = 0;
};

absl::StatusOr<std::unique_ptr<Model>> Model::Load(const ModelShape& shape, const ModelWeights& weights,
                                                   Backend* backend, const LoadOptions& options) {
  return ModelLoader(shape, weights, backend, options).Load();
}

}  // namespace sluice
