// Speed of a model over several ranks, without servers: the sum over ranks, prefill of one prompt, decode
// steps.
//   ranked_bench MODEL [--device cuda] [--tensor-parallel-size 2] [--prompt 8192] [--batch 1,8] [--preset
//   full]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "common/compression/compression_spec.h"
#include "common/model/model_dir.h"
#include "kernels/make_backend.h"
#include "tests/support/local_engine.h"
#include "tests/support/ranked_engine.h"

namespace sluice {
namespace {

template <class T>
T Must(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::exit(1);
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Options {
  std::string path, device = "cuda";
  std::vector<std::string> presets = {"full"};
  std::vector<int> prompts = {8192}, batches = {1};
  int ranks = 2, tokens = 64, budget = 512, rounds = 3;
  double kv_memory_gb = 8;
};

// Microseconds of one of many sums in a row, rows x hidden.
void BenchSum(const RankedModel& model, int rows, int rounds) {
  constexpr int kSums = 200;
  BackendGroup& group = model.group();
  std::vector<Buffer> memory;
  std::vector<std::unique_ptr<Ops>> ops;
  for (int rank = 0; rank < group.size(); ++rank) {
    memory.push_back(Must(group.rank(rank)->Allocate(sizeof(float) * rows * model.shape().hidden)));
    ops.push_back(group.rank(rank)->NewOps());
  }
  double best = 1e30;
  for (int round = 0; round < rounds; ++round) {
    const double begin = Now();
    const absl::Status status = group.Run([&](int rank) {
      for (int i = 0; i < kSums; ++i)
        ops[rank]->AllReduce(memory[rank].View(DType::kF32, {rows, model.shape().hidden}));
      return ops[rank]->Sync();
    });
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    best = std::min(best, (Now() - begin) / kSums);
  }
  std::printf("sum     %6d x %d f32 %8.1f us\n", rows, model.shape().hidden, best * 1e6);
}

void BenchPrompt(const RankedModel& model, const Options& options, const std::string& preset, int prompt) {
  CompressionSpec spec;
  spec.preset = preset;
  if (preset != "full") spec.budget_tokens = options.budget;
  const ResolvedGates gates = Must(ResolveFor(model.shape(), spec, prompt, options.tokens));
  std::vector<int32_t> ids;
  uint32_t state = 7;
  for (int i = 0; i < prompt; ++i)
    ids.push_back((state = state * 1664525u + 1013904223u) % std::min(model.shape().vocab, 8000));
  RankedPrompt prefilled;
  double seconds = 1e30;
  for (int round = 0; round < options.rounds; ++round) {
    prefilled = {};
    const double begin = Now();
    prefilled = Must(PrefillRanked(model, ids, gates));
    seconds = std::min(seconds, Now() - begin);
  }
  std::printf("prefill %6d tokens, %-12s %10.1f ms\n", prompt, preset.c_str(), seconds * 1e3);
  for (int batch : options.batches) {
    auto cache =
        Must(RankedCache::Create(model.group(), model.kv_shape(),
                                 {.n_slots = batch,
                                  .max_rows = prompt + 1024,
                                  .memory_bytes = static_cast<size_t>(options.kv_memory_gb * (1 << 30)),
                                  .bounds_share = 0.25,
                                  .sliding_windows = model.shape().sliding_window}));
    RankedDecode decode(&model, cache.get());
    std::vector<std::unique_ptr<RankedSequence>> sequences;
    std::vector<RankedDecodeRow> rows;
    for (int i = 0; i < batch; ++i) {
      sequences.push_back(Must(ReceiveRanked(model, prefilled, gates, prompt, cache.get(), decode.queues())));
      rows.push_back({.kv = sequences.back().get(),
                      .selection = gates.selection.kind,
                      .token = Greedy(prefilled.logits),
                      .position = LogicalLen(PromptEnd(gates, prompt)),
                      .wants_logits = false});
    }
    double step = 1e30;
    for (int round = 0; round < options.rounds; ++round) {
      const double begin = Now();
      for (int i = 0; i < options.tokens; ++i) {
        for (auto& sequence : sequences)
          if (absl::Status room = sequence->ReserveAppend(decode.queues()); !room.ok()) Must<int>(room);
        const std::vector<DecodeResult> results = Must(decode.Run(rows));
        for (int j = 0; j < batch; ++j) {
          rows[j].token = results[j].token;
          ++rows[j].position;
        }
      }
      step = std::min(step, (Now() - begin) / options.tokens);
    }
    std::printf("decode  %6d rows,   %-12s batch %3d %8.3f ms\n", prompt, preset.c_str(), batch, step * 1e3);
    std::fflush(stdout);
  }
}

int Main(int argc, char** argv) {
  CLI::App app("Speed of one model over several ranks, without servers");
  Options options;
  app.add_option("model", options.path, "Hugging Face directory or GGUF file")->required();
  app.add_option("--device", options.device, "cpu, cuda, cuda:<index>");
  app.add_option("--tensor-parallel-size", options.ranks, "ranks");
  app.add_option("--prompt", options.prompts, "tokens of the prompt")->delimiter(',');
  app.add_option("--batch", options.batches, "sequences of a decode step")->delimiter(',');
  app.add_option("--tokens", options.tokens, "tokens to generate in a round, at most 256 in all rounds");
  app.add_option("--preset", options.presets, "compression presets")->delimiter(',');
  app.add_option("--budget", options.budget, "kept tokens, where a preset has a budget");
  app.add_option("--rounds", options.rounds, "runs, of which the fastest counts");
  app.add_option("--kv-memory", options.kv_memory_gb, "GB of KV pages, over all ranks");
  CLI11_PARSE(app, argc, argv);
  const ModelFiles files = Must(OpenModel(options.path));
  auto group = Must(MakeBackendGroup(options.device, {}, options.ranks));
  double begin = Now();
  auto model = Must(RankedModel::Load(files.shape, files.weights, group.get(), {}));
  std::printf("%s, %s, loaded in %.1f s\n", model->shape().name.c_str(), group->description().c_str(),
              Now() - begin);
  for (int rows : {1, 8, 32, 1024}) BenchSum(*model, rows, options.rounds);
  for (int prompt : options.prompts)
    for (const std::string& preset : options.presets) BenchPrompt(*model, options, preset, prompt);
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
