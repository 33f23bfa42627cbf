// What must not change a result: batching, splitting a prompt, the decode cache, gates at their identity.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "common/compression/compression_spec.h"
#include "tests/support/local_engine.h"
#include "tests/support/needle_prompts.h"
#include "tests/support/test_model.h"

namespace sluice {
namespace {

using Tokens = std::vector<int32_t>;

Tokens Encode(const std::string& text) {
  return *NeedleTokenizer().Encode(text, {.parse_special = true, .add_special = false});
}

// Eight prompts of different kinds and lengths, 20 to 1400 tokens.
std::vector<Tokens> Prompts() {
  std::vector<Tokens> prompts;
  const auto golden = nlohmann::json::parse(ReadFile(SourcePath("models/needle-14m/golden.json")));
  for (const auto& prompt : golden["prompts"]) prompts.push_back(prompt["ids"]);
  prompts.push_back(MakeNeedlePrompt(700, 0.3, 1).ids);
  prompts.push_back(Encode("<|endoftext|>It was a dark and stormy night"));
  return prompts;
}

ResolvedGates Resolve(const CompressionSpec& spec, int prompt_tokens, int max_tokens) {
  auto gates = ResolveFor(NeedleModel().shape(), spec, prompt_tokens, max_tokens);
  EXPECT_TRUE(gates.ok()) << gates.status();
  return *gates;
}

CompressionSpec Preset(const char* name, int budget) {
  CompressionSpec spec;
  spec.preset = name;
  spec.budget_tokens = budget;
  spec.min_prompt_tokens = 0;
  return spec;
}

Tokens MustGenerate(const LocalRequest& request, int n) {
  auto tokens = Generate(NeedleModel(), request, n);
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  return tokens.ok() ? *tokens : Tokens();
}

// On a CPU bit for bit; on a GPU the order of a product's sums depends on the number of rows
// (kernels/README.md).
void ExpectSameLogits(const std::vector<float>& a, const std::vector<float>& b) {
  if (TestDevice() == "cpu") {
    EXPECT_EQ(a, b);
    return;
  }
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], LogitTolerance(DType::kBF16, BestCpuIsa())) << i;
}

// `token` is the best of `logits`; on a GPU, one that rounding may have made the best.
void ExpectBest(const std::vector<float>& logits, int32_t token) {
  const float slack = TestDevice() == "cpu" ? 0 : LogitTolerance(DType::kBF16, BestCpuIsa());
  EXPECT_GE(logits[token], *std::max_element(logits.begin(), logits.end()) - slack);
}

GreedyRun MustDecode(const LocalRequest& request, int n) {
  const Model& model = NeedleModel();
  auto prefill = PrefillTogether(model, {request});
  EXPECT_TRUE(prefill.ok()) << prefill.status();
  if (!prefill.ok()) return {};
  auto run = DecodeGreedily(model, (*prefill)[0], request, n, /*to_end=*/false);
  EXPECT_TRUE(run.ok()) << run.status();
  return run.ok() ? *std::move(run) : GreedyRun();
}

// On a GPU every attention sums in an order of its own: up to a token of which `want` is not sure.
void ExpectSameTokens(const GreedyRun& want, const Tokens& got) {
  if (TestDevice() == "cpu") {
    EXPECT_EQ(got, want.tokens);
    return;
  }
  ASSERT_EQ(got.size(), want.tokens.size());
  const auto [one, other] = std::mismatch(want.tokens.begin(), want.tokens.end(), got.begin());
  if (one == want.tokens.end()) return;
  const size_t at = one - want.tokens.begin();
  EXPECT_LT(want.MarginOver(at, *other), kUndecided) << "token " << at;
}

TEST(Equality, OnePassOverEightPromptsIsEightPasses) {
  std::vector<LocalRequest> requests;
  for (Tokens& ids : Prompts()) requests.push_back({.ids = std::move(ids)});
  auto together = PrefillTogether(NeedleModel(), requests);
  ASSERT_TRUE(together.ok()) << together.status();
  for (size_t i = 0; i < requests.size(); ++i) {
    auto alone = PrefillTogether(NeedleModel(), {requests[i]});
    ASSERT_TRUE(alone.ok());
    SCOPED_TRACE(i);
    ExpectSameLogits((*together)[i].logits, (*alone)[0].logits);
  }
}

TEST(Equality, DecodingEightSequencesTogetherIsDecodingEachAlone) {
  const std::vector<Tokens> prompts = Prompts();
  std::vector<LocalRequest> requests;
  for (size_t i = 0; i < prompts.size(); ++i) {
    // Kinds of selection alternate, so that a batch is sorted by kind and put back in order.
    constexpr const char* kPresets[] = {"full", "rocketkv", "quest", "sparq", "exact_topk"};
    const CompressionSpec spec = i % 5 == 0 ? CompressionSpec() : Preset(kPresets[i % 5], 128);
    requests.push_back({.ids = prompts[i], .gates = Resolve(spec, static_cast<int>(prompts[i].size()), 32)});
  }
  auto together = GenerateTogether(NeedleModel(), requests, 32);
  ASSERT_TRUE(together.ok()) << together.status();
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ((*together)[i], MustGenerate(requests[i], 32)) << "prompt " << i;
  }
}

