// Writes a Hugging Face directory with the geometry of a known model and random bf16 weights: what speed is
// measured on where the real weights are not at hand.
//   random_model llama-3.1-8b OUT_DIR [--layers 32]
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace {

using Json = nlohmann::json;

struct Geometry {
  int hidden, intermediate, layers, q_heads, kv_heads, head_dim, vocab, context;
  double rope_theta;
  Json rope_scaling;
};

const std::map<std::string, Geometry>& Geometries() {
  static const std::map<std::string, Geometry> known = {
      {"llama-3.1-8b",
       {4096,
        14336,
        32,
        32,
        8,
        128,
        128256,
        131072,
        500000.0,
        {{"rope_type", "llama3"},
         {"factor", 8.0},
         {"low_freq_factor", 1.0},
         {"high_freq_factor", 4.0},
         {"original_max_position_embeddings", 8192}}}},
  };
  return known;
}

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  float scale;  // standard deviation; 0: all ones
};

std::vector<Tensor> TensorsOf(const Geometry& g) {
  const int64_t c = g.hidden, q = int64_t{g.q_heads} * g.head_dim, kv = int64_t{g.kv_heads} * g.head_dim;
  const auto norm = [](std::string name, int64_t n) { return Tensor{std::move(name), {n}, 0}; };
  // Of unit gain, so that hidden states and scores have the size they have in a trained model.
  const auto matrix = [](std::string name, int64_t rows, int64_t cols) {
    return Tensor{std::move(name), {rows, cols}, 1 / std::sqrt(static_cast<float>(cols))};
  };
  std::vector<Tensor> tensors = {matrix("model.embed_tokens.weight", g.vocab, c)};
  for (int l = 0; l < g.layers; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    tensors.push_back(norm(layer + "input_layernorm.weight", c));
    tensors.push_back(matrix(layer + "self_attn.q_proj.weight", q, c));
    tensors.push_back(matrix(layer + "self_attn.k_proj.weight", kv, c));
    tensors.push_back(matrix(layer + "self_attn.v_proj.weight", kv, c));
    tensors.push_back(matrix(layer + "self_attn.o_proj.weight", c, q));
    tensors.push_back(norm(layer + "post_attention_layernorm.weight", c));
    tensors.push_back(matrix(layer + "mlp.gate_proj.weight", g.intermediate, c));
    tensors.push_back(matrix(layer + "mlp.up_proj.weight", g.intermediate, c));
    tensors.push_back(matrix(layer + "mlp.down_proj.weight", c, g.intermediate));
  }
  tensors.push_back(norm("model.norm.weight", c));
  tensors.push_back(matrix("lm_head.weight", g.vocab, c));
  return tensors;
}

int64_t Elements(const Tensor& tensor) {
  int64_t n = 1;
  for (int64_t size : tensor.shape) n *= size;
  return n;
}

uint16_t Bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Sums of four uniforms: close enough to normal.
void Fill(uint16_t* out, int64_t n, float scale, uint64_t seed) {
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (int64_t i = 0; i < n; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    float sum = 0;
    for (int part = 0; part < 4; ++part) sum += static_cast<float>(state >> (16 * part) & 0xffff);
    out[i] = Bf16((sum / 65536 - 2) * std::sqrt(3.f) * scale);
  }
}

void WriteConfig(const std::string& path, const Geometry& g) {
  const Json config = {{"architectures", {"LlamaForCausalLM"}},
                       {"model_type", "llama"},
                       {"vocab_size", g.vocab},
                       {"hidden_size", g.hidden},
                       {"intermediate_size", g.intermediate},
                       {"num_hidden_layers", g.layers},
                       {"num_attention_heads", g.q_heads},
                       {"num_key_value_heads", g.kv_heads},
                       {"head_dim", g.head_dim},
                       {"hidden_act", "silu"},
                       {"max_position_embeddings", g.context},
                       {"rms_norm_eps", 1e-5},
                       {"rope_theta", g.rope_theta},
                       {"rope_scaling", g.rope_scaling},
                       {"tie_word_embeddings", false},
                       {"torch_dtype", "bfloat16"}};
  std::ofstream(path) << config.dump(1);
}

bool WriteWeights(const std::string& path, const std::vector<Tensor>& tensors) {
  Json header;
  int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    const int64_t end = at + 2 * Elements(tensor);
    header[tensor.name] = {{"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  const int64_t begin = 8 + static_cast<int64_t>(length), bytes = begin + at;
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0644);
  if (fd < 0 || ftruncate(fd, bytes) != 0) return false;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return false;
  char* file = static_cast<char*>(memory);
  std::memcpy(file, &length, 8);
  std::memcpy(file + 8, text.data(), text.size());

  const unsigned n_threads = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < n_threads; ++t) {
    threads.emplace_back([&, t] {
      int64_t offset = begin;
      for (size_t i = 0; i < tensors.size(); ++i) {
        const int64_t n = Elements(tensors[i]);
        auto* out = reinterpret_cast<uint16_t*>(file + offset);
        offset += 2 * n;
        const int64_t from = n * t / n_threads, to = n * (t + 1) / n_threads;
        if (tensors[i].scale == 0) {
          std::fill(out + from, out + to, Bf16(1));
        } else {
          Fill(out + from, to - from, tensors[i].scale, i * n_threads + t + 1);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return munmap(memory, bytes) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Random weights in the geometry of a known model");
  std::string name, out;
  int layers = 0;
  app.add_option("model", name, "geometry")->required()->check(CLI::IsMember(Geometries()));
  app.add_option("out", out, "directory to write")->required();
  app.add_option("--layers", layers, "as many layers instead of the model's");
  CLI11_PARSE(app, argc, argv);
  Geometry geometry = Geometries().at(name);
  if (layers > 0) geometry.layers = layers;
  std::filesystem::create_directories(out);
  WriteConfig(out + "/config.json", geometry);
  if (!WriteWeights(out + "/model.safetensors", TensorsOf(geometry))) {
    std::perror(out.c_str());
    return 1;
  }
  return 0;
}
