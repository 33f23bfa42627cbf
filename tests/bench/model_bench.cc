// Speed of a whole model without servers: prefill of one prompt, decode steps of a batch.
//   model_bench MODEL [--device cpu] [--threads 2] [--prompt 512,8192] [--preset full,rocketkv,tsp]
//               [--budget 512] [--batch 1,8] [--tokens 64] [--no-attention] [--fill 8192] [--json FILE]
// On a CPU prefill is shown as a share of the multiply-add rate and decode as one of the read bandwidth, both
// measured in this process; a GPU's are kernel_bench's. Every preset is set against `full`, where `full` ran
// before it with the same prompt and batch.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/model/model_dir.h"
#include "kernels/make_backend.h"
#include "tests/bench/bench_rows.h"
#include "tests/bench/bench_runs.h"
#include "tests/bench/ceilings.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

template <class T>
T Must(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::exit(1);
}

struct Options {
  std::string path, device = "cpu", isa, json;
  std::vector<std::string> presets = {"full"}, fill_presets = {"full", "rocketkv"};
  std::vector<int> prompts = {512}, batches = {1}, fill;
  RunOptions run;
  double kv_memory_gb = 0.5, fill_memory_gb = 0;
  bool no_attention = false;
};

// What the machine can do, per second; 0: not measured.
struct Ceilings {
  double bytes = 0, flops = 0;
};

size_t Gib(double n) { return static_cast<size_t>(n * (1 << 30)); }

// Multiplications of the matrices of all layers, one token's.
double LinearParameters(const ModelShape& s) {
  const double qkv = double{1} * s.hidden * (s.n_q_heads + 2 * s.n_kv_heads) * s.head_dim;
  const double o = double{1} * s.hidden * s.n_q_heads * s.head_dim;
  return s.n_layers * (qkv + o + 3.0 * s.hidden * s.intermediate);
}

class ModelBench {
 public:
  ModelBench(const Model* model, MeteredBackend* backend, const Options& options, Ceilings ceilings)
      : model_(*model),
        backend_(*backend),
        options_(options),
        ceilings_(ceilings),
        linear_(LinearParameters(model->shape())),
        head_(double{1} * model->shape().vocab * model->shape().hidden),
        rows_(options.json, {{"program", "model_bench"},
                             {"model", model->shape().name},
                             {"device", backend->description()},
                             {"budget", options.run.budget},
                             {"kv_memory_gb", options.kv_memory_gb}}) {}

  void Run() {
    for (int prompt : options_.fill) Fill(prompt);
    bool first = true;
    for (int prompt : options_.prompts) {
      for (const std::string& preset : options_.presets) {
        const PrefillRun prefill = Prefill(preset, prompt);
        if (std::exchange(first, false) && options_.no_attention) {
          backend_.LeaveOutAttention(true);
          for (int batch : options_.batches) Decode("none", prefill, batch);
          backend_.LeaveOutAttention(false);
        }
        for (int batch : options_.batches) Decode(preset, prefill, batch);
      }
    }
  }

 private:
  PrefillRun Prefill(const std::string& preset, int prompt) {
    const ModelShape& shape = model_.shape();
    const ResolvedGates gates = Must(GatesOf(shape, preset, prompt, options_.run));
    PrefillRun run = Must(RunPrefill(model_, backend_, gates, prompt, options_.run));
    const double attention =
        2.0 * shape.n_layers * shape.n_q_heads * shape.head_dim * prompt * (prompt + 1.0);
    const double rate = (2 * (linear_ * prompt + head_) + attention) / run.seconds;
    std::printf("prefill %6d tokens, %-12s %17.1f ms %8.1f tokens/s %8.1f GF/s", prompt, preset.c_str(),
                run.seconds * 1e3, prompt / run.seconds, rate / 1e9);
    PrintShare(rate, ceilings_.flops, "of the work of full");
    std::printf("  gates %.2f %%", 100 * run.gate_seconds / run.seconds);
    Finish({{"what", "prefill"},
            {"preset", preset},
            {"tokens", prompt},
            {"ms", run.seconds * 1e3},
            {"gates_ms", run.gate_seconds * 1e3}},
           run.seconds);
    return run;
  }

  void Decode(const std::string& preset, const PrefillRun& prefill, int size) {
    const auto batch = Batch(prefill, size, size, options_.run);
    if (batch.ok()) return PrintStep("decode", preset, prefill.prompt, **batch);
    std::printf("decode  %6d rows,   %-12s batch %3d: %s\n", prefill.prompt, preset.c_str(), size,
                std::string(batch.status().message()).c_str());
  }

  // As many sequences as the memory holds. All prompts come first, so that the memory of one preset's cache
  // is given back whole to the next one's.
  void Fill(int prompt) {
    constexpr int kMost = 256;
    RunOptions run = options_.run;
    run.memory = Gib(options_.fill_memory_gb > 0 ? options_.fill_memory_gb : options_.kv_memory_gb);
    RunOptions once = run;
    once.rounds = 1;
    std::vector<PrefillRun> prefills;
    for (const std::string& preset : options_.fill_presets) {
      const ResolvedGates gates = Must(GatesOf(model_.shape(), preset, prompt, run));
      prefills.push_back(Must(RunPrefill(model_, backend_, gates, prompt, once)));
    }
    for (size_t i = 0; i < prefills.size(); ++i)
      PrintStep("fill", options_.fill_presets[i], prompt, *Must(Batch(prefills[i], 1, kMost, run)));
  }

