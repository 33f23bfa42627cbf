#include "common/engine/prefill_pass.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "common/model/model_dir.h"
#include "tests/support/counting_backend.h"
#include "tests/support/local_engine.h"
#include "tests/support/test_model.h"

namespace sluice {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

std::vector<int32_t> SomeIds(int n, int first = 5) {
  std::vector<int32_t> ids(n);
  for (int i = 0; i < n; ++i) ids[i] = (first + 37 * i) % 4000;
  return ids;
}

ResolvedGates SnapKv(int budget, int window) {
  ResolvedGates gates;
  gates.retention.kind = RetentionKind::kSnapKv;
  gates.retention.budget = budget;
  gates.retention.observation.window = window;
  gates.retention.observation.pooling.kernel = 7;
  return gates;
}

ResolvedGates Tsp(int layer, int rows, int window) {
  ResolvedGates gates;
  gates.propagation.kind = PropagationKind::kTsp;
  gates.propagation.layer = layer;
  gates.propagation.rows = rows;
  gates.propagation.observation.window = window;
  return gates;
}

ResolvedGates Rerun(int layer, int rows, int window) {
  ResolvedGates gates = Tsp(layer, rows, window);
  gates.propagation.kind = PropagationKind::kRerun;
  return gates;
}

// Counts and forgets.
class DiscardingSink final : public PrefillSink {
 public:
  bool wants_new_rows() const override { return wants; }
  absl::Status OnNewRows(LayerId, TensorView, TensorView, Ops&) override { return absl::OkStatus(); }
  absl::Status OnKept(LayerId, KeptLayer) override {
    ++layers;
    return layers > fail_after ? absl::UnavailableError("peer gone") : absl::OkStatus();
  }
  int layers = 0;
  int fail_after = 1000;
  bool wants = false;
};

absl::Status Refused(PrefillSequence sequence) {
  return PrefillPass::Create(&NeedleModel(), {std::move(sequence)}).status();
}

TEST(PrefillPass, RefusesWhatItCannotDo) {
  DiscardingSink sink;
  auto message = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(message(Refused({.ids = {}, .gates = {}, .sink = &sink})), HasSubstr("no tokens"));
  EXPECT_THAT(message(Refused({.ids = {4096}, .gates = {}, .sink = &sink})), HasSubstr("token id 4096"));
  EXPECT_THAT(message(Refused({.ids = {-1}, .gates = {}, .sink = &sink})), HasSubstr("token id -1"));
  EXPECT_THAT(message(Refused({.ids = {1, 2}, .first_position = 32767, .gates = {}, .sink = &sink})),
              HasSubstr("positions 32767 .. 32768: the context has 32768"));
  EXPECT_THAT(message(Refused({.ids = SomeIds(100), .gates = SnapKv(16, 32), .sink = &sink})),
              HasSubstr("retention budget 16"));
  EXPECT_THAT(message(Refused({.ids = SomeIds(100), .gates = Tsp(7, 50, 8), .sink = &sink})),
              HasSubstr("propagation layer 7"));
  EXPECT_THAT(message(Refused({.ids = SomeIds(100), .gates = Tsp(5, 4, 8), .sink = &sink})),
              HasSubstr("propagation rows 4"));
  EXPECT_THAT(message(Refused({.ids = SomeIds(100), .gates = Rerun(7, 50, 8), .sink = &sink})),
              HasSubstr("propagation layer 7"));
  sink.wants = true;
  EXPECT_THAT(message(Refused({.ids = SomeIds(100), .gates = Tsp(5, 50, 8), .sink = &sink})),
              HasSubstr("history that is kept"));
}

TEST(PrefillPass, RefusesGatesThatDoNotFitTheHistory) {
  const Model& model = NeedleModel();
  auto prefix = PrefillTogether(model, {{.ids = SomeIds(100)}}, /*wants_new_rows=*/true);
  ASSERT_TRUE(prefix.ok());
  const CollectedHistory history(&model, (*prefix)[0].sink.get());
  DiscardingSink sink;
  PrefillSequence sequence{
      .ids = SomeIds(10), .first_position = 100, .history = &history, .gates = {}, .sink = &sink};
  sequence.gates = Tsp(5, 50, 8);
  EXPECT_THAT(std::string(Refused(sequence).message()), HasSubstr("propagation after history"));
  sequence.gates = SnapKv(64, 32);
  EXPECT_THAT(std::string(Refused(sequence).message()), HasSubstr("larger than the 10 new tokens"));
  sequence.gates = SnapKv(64, 10);
  EXPECT_TRUE(Refused(sequence).ok());
}

TEST(PrefillPass, KeepsNoMoreThanTheCeilings) {
  const Model& model = NeedleModel();
  ResolvedGates gates = Tsp(5, 200, 32);
  gates.retention = SnapKv(256, 32).retention;
  for (int n : {100, 220, 600}) {
    auto prefill = PrefillTogether(model, {{.ids = SomeIds(n), .gates = gates}});
    ASSERT_TRUE(prefill.ok()) << prefill.status();
    const std::vector<int> ceilings = KeptCeilings(model.kv_shape(), gates, n);
    for (int layer = 0; layer < 8; ++layer) {
      const int expected = std::min({n, 256, layer > 5 ? 200 : n});
      EXPECT_THAT((*prefill)[0].sink->kept[layer].kept, Each(expected)) << n << " layer " << layer;
      EXPECT_EQ(ceilings[2 * layer], expected);
      EXPECT_EQ(ceilings[2 * layer + 1], expected);
    }
  }
}

TEST(PrefillPass, RowsThatGoOnKeepTheirPositionsAndTheWindow) {
  const Model& model = NeedleModel();
  auto prefill = PrefillTogether(model, {{.ids = SomeIds(500), .gates = Tsp(3, 120, 32)}});
  ASSERT_TRUE(prefill.ok()) << prefill.status();
  const auto& kept = (*prefill)[0].sink->kept;
  std::vector<int32_t> all(500);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(KeptPositions(model, kept[3], 0), all);
  const std::vector<int32_t> onward = KeptPositions(model, kept[4], 0);
  ASSERT_EQ(onward.size(), 120u);
  EXPECT_TRUE(std::is_sorted(onward.begin(), onward.end()));
  EXPECT_EQ(std::vector<int32_t>(onward.end() - 32, onward.end()),
            std::vector<int32_t>(all.end() - 32, all.end()));
  EXPECT_LT(onward.front(), 380);  // not merely the last rows
  for (int layer = 5; layer < 8; ++layer) EXPECT_EQ(KeptPositions(model, kept[layer], 1), onward);
}

// tsp and rerun choose the same rows in the same layer: what rerun makes of them must be what they make
// alone.
TEST(PrefillPass, RerunIsThePrefillOfTheChosenTokens) {
  const Model& model = NeedleModel();
  const std::vector<int32_t> ids = SomeIds(500);
  auto tsp = PrefillTogether(model, {{.ids = ids, .gates = Tsp(3, 120, 32)}});
  ASSERT_TRUE(tsp.ok()) << tsp.status();
  std::vector<int32_t> chosen;
  for (int32_t row : KeptPositions(model, (*tsp)[0].sink->kept[4], 0)) chosen.push_back(ids[row]);
  ASSERT_EQ(chosen.size(), 120u);

  const ResolvedGates gates = Rerun(3, 120, 32);
  auto rerun = PrefillTogether(model, {{.ids = ids, .gates = gates}});
  auto alone = PrefillTogether(model, {{.ids = chosen}});
  ASSERT_TRUE(rerun.ok() && alone.ok()) << rerun.status();
  EXPECT_EQ((*rerun)[0].logits, (*alone)[0].logits);
  std::vector<int32_t> renumbered(120);
  std::iota(renumbered.begin(), renumbered.end(), 0);
  ASSERT_EQ((*rerun)[0].sink->kept.size(), 8u);
  for (const KeptLayer& kept : (*rerun)[0].sink->kept) {
    EXPECT_EQ(KeptPositions(model, kept, 0), renumbered);
    EXPECT_EQ(KeptPositions(model, kept, 1), renumbered);
  }
  EXPECT_THAT(KeptCeilings(model.kv_shape(), gates, 500), Each(120));
  EXPECT_EQ(PromptEnd(gates, 500), 120);
  EXPECT_EQ(PromptEnd(gates, 100), 100);
  EXPECT_EQ(PromptEnd(Tsp(3, 120, 32), 500), 500);
  // Decode goes on behind the chosen tokens.
  auto tokens = Generate(model, {.ids = ids, .gates = gates}, 8), same = Generate(model, {.ids = chosen}, 8);
  ASSERT_TRUE(tokens.ok() && same.ok()) << tokens.status();
  EXPECT_EQ(*tokens, *same);
}

// A retention gate of a rerun sees the chosen tokens only, h2o all of their queries.
TEST(PrefillPass, RetentionAfterARerun) {
  for (RetentionKind kind : {RetentionKind::kSnapKv, RetentionKind::kH2o}) {
    ResolvedGates gates = Rerun(2, 200, 32);
    gates.retention = SnapKv(64, 32).retention;
    gates.retention.kind = kind;
    gates.retention.recent = 32;
    if (kind == RetentionKind::kH2o) gates.retention.observation.window = 600;
    auto prefill = PrefillTogether(NeedleModel(), {{.ids = SomeIds(600), .gates = gates}});
    ASSERT_TRUE(prefill.ok()) << prefill.status();
    for (const KeptLayer& kept : (*prefill)[0].sink->kept) EXPECT_THAT(kept.kept, Each(64));
    EXPECT_EQ(KeptPositions(NeedleModel(), (*prefill)[0].sink->kept[7], 1).back(), 199);
  }
}

TEST(PrefillPass, OnlyThoseThatRestartAreLookedAt) {
  const Model& model = NeedleModel();
  DiscardingSink rerun, plain;
  auto pass = PrefillPass::Create(&model, {{.ids = SomeIds(300), .gates = Rerun(4, 60, 8), .sink = &rerun},
                                           {.ids = SomeIds(90, 4), .gates = {}, .sink = &plain}});
  ASSERT_TRUE(pass.ok()) << pass.status();
  for (int layer = 0; layer < 5; ++layer) {
    ASSERT_TRUE((*pass)->RunLayer().ok());
    EXPECT_EQ((*pass)->layers_done(), 0);
    EXPECT_FALSE((*pass)->done());
  }
  EXPECT_EQ(rerun.layers + plain.layers, 0);
  ASSERT_TRUE((*pass)->RunLayer().ok());
  EXPECT_EQ((*pass)->layers_done(), 1);
  EXPECT_EQ(rerun.layers, 1);
  EXPECT_EQ(plain.layers, 1);
}

TEST(PrefillPass, CancellingWhoIsLookedAtLeavesTheOthersAlone) {
  const Model& model = NeedleModel();
  for (int cancel_after : {0, 2, 5, 7}) {
    DiscardingSink rerun, plain;
    auto pass = PrefillPass::Create(&model, {{.ids = SomeIds(300), .gates = Rerun(4, 60, 8), .sink = &rerun},
                                             {.ids = SomeIds(90, 4), .gates = {}, .sink = &plain}});
    ASSERT_TRUE(pass.ok()) << pass.status();
    for (int layer = 0; layer < cancel_after; ++layer) ASSERT_TRUE((*pass)->RunLayer().ok());
    (*pass)->Cancel(0);
    while (!(*pass)->done()) ASSERT_TRUE((*pass)->RunLayer().ok());
    EXPECT_EQ(plain.layers, 8);
    auto alone = PrefillTogether(model, {{.ids = SomeIds(90, 4)}});
    ASSERT_TRUE(alone.ok());
    EXPECT_EQ(*(*pass)->LastLogits(1), (*alone)[0].logits);
    EXPECT_EQ((*pass)->LastLogits(0).status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

// Layers in twos and threes: the last group may be short, and the first of each chooses.
TEST(PrefillPass, LayersReuseTheirLeadersRows) {
  const Model& model = NeedleModel();
  ResolvedGates gates = SnapKv(64, 32);
  gates.retention.kind = RetentionKind::kChunkKv;
  gates.retention.chunk = 10;
  for (int reuse : {1, 2, 3}) {
    gates.retention.reuse = reuse;
    auto prefill = PrefillTogether(model, {{.ids = SomeIds(400), .gates = gates}});
    ASSERT_TRUE(prefill.ok()) << prefill.status();
    const auto& kept = (*prefill)[0].sink->kept;
    for (int layer = 1; layer < 8; ++layer) {
      const bool same = KeptPositions(model, kept[layer], 0) == KeptPositions(model, kept[layer - 1], 0);
      EXPECT_EQ(same, layer % reuse != 0) << "reuse " << reuse << " layer " << layer;
    }
  }
}

// Sequences that lose rows at different layers share a pass: nothing of one shows in another.
TEST(PrefillPass, SequencesWithDifferentGatesDoNotDisturbEachOther) {
  const std::vector<LocalRequest> requests = {{.ids = SomeIds(300), .gates = Tsp(5, 60, 16)},
                                              {.ids = SomeIds(80, 9)},
                                              {.ids = SomeIds(400, 11), .gates = Tsp(2, 100, 32)},
                                              {.ids = SomeIds(200, 13), .gates = SnapKv(64, 32)},
                                              {.ids = SomeIds(350, 15), .gates = Rerun(3, 80, 16)},
                                              {.ids = SomeIds(250, 17), .gates = Rerun(6, 70, 8)}};
  auto together = PrefillTogether(NeedleModel(), requests);
  ASSERT_TRUE(together.ok()) << together.status();
  for (size_t i = 0; i < requests.size(); ++i) {
    auto alone = PrefillTogether(NeedleModel(), {requests[i]});
    ASSERT_TRUE(alone.ok());
    EXPECT_EQ((*together)[i].logits, (*alone)[0].logits) << i;
    for (int layer = 0; layer < 8; ++layer)
      EXPECT_EQ(KeptPositions(NeedleModel(), (*together)[i].sink->kept[layer], 1),
                KeptPositions(NeedleModel(), (*alone)[0].sink->kept[layer], 1));
  }
}

TEST(PrefillPass, ACancelledSequenceLeavesTheOthersAlone) {
  const Model& model = NeedleModel();
  DiscardingSink first, gone, last;
  auto pass = PrefillPass::Create(&model, {{.ids = SomeIds(50), .gates = {}, .sink = &first},
                                           {.ids = SomeIds(70, 3), .gates = {}, .sink = &gone},
                                           {.ids = SomeIds(90, 4), .gates = {}, .sink = &last}});
  ASSERT_TRUE(pass.ok()) << pass.status();
  for (int layer = 0; layer < 3; ++layer) ASSERT_TRUE((*pass)->RunLayer().ok());
  (*pass)->Cancel(1);
  while (!(*pass)->done()) ASSERT_TRUE((*pass)->RunLayer().ok());
  EXPECT_EQ((*pass)->layers_done(), 8);
  EXPECT_EQ(first.layers, 8);
  EXPECT_EQ(gone.layers, 3);
  EXPECT_EQ(last.layers, 8);
  EXPECT_EQ((*pass)->LastLogits(1).status().code(), absl::StatusCode::kFailedPrecondition);
  auto alone = PrefillTogether(model, {{.ids = SomeIds(90, 4)}});
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(*(*pass)->LastLogits(2), (*alone)[0].logits);
}

TEST(PrefillPass, IsDoneWhenEverySequenceIsCancelled) {
  DiscardingSink sink;
  auto pass = PrefillPass::Create(&NeedleModel(), {{.ids = SomeIds(50), .gates = {}, .sink = &sink}});
  ASSERT_TRUE(pass.ok());
  ASSERT_TRUE((*pass)->RunLayer().ok());
  EXPECT_EQ((*pass)->LastLogits(0).status().code(), absl::StatusCode::kFailedPrecondition);
  (*pass)->Cancel(0);
  EXPECT_TRUE((*pass)->done());
  EXPECT_EQ((*pass)->RunLayer().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(PrefillPass, AnErrorOfASinkEndsThePass) {
  DiscardingSink sink;
  sink.fail_after = 2;
  auto pass = PrefillPass::Create(&NeedleModel(), {{.ids = SomeIds(50), .gates = {}, .sink = &sink}});
  ASSERT_TRUE(pass.ok());
  EXPECT_TRUE((*pass)->RunLayer().ok());
  EXPECT_TRUE((*pass)->RunLayer().ok());
  EXPECT_EQ((*pass)->RunLayer(), absl::UnavailableError("peer gone"));
}

TEST(PrefillPass, ScratchBytesBoundsWhatAPassTakesAndNotWildly) {
  auto cpu = *NewCpuBackend({});
  CountingBackend backend(cpu.get());
  auto files = *OpenModel(SourcePath("models/needle-14m"));
  auto model = *Model::Load(files.shape, files.weights, &backend, {});
  ResolvedGates both = Tsp(5, 1800, 32);
  both.retention = SnapKv(64, 32).retention;
  for (const ResolvedGates& gates : {SnapKv(64, 32), both, Rerun(5, 600, 32)}) {
    for (int n : {64, 1000, 2500}) {
      DiscardingSink sink;
      const size_t before = backend.live();
      backend.ResetPeak();
      {
        auto pass = PrefillPass::Create(model.get(), {{.ids = SomeIds(n), .gates = gates, .sink = &sink}});
        ASSERT_TRUE(pass.ok());
        while (!(*pass)->done()) ASSERT_TRUE((*pass)->RunLayer().ok());
      }
      const size_t taken = backend.peak() - before;
      const size_t bound = PrefillPass::ScratchBytes(*model, n, 0);
      EXPECT_LE(taken, bound) << n;
      EXPECT_LE(bound, 2 * taken + (size_t{8} << 20)) << n;
      EXPECT_EQ(backend.live(), before);
    }
  }
}

}  // namespace
}  // namespace sluice
