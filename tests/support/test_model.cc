#include "tests/support/test_model.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <tuple>
#include <utility>

#include "common/base/status.h"
#include "common/model/model_dir.h"
#include "kernels/make_backend.h"

namespace sluice {
namespace {

template <class T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  SLUICE_CHECK(value.ok());
  return *std::move(value);
}

struct Loaded {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
};

Loaded Load(const std::string& path, DType kv_dtype, CpuIsa isa, const std::string& device) {
  const ModelFiles files = Must(OpenModel(path));
  Loaded loaded;
  loaded.backend = Must(MakeBackend(device, {.isa = isa, .threads = 0}));
  loaded.model = Must(
      Model::Load(files.shape, files.weights, loaded.backend.get(), {.kv_dtype = kv_dtype, .progress = {}}));
  return loaded;
}

}  // namespace

std::string TestDevice() {
  const char* device = std::getenv("SLUICE_TEST_DEVICE");
  return device != nullptr ? device : "cpu";
}

std::string SourcePath(const std::string& relative) { return std::string(SLUICE_SOURCE_DIR "/") + relative; }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  SLUICE_CHECK(file.good());
  return content.str();
}

const Model& TestModel(const std::string& path, DType kv_dtype, CpuIsa isa, const std::string& device) {
  static auto* loaded = new std::map<std::tuple<std::string, DType, CpuIsa, std::string>, Loaded>;
  auto [it, added] = loaded->try_emplace({path, kv_dtype, isa, device});
  if (added) it->second = Load(path, kv_dtype, isa, device);
  return *it->second.model;
}

const Model& NeedleModel(DType kv_dtype, CpuIsa isa) {
  return TestModel(SourcePath("models/needle-14m"), kv_dtype, isa);
}

int MostRanks() { return TestDevice() == "cpu" ? 64 : CountGpus(); }

RankedTestModel LoadRanked(const std::string& path, int ranks, DType kv_dtype) {
  const ModelFiles files = Must(OpenModel(path));
  RankedTestModel loaded;
  loaded.group = Must(MakeBackendGroup(TestDevice(), {}, ranks));
  loaded.model = Must(RankedModel::Load(files.shape, files.weights, loaded.group.get(),
                                        {.kv_dtype = kv_dtype, .progress = {}}));
  return loaded;
}

const Tokenizer& NeedleTokenizer() {
  static const Tokenizer* tokenizer = Must(OpenTokenizer(SourcePath("models/needle-14m"))).release();
  return *tokenizer;
}

std::vector<CpuIsa> SupportedCpuIsas() {
  if (TestDevice() != "cpu") return {BestCpuIsa()};
  std::vector<CpuIsa> isas;
  for (CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16}) {
    if (CpuSupports(isa)) isas.push_back(isa);
  }
  return isas;
}

}  // namespace sluice