  // From `least` to `most` sequences.
  absl::StatusOr<std::unique_ptr<DecodeBatch>> Batch(const PrefillRun& prefill, int least, int most,
                                                     const RunOptions& run) {
    SLUICE_ASSIGN_OR_RETURN(auto batch, DecodeBatch::Create(model_, prefill, most, run));
    while (batch->size() < most) {
      const absl::Status status = batch->Add();
      if (absl::IsResourceExhausted(status) && batch->size() >= least) break;
      SLUICE_RETURN_IF_ERROR(status);
    }
    return batch;
  }

  void PrintStep(const char* what, const std::string& preset, int prompt, DecodeBatch& batch) {
    const double step = Must(batch.StepSeconds(/*blind=*/preset == "none"));
    const double bytes = 2 * (linear_ + head_);
    std::printf("%-7s %6d rows,   %-12s batch %3d %8.3f ms %8.1f tokens/s %8.1f GB/s", what, prompt,
                preset.c_str(), batch.size(), step * 1e3, batch.size() / step, bytes / step / 1e9);
    PrintShare(bytes / step, ceilings_.bytes, "of weights alone");
    Json row = {{"what", what},          {"preset", preset}, {"context", preset == "none" ? 0 : prompt},
                {"batch", batch.size()}, {"ms", step * 1e3}, {"tokens_s", batch.size() / step}};
    // A filled memory holds another batch for every preset: tokens are compared, not steps.
    Finish(std::move(row), *what == 'f' ? step / batch.size() : step);
  }

  static void PrintShare(double rate, double ceiling, const char* of) {
    if (ceiling > 0) std::printf("  %3.0f %% (%s)", 100 * rate / ceiling, of);
  }

  // Sets a row against the same one of `full`, ends its line and keeps it.
  void Finish(Json row, double seconds) {
    std::string key = row["what"];
    for (const char* field : {"tokens", "context"})
      if (row.contains(field)) key += " " + row[field].dump();
    if (row["what"] == "decode") key += " " + row["batch"].dump();
    if (row["preset"] == "full") {
      full_[key] = seconds;
    } else if (const auto full = full_.find(key); full != full_.end()) {
      row["over_full"] = full->second / seconds;
      std::printf("  %.2f x full", full->second / seconds);
    }
    std::printf("\n");
    std::fflush(stdout);
    rows_.Add(std::move(row));
  }

  const Model& model_;
  MeteredBackend& backend_;
  const Options& options_;
  const Ceilings ceilings_;
  const double linear_, head_;
  std::map<std::string, double> full_;  // seconds
  BenchRows rows_;
};

int Main(int argc, char** argv) {
  CLI::App app("Speed of one model, without servers");
  Options options;
  app.add_option("model", options.path, "Hugging Face directory or GGUF file")->required();
  app.add_option("--device", options.device, "auto, cpu, cuda, cuda:<index>");
  app.add_option("--isa", options.isa, "avx2, avx512 or avx512_bf16; the best of this machine without it");
  app.add_option("--threads", options.run.threads, "CPU threads");
  app.add_option("--prompt", options.prompts, "tokens of the prompt")->delimiter(',');
  app.add_option("--batch", options.batches, "sequences of a decode step")->delimiter(',');
  app.add_option("--tokens", options.run.tokens, "tokens to generate in a round")->check(CLI::PositiveNumber);
  app.add_option("--preset", options.presets, "compression presets; tsp: propagation alone")->delimiter(',');
  app.add_option("--budget", options.run.budget, "kept tokens, where a preset has a budget");
  app.add_option("--rounds", options.run.rounds, "runs, of which the fastest counts")
      ->check(CLI::PositiveNumber);
  app.add_option("--kv-memory", options.kv_memory_gb, "GiB of KV pages")->check(CLI::PositiveNumber);
  app.add_flag("--no-attention", options.no_attention, "steps without attention too");
  app.add_option("--fill", options.fill, "prompts with which every preset fills the KV memory")
      ->delimiter(',');
  app.add_option("--fill-memory", options.fill_memory_gb, "GiB that they fill; without it --kv-memory")
      ->check(CLI::PositiveNumber);
  app.add_option("--json", options.json, "file for the figures");
  CLI11_PARSE(app, argc, argv);
  options.run.memory = Gib(options.kv_memory_gb);

  const CpuIsa isa = options.isa.empty() ? BestCpuIsa() : Must(ParseCpuIsa(options.isa));
  auto real = Must(MakeBackend(options.device, {.isa = isa, .threads = options.run.threads}));
  MeteredBackend backend(real.get());
  const ModelFiles files = Must(OpenModel(options.path));
  auto model = Must(Model::Load(files.shape, files.weights, &backend, {}));
  std::printf("%s, %s\n", model->shape().name.c_str(), backend.description().c_str());
  Ceilings ceilings;
  if (options.device == "cpu") {
    ceilings = {MeasureReadBandwidth(options.run.threads),
                MeasureFmaRate(options.run.threads, isa != CpuIsa::kAvx2)};
    std::printf("read %.1f GB/s, f32 multiply-add %.1f GF/s\n", ceilings.bytes / 1e9, ceilings.flops / 1e9);
  }
  ModelBench(model.get(), &backend, options, ceilings).Run();
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
