#include <array>

#include "common/compression/compression_spec.h"

namespace sluice {
namespace {

constexpr Pooling kMax7 = {.kind = Pooling::kMax, .kernel = 7};
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

CompressionSpec Tsp(CompressionSpec spec) {
  spec.propagation = PropagationKind::kTsp;
  spec.tsp_rate = 0.2;
  return spec;
}

}  // namespace

absl::Span<const Preset> Presets() {
  using enum RetentionKind;
  using enum SelectionKind;
  using enum HistoryKind;
  // `full` leaves history open: gates set one by one over it decide (see ResolveGates).
  static const auto* const presets = new std::array<Preset, 7>{{
      {"full", "no compression", {}},
      {"snapkv", "keeps the rows that the end of the prompt attends to",
       Gates(kSnapKv, kDense, kMax7, kEvict)},
      {"streaming_llm", "keeps the first rows and the last ones", Gates(kStreamingLlm, kDense, {}, kEvict)},
      {"rocketkv", "keeps coarsely, then reads sparsely at every step", Gates(kSnapKv, kHsa, kMax63, kEvict)},
      {"rocketkv-mt", "rocketkv that remembers everything between turns",
       Gates(kSnapKv, kHsa, kMax63, kKeep)},
      {"sluice", "for single requests: shorter prefill, fading pooling, sparse reads",
       Tsp(Gates(kSnapKv, kHsa, kFading, kEvict))},
      {"sluice-mt", "for sessions: fading pooling, sparse reads, everything remembered",
       Gates(kSnapKv, kHsa, kFading, kKeep)},
  }};
  return *presets;
}

}  // namespace sluice