TEST(Equality, AHistoryAndASuffixAreTheWholePrompt) {
  const Model& model = NeedleModel();
  const Tokens ids = MakeNeedlePrompt(1500, 0.4, 2).ids;
  auto whole = PrefillTogether(model, {{.ids = ids}});
  ASSERT_TRUE(whole.ok());
  const Tokens expected = MustGenerate({.ids = ids}, 16);
  for (int split : {1, 500, 1024, static_cast<int>(ids.size()) - 1}) {
    SCOPED_TRACE(split);
    auto prefix = PrefillTogether(model, {{.ids = {ids.begin(), ids.begin() + split}}}, true);
    ASSERT_TRUE(prefix.ok()) << prefix.status();
    EXPECT_EQ((*prefix)[0].sink->new_rows, split);
    CollectedHistory history(&model, (*prefix)[0].sink.get());
    const LocalRequest suffix{
        .ids = {ids.begin() + split, ids.end()}, .history = &history, .first_position = split};
    auto rest = PrefillTogether(model, {suffix});
    ASSERT_TRUE(rest.ok()) << rest.status();
    ExpectSameLogits((*rest)[0].logits, (*whole)[0].logits);
    for (int layer = 0; layer < model.shape().n_layers; ++layer) {
      for (int head = 0; head < model.shape().n_kv_heads; ++head) {
        EXPECT_EQ(KeptPositions(model, (*rest)[0].sink->kept[layer], head),
                  KeptPositions(model, (*whole)[0].sink->kept[layer], head));
      }
    }
    EXPECT_EQ(MustGenerate(suffix, 16), expected);
  }
}

TEST(Equality, DecodingIsPrefillOfTheGrowingPrompt) {
  Tokens ids = MakeNeedlePrompt(600, 0.5, 3).ids;
  const Tokens decoded = MustGenerate({.ids = ids}, 24);
  for (int32_t token : decoded) {
    auto prefill = PrefillTogether(NeedleModel(), {{.ids = ids}});
    ASSERT_TRUE(prefill.ok());
    ExpectBest((*prefill)[0].logits, token);
    ids.push_back(token);
  }
}

TEST(Equality, RocketKvWithABudgetForEverythingIsFull) {
  constexpr int kTokens = 32;
  for (const Tokens& ids : Prompts()) {
    const int n = static_cast<int>(ids.size());
    const ResolvedGates gates = Resolve(Preset("rocketkv", 2 * (n + kTokens)), n, kTokens);
    ASSERT_EQ(gates.selection.kind, SelectionKind::kHsa);
    ExpectSameTokens(MustDecode({.ids = ids}, kTokens), MustGenerate({.ids = ids, .gates = gates}, kTokens));
  }
}

TEST(Equality, EveryPresetWithABudgetForEverythingIsFull) {
  constexpr int kTokens = 16;
  const Tokens ids = MakeNeedlePrompt(700, 0.4, 8).ids;
  const int n = static_cast<int>(ids.size());
  const GreedyRun full = MustDecode({.ids = ids}, kTokens);
  for (const auto& preset : Presets()) {
    SCOPED_TRACE(preset.name);
    CompressionSpec spec = Preset(preset.name, 2 * (n + kTokens));
    if (preset.spec.propagation == PropagationKind::kTsp) spec.tsp_rate = 1;
    ExpectSameTokens(full, MustGenerate({.ids = ids, .gates = Resolve(spec, n, kTokens)}, kTokens));
  }
}

// Every head of every layer holds rows of its own number (adakv), or every layer does (pyramidkv): decode
// goes on at the same position in all of them.
TEST(Equality, RaggedRowsDecodeAsTheirOwnNumberSays) {
  const Model& model = NeedleModel();
  const Tokens ids = MakeNeedlePrompt(1000, 0.5, 6).ids;
  const int n = static_cast<int>(ids.size());
  for (const char* name : {"adakv", "pyramidkv"}) {
    SCOPED_TRACE(name);
    const ResolvedGates gates = Resolve(Preset(name, 128), n, 16);
    auto prefill = PrefillTogether(model, {{.ids = ids, .gates = gates}});
    ASSERT_TRUE(prefill.ok()) << prefill.status();
    auto decoder = LocalDecoder::Create(model);
    ASSERT_TRUE(decoder.ok()) << decoder.status();
    auto kv = (*decoder)->Receive((*prefill)[0], gates, n);
    ASSERT_TRUE(kv.ok()) << kv.status();
    DecodeRow row{.kv = kv->get(), .token = Greedy((*prefill)[0].logits), .position = LogicalLen(n)};
    ASSERT_TRUE((*decoder)->Step({row}).ok());
    std::set<int> lengths;
    int total = 0;
    for (int layer = 0; layer < model.shape().n_layers; ++layer) {
      for (int head = 0; head < model.shape().n_kv_heads; ++head) {
        const KeptLayer& kept = (*prefill)[0].sink->kept[layer];
        EXPECT_EQ((*kv)->kept(LayerId(layer), head), kept.kept[head] + 1);
        EXPECT_EQ(KeptPositions(model, kept, head).back(), n - 1);
        lengths.insert(kept.kept[head]);
        total += kept.kept[head];
      }
    }
    EXPECT_GT(lengths.size(), 3u);
    EXPECT_EQ(total, 128 * model.shape().n_layers * model.shape().n_kv_heads);
  }
}

