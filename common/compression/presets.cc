#include <string>
#include <vector>

#include "common/compression/compression_spec.h"

namespace sluice {
namespace {

constexpr Pooling kMax7 = {.kind = Pooling::kMax, .kernel = 7};
constexpr Pooling kMax15 = {.kind = Pooling::kMax, .kernel = 15};
constexpr Pooling kMax63 = {.kind = Pooling::kMax, .kernel = 63};
constexpr Pooling kFading = {.kind = Pooling::kFading, .kernel = 1, .after = 16, .before = 4};

CompressionSpec Gates(RetentionKind retention, SelectionKind selection, Pooling pooling,
                      HistoryKind history) {
  CompressionSpec spec;
  spec.retention = retention;
  spec.selection = selection;
  spec.window = 32;
  spec.pooling = pooling;
  spec.history = history;
  return spec;
}

CompressionSpec Window8(CompressionSpec spec) {
  spec.window = 8;
  return spec;
}

CompressionSpec PoolPerHead(CompressionSpec spec) {
  spec.pool_per_head = true;
  return spec;
}

CompressionSpec Tsp(CompressionSpec spec) {
  spec.propagation = PropagationKind::kTsp;
  spec.tsp_rate = 0.2;
  return spec;
}

CompressionSpec Rerun(CompressionSpec spec) {
  spec.propagation = PropagationKind::kRerun;
  return spec;
}

}  // namespace

absl::Span<const Preset> Presets() {
  using enum RetentionKind;
  using enum SelectionKind;
  using enum HistoryKind;
  // `full` leaves history open: gates set one by one over it decide (see ResolveGates).
  static const auto* const presets = new std::vector<Preset>{
      {"full", "no compression", {}},
      {"snapkv", "keeps the rows that the end of the prompt attends to",
       Gates(kSnapKv, kDense, kMax7, kEvict)},
      {"streaming_llm", "keeps the first rows and the last ones", Gates(kStreamingLlm, kDense, {}, kEvict)},
      {"h2o", "keeps the rows that the whole prompt attends to, and the last ones",
       Gates(kH2o, kDense, {}, kEvict)},
      {"pyramidkv", "snapkv with more rows in low layers than in high ones",
       Window8(Gates(kPyramidKv, kDense, kMax7, kEvict))},
      {"adakv", "snapkv whose heads share out a layer's budget", Gates(kAdaKv, kDense, kMax7, kEvict)},
      {"chunkkv", "snapkv that keeps whole chunks of neighbouring rows",
       Gates(kChunkKv, kDense, kMax15, kEvict)},
      {"fastkv", "snapkv behind a shorter prefill",
       Tsp(PoolPerHead(Window8(Gates(kSnapKv, kDense, kMax7, kEvict))))},
      {"gemfilter", "runs the tokens that the end of the prompt attends to as a prompt of their own",
       Rerun(Gates(kFull, kDense, kMax15, kEvict))},
      {"quest", "keeps everything, reads the pages whose bounds allow the largest scores",
       Gates(kFull, kQuest, {}, kKeep)},
      {"sparq", "keeps everything, reads the rows that score best in a few channels",
       Gates(kFull, kSparq, {}, kKeep)},
      {"exact_topk", "keeps everything, scores everything, reads the best rows: a yardstick",
       Gates(kFull, kExactTopK, {}, kKeep)},
      {"rocketkv", "keeps coarsely, then reads sparsely at every step", Gates(kSnapKv, kHsa, kMax63, kEvict)},
      {"rocketkv-mt", "rocketkv that remembers everything between turns",
       Gates(kSnapKv, kHsa, kMax63, kKeep)},
      {"sluice", "for single requests: shorter prefill, fading pooling, sparse reads",
       Tsp(Gates(kSnapKv, kHsa, kFading, kEvict))},
      {"sluice-mt", "for sessions: fading pooling, sparse reads, everything remembered",
       Gates(kSnapKv, kHsa, kFading, kKeep)},
  };
  return *presets;
}

std::vector<std::string> MethodNames() {
  std::vector<std::string> names;
  for (const Preset& preset : Presets()) names.push_back(preset.name);
  names.push_back(kCustomMethod);
  return names;
}

}  // namespace sluice
