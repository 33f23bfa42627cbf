// Speed of a whole model on a CPU, without servers, beside what the machine can do:
//   model_bench MODEL [--isa avx2] [--threads 2] [--prompt 512] [--tokens 64] [--preset full] [--budget 512]
// Prefill is a share of the multiply-add rate, decode of the read bandwidth, both measured in this process.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "common/compression/compression_spec.h"
#include "common/model/model_dir.h"
#include "kernels/cpu/cpu_backend.h"
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

// Multiplications of the matrices of all layers, one token's.
double LinearParameters(const ModelShape& s) {
  const double qkv = double{1} * s.hidden * (s.n_q_heads + 2 * s.n_kv_heads) * s.head_dim;
  const double o = double{1} * s.hidden * s.n_q_heads * s.head_dim;
  return s.n_layers * (qkv + o + 3.0 * s.hidden * s.intermediate);
}

int Main(int argc, char** argv) {
  CLI::App app("Speed of one model, without servers");
  std::string path, isa, preset = "full";
  int threads = 2, prompt = 512, tokens = 64, budget = 512, rounds = 3;
  app.add_option("model", path, "Hugging Face directory or GGUF file")->required();
  app.add_option("--isa", isa, "avx2, avx512 or avx512_bf16; the best of this machine without it");
  app.add_option("--threads", threads, "threads");
  app.add_option("--prompt", prompt, "tokens of the prompt");
  app.add_option("--tokens", tokens, "tokens to generate");
  app.add_option("--preset", preset, "compression preset");
  app.add_option("--budget", budget, "kept tokens, where the preset has a budget");
  app.add_option("--rounds", rounds, "runs, of which the fastest counts");
  CLI11_PARSE(app, argc, argv);

  const CpuIsa kind = isa.empty() ? BestCpuIsa() : Must(ParseCpuIsa(isa));
  const double bandwidth = MeasureReadBandwidth(threads);
  const double fma = MeasureFmaRate(threads, kind != CpuIsa::kAvx2);
  auto backend = Must(NewCpuBackend({.isa = kind, .threads = threads}));
  const ModelFiles files = Must(OpenModel(path));
  auto model = Must(Model::Load(files.shape, files.weights, backend.get(), {}));
  const ModelShape& shape = model->shape();
  std::printf("%s, %s: read %.1f GB/s, f32 multiply-add %.1f GF/s\n", shape.name.c_str(),
              backend->description().c_str(), bandwidth / 1e9, fma / 1e9);

  CompressionSpec spec;
  spec.preset = preset;
  if (preset != "full") spec.budget_tokens = budget;
  LocalRequest request{.ids = {}, .gates = Must(ResolveFor(shape, spec, prompt, tokens))};
  uint32_t state = 7;
  for (int i = 0; i < prompt; ++i)
    request.ids.push_back((state = state * 1664525u + 1013904223u) % std::min(shape.vocab, 8000));

  double prefill_seconds = 1e30, step_seconds = 1e30;
  for (int round = 0; round < rounds; ++round) {
    double begin = BenchSeconds(threads);
    auto prefill = Must(PrefillTogether(*model, {request}));
    prefill_seconds = std::min(prefill_seconds, BenchSeconds(threads) - begin);
    auto decoder = Must(LocalDecoder::Create(*model, 2));
    auto kv = Must(decoder->Receive(prefill[0], request.gates, prompt));
    DecodeRow row{.kv = kv.get(),
                  .selection = request.gates.selection.kind,
                  .token = Greedy(prefill[0].logits),
                  .position = LogicalLen(prompt)};
    begin = BenchSeconds(threads);
    for (int i = 0; i < tokens; ++i) {
      row.token = Greedy(Must(decoder->Step({row}))[0]);
      ++row.position;
    }
    step_seconds = std::min(step_seconds, (BenchSeconds(threads) - begin) / tokens);
  }

  const double linear = LinearParameters(shape), head = double{1} * shape.vocab * shape.hidden;
  const double attention = 2.0 * shape.n_layers * shape.n_q_heads * shape.head_dim * prompt * (prompt + 1.0);
  const double flops = 2 * (linear * prompt + head) + attention;
  std::printf(
      "prefill %5d tokens, %-12s %10.1f ms %8.1f tokens/s %7.1f GF/s  %3.0f %% (of the work of full)\n",
      prompt, preset.c_str(), prefill_seconds * 1e3, prompt / prefill_seconds, flops / prefill_seconds / 1e9,
      100 * flops / prefill_seconds / fma);
  const double bytes = 2 * (linear + head);
  std::printf("decode after %6d, %-12s %11.2f ms %8.1f tokens/s %7.1f GB/s  %3.0f %% (of weights alone)\n",
              prompt, preset.c_str(), step_seconds * 1e3, 1 / step_seconds, bytes / step_seconds / 1e9,
              100 * bytes / step_seconds / bandwidth);
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