TEST(Equality, SelectionsThatReadEverythingAreFull) {
  constexpr int kTokens = 32;
  for (const Tokens& ids : Prompts()) {
    const int n = static_cast<int>(ids.size());
    const GreedyRun full = MustDecode({.ids = ids}, kTokens);
    for (const char* preset : {"quest", "sparq", "exact_topk"}) {
      SCOPED_TRACE(preset);
      CompressionSpec spec = Preset(preset, n + kTokens + 16);  // quest: a last page that is not full
      if (spec.preset == "sparq") spec.selection_channels = NeedleModel().shape().head_dim;
      const ResolvedGates gates = Resolve(spec, n, kTokens);
      ASSERT_NE(gates.selection.kind, SelectionKind::kDense);
      ExpectSameTokens(full, MustGenerate({.ids = ids, .gates = gates}, kTokens));
    }
  }
}

TEST(Equality, PropagationOfEveryRowIsNoPropagation) {
  const Tokens ids = MakeNeedlePrompt(1000, 0.6, 4).ids;
  const int n = static_cast<int>(ids.size());
  CompressionSpec spec;
  spec.propagation = PropagationKind::kTsp;
  spec.tsp_rate = 1;
  spec.min_prompt_tokens = 0;
  const ResolvedGates gates = Resolve(spec, n, 32);
  ASSERT_EQ(gates.propagation.kind, PropagationKind::kTsp);
  ASSERT_EQ(gates.propagation.rows, n);
  auto with = PrefillTogether(NeedleModel(), {{.ids = ids, .gates = gates}});
  auto without = PrefillTogether(NeedleModel(), {{.ids = ids}});
  ASSERT_TRUE(with.ok() && without.ok());
  EXPECT_EQ((*with)[0].logits, (*without)[0].logits);
}

// The last layer asks attention for its last rows only, and other layers for all: a window in every layer
// must not change what a query sees.
TEST(Equality, TheLastLayersShortcutChangesNothing) {
  const Tokens ids = MakeNeedlePrompt(1000, 0.2, 5).ids;
  const int n = static_cast<int>(ids.size());
  auto plain = PrefillTogether(NeedleModel(), {{.ids = ids}});  // one query row in the last layer
  ASSERT_TRUE(plain.ok());
  // Windows of 32 and of nearly all rows: 32 and n - 1 query rows.
  for (int window : {32, n - 1}) {
    ResolvedGates gates;
    gates.retention.kind = RetentionKind::kSnapKv;
    gates.retention.budget = n - 1;
    gates.retention.observation.window = window;
    auto windowed = PrefillTogether(NeedleModel(), {{.ids = ids, .gates = gates}});
    ASSERT_TRUE(windowed.ok()) << windowed.status();
    EXPECT_EQ((*windowed)[0].logits, (*plain)[0].logits);
  }
}

TEST(Equality, PositionsGoOnFromTheTokensSeenNotFromTheRowsKept) {
  const Model& model = NeedleModel();
  const Tokens ids = MakeNeedlePrompt(1000, 0.5, 6).ids;
  const int n = static_cast<int>(ids.size());
  const ResolvedGates gates = Resolve(Preset("snapkv", 128), n, 16);
  auto prefill = PrefillTogether(model, {{.ids = ids, .gates = gates}});
  ASSERT_TRUE(prefill.ok());
  for (const KeptLayer& layer : (*prefill)[0].sink->kept) {
    EXPECT_THAT(layer.kept, ::testing::Each(128));
    EXPECT_EQ(KeptPositions(model, layer, 1).back(), n - 1);
  }
  auto decoder = LocalDecoder::Create(model);
  ASSERT_TRUE(decoder.ok()) << decoder.status();
  auto kv = (*decoder)->Receive((*prefill)[0], gates, n);
  ASSERT_TRUE(kv.ok()) << kv.status();
  DecodeRow row{.kv = kv->get(), .token = Greedy((*prefill)[0].logits), .position = LogicalLen(n)};
  ASSERT_TRUE((*decoder)->Step({row}).ok());
  EXPECT_EQ((*kv)->kept(LayerId(0), 0), 129);
  // The next row stands at n: a row at n - 1 or below would not ascend.
  row.position = LogicalLen(n + 1);
  ASSERT_TRUE((*decoder)->Step({row}).ok());
  EXPECT_EQ((*kv)->kept(LayerId(7), 1), 130);
}

}  // namespace
}  // namespace sluice
