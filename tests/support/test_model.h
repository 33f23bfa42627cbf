// Role: the bundled model for tests: loaded once per process and kind, through the path that servers use.
// Threads: one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/model/ranked_model.h"
#include "common/text/tokenizer.h"
#include "kernels/cpu/cpu_backend.h"

namespace sluice {

// Where test models are: "cpu", or what SLUICE_TEST_DEVICE says ("cuda"), so that one suite holds every
// device.
std::string TestDevice();

// A path inside the source tree.
std::string SourcePath(const std::string& relative);
std::string ReadFile(const std::string& path);

// A Hugging Face directory or a GGUF file.
const Model& TestModel(const std::string& path, DType kv_dtype = DType::kBF16, CpuIsa isa = BestCpuIsa(),
                       const std::string& device = TestDevice());

// models/needle-14m.
const Model& NeedleModel(DType kv_dtype = DType::kBF16, CpuIsa isa = BestCpuIsa());
const Tokenizer& NeedleTokenizer();

// A model over ranks of TestDevice(), bf16 KV. Loaded anew: one loop at a time runs a model of several ranks.
struct RankedTestModel {
  std::unique_ptr<BackendGroup> group;
  std::unique_ptr<RankedModel> model;
};
int MostRanks();  // that TestDevice() can be: as many as there are GPUs
RankedTestModel LoadRanked(const std::string& path, int ranks, DType kv_dtype = DType::kBF16);

// How far logits may be from those of an f32 computation on the same bf16 weights. avx512_bf16 rounds
// activations, too (Transformers whose linear layers are fed with rounded inputs is as far off, to the last
// digit: 0.4513 for the tiny Llama 3); GPUs also round queries and the weights of attention.
inline float LogitTolerance(DType kv_dtype, CpuIsa isa) {
  if (TestDevice() != "cpu" || isa == CpuIsa::kAvx512Bf16) return 0.6f;
  return kv_dtype == DType::kF32 ? 1e-3f : 0.25f;
}

// Instruction sets that this machine has, lowest first; one stands for all on another device.
std::vector<CpuIsa> SupportedCpuIsas();

}  // namespace sluice
