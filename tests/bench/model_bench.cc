// Speed of a whole model without servers: prefill of one prompt, decode steps of a batch.
//   model_bench MODEL [--device cpu] [--threads 2] [--prompt 512,8192] [--preset full,rocketkv] [--budget
//   512]
//               [--batch 1,8] [--tokens 64]
// On a CPU prefill is shown as a share of the multiply-add rate and decode as one of the read bandwidth, both
// measured in this process; a GPU's are kernel_bench's.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "common/compression/compression_spec.h"
#include "common/model/model_dir.h"
#include "kernels/make_backend.h"
#include "tests/bench/ceilings.h"
#include "tests/support/local_engine.h"

namespace sluice {
namespace {

template <class T>
T Must(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::exit(1);
}

struct Options {
  std::string path, device = "cpu", isa;
  std::vector<std::string> presets = {"full"};
  std::vector<int> prompts = {512}, batches = {1};
  int threads = 2, tokens = 64, budget = 512, rounds = 3;
  double kv_memory_gb = 0.5;
};

// What the machine can do, per second; 0: not measured.
struct Ceilings {
  double bytes = 0, flops = 0;
};

void PrintShare(double rate, double ceiling, const char* of) {
  if (ceiling > 0) std::printf("  %3.0f %% (%s)", 100 * rate / ceiling, of);
  std::printf("\n");
}

// Multiplications of the matrices of all layers, one token's.
double LinearParameters(const ModelShape& s) {
  const double qkv = double{1} * s.hidden * (s.n_q_heads + 2 * s.n_kv_heads) * s.head_dim;
  const double o = double{1} * s.hidden * s.n_q_heads * s.head_dim;
  return s.n_layers * (qkv + o + 3.0 * s.hidden * s.intermediate);
}

void BenchPrompt(const Model& model, const Options& options, const Ceilings& ceilings,
                 const std::string& preset, int prompt) {
  const ModelShape& shape = model.shape();
  const double linear = LinearParameters(shape), head = double{1} * shape.vocab * shape.hidden;
  CompressionSpec spec;
  spec.preset = preset;
  if (preset != "full") spec.budget_tokens = options.budget;
  LocalRequest request{.ids = {}, .gates = Must(ResolveFor(shape, spec, prompt, options.tokens))};
  uint32_t state = 7;
  for (int i = 0; i < prompt; ++i)
    request.ids.push_back((state = state * 1664525u + 1013904223u) % std::min(shape.vocab, 8000));

  double seconds = 1e30;
  std::vector<LocalPrefill> prefill;
  for (int round = 0; round < options.rounds; ++round) {
    prefill.clear();
    const double begin = BenchSeconds(options.threads);
    prefill = Must(PrefillTogether(model, {request}));
    seconds = std::min(seconds, BenchSeconds(options.threads) - begin);
  }
  const double attention = 2.0 * shape.n_layers * shape.n_q_heads * shape.head_dim * prompt * (prompt + 1.0);
  const double flops = 2 * (linear * prompt + head) + attention;
  std::printf("prefill %6d tokens, %-12s %17.1f ms %8.1f tokens/s %8.1f GF/s", prompt, preset.c_str(),
              seconds * 1e3, prompt / seconds, flops / seconds / 1e9);
  PrintShare(flops / seconds, ceilings.flops, "of the work of full");

  for (int batch : options.batches) {
    auto decoder =
        Must(LocalDecoder::Create(model, batch, static_cast<size_t>(options.kv_memory_gb * (1 << 30))));
    std::vector<std::unique_ptr<SequenceKv>> sequences;
    std::vector<DecodeRow> rows;
    for (int i = 0; i < batch; ++i) {
      sequences.push_back(Must(decoder->Receive(prefill[0], request.gates, prompt)));
      rows.push_back({.kv = sequences.back().get(),
                      .selection = request.gates.selection.kind,
                      .token = Greedy(prefill[0].logits),
                      .position = LogicalLen(prompt),
                      .wants_logits = false});
    }
    double step = 1e30;
    for (int round = 0; round < options.rounds; ++round) {
      const double begin = BenchSeconds(options.threads);
      for (int i = 0; i < options.tokens; ++i) {
        const std::vector<DecodeResult> results = Must(decoder->Step(rows));
        for (int j = 0; j < batch; ++j) {
          rows[j].token = results[j].best;
          ++rows[j].position;
        }
      }
      step = std::min(step, (BenchSeconds(options.threads) - begin) / options.tokens);
    }
    const double bytes = 2 * (linear + head);
    std::printf("decode  %6d rows,   %-12s batch %3d %8.3f ms %8.1f tokens/s %8.1f GB/s", prompt,
                preset.c_str(), batch, step * 1e3, batch / step, bytes / step / 1e9);
    PrintShare(bytes / step, ceilings.bytes, "of weights alone");
    std::fflush(stdout);
  }
}

int Main(int argc, char** argv) {
  CLI::App app("Speed of one model, without servers");
  Options options;
  app.add_option("model", options.path, "Hugging Face directory or GGUF file")->required();
  app.add_option("--device", options.device, "auto, cpu, cuda, cuda:<index>");
  app.add_option("--isa", options.isa, "avx2, avx512 or avx512_bf16; the best of this machine without it");
  app.add_option("--threads", options.threads, "CPU threads");
  app.add_option("--prompt", options.prompts, "tokens of the prompt")->delimiter(',');
  app.add_option("--batch", options.batches, "sequences of a decode step")->delimiter(',');
  app.add_option("--tokens", options.tokens, "tokens to generate in a round");
  app.add_option("--preset", options.presets, "compression presets")->delimiter(',');
  app.add_option("--budget", options.budget, "kept tokens, where a preset has a budget");
  app.add_option("--rounds", options.rounds, "runs, of which the fastest counts");
  app.add_option("--kv-memory", options.kv_memory_gb, "GB of KV pages");
  CLI11_PARSE(app, argc, argv);

  const CpuIsa isa = options.isa.empty() ? BestCpuIsa() : Must(ParseCpuIsa(options.isa));
  auto backend = Must(MakeBackend(options.device, {.isa = isa, .threads = options.threads}));
  const ModelFiles files = Must(OpenModel(options.path));
  auto model = Must(Model::Load(files.shape, files.weights, backend.get(), {}));
  std::printf("%s, %s\n", model->shape().name.c_str(), backend->description().c_str());
  Ceilings ceilings;
  if (options.device == "cpu") {
    ceilings = {MeasureReadBandwidth(options.threads), MeasureFmaRate(options.threads, isa != CpuIsa::kAvx2)};
    std::printf("read %.1f GB/s, f32 multiply-add %.1f GF/s\n", ceilings.bytes / 1e9, ceilings.flops / 1e9);
  }
  for (int prompt : options.prompts)
    for (const std::string& preset : options.presets) BenchPrompt(*model, options, ceilings, preset, prompt);
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
