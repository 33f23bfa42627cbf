// What a prefill and a decode server joined by a transport must equal, and what they must give back.
#include "tests/support/worker_pair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "common/compression/compression_spec.h"
#include "common/engine/logprobs.h"
#include "common/model/gate_context.h"
#include "tests/support/local_engine.h"
#include "tests/support/needle_prompts.h"
#include "tests/support/test_model.h"

namespace sluice {
namespace {

ResolvedGates Gates(const std::string& preset, int budget, int prompt_tokens, int turn_tokens,
                    int max_tokens) {
  CompressionSpec spec;
  spec.preset = preset;
  if (preset != "full") spec.budget_tokens = budget;
  spec.min_prompt_tokens = 0;
  spec.split_max_tokens = 32;
  GateContext context = GateContextOf(NeedleModel().shape(), prompt_tokens, max_tokens);
  context.turn_tokens = turn_tokens;
  absl::StatusOr<ResolvedGates> gates = ResolveGates(spec, context, nullptr);
  EXPECT_TRUE(gates.ok()) << gates.status();
  return *gates;
}

// Of one rank: servers may share it.
const RankedModel& NeedleServer() {
  static const RankedTestModel* loaded = new RankedTestModel(LoadRanked(SourcePath("models/needle-14m"), 1));
  return *loaded->model;
}

std::vector<int32_t> Prose(int tokens, uint32_t seed) {
  std::vector<int32_t> ids = MakeNeedlePrompt(2000, 0.5, seed).ids;
  ids.resize(tokens);
  return ids;
}

PairRequest Ask(const std::vector<int32_t>& ids, const std::string& preset, int budget, int max_tokens) {
  PairRequest request;
  request.prompt_ids = ids;
  request.gates =
      Gates(preset, budget, static_cast<int>(ids.size()), static_cast<int>(ids.size()), max_tokens);
  request.sampling.max_tokens = max_tokens;
  return request;
}

class WorkerPair : public testing::TestWithParam<std::string> {
 protected:
  WorkerPair() : decode_(NeedleServer(), GetParam()), prefill_(NeedleServer(), GetParam()) {}
  ~WorkerPair() override { EXPECT_TRUE(WaitIdle(prefill_, decode_)) << "something leaked"; }

  std::vector<int32_t> Run(const PairRequest& request) {
    absl::StatusOr<PairReply> reply = RunPair(prefill_, decode_, request);
    EXPECT_TRUE(reply.ok()) << reply.status();
    if (!reply.ok()) return {};
    last_ = *reply;
    return reply->ids;
  }
  static std::vector<int32_t> Local(const PairRequest& request) {
    auto ids = Generate(NeedleModel(), {request.prompt_ids, request.gates}, request.sampling.max_tokens);
    EXPECT_TRUE(ids.ok()) << ids.status();
    return ids.ok() ? *ids : std::vector<int32_t>{};
  }

  // The engine's own logits at every step of a reply, whoever chose its tokens.
  static std::vector<std::vector<float>> LogitsBefore(const PairRequest& request,
                                                      const std::vector<int32_t>& reply) {
    const LocalRequest local{.ids = request.prompt_ids, .gates = request.gates};
    const int prompt = static_cast<int>(local.ids.size());
    auto prefill = PrefillTogether(NeedleModel(), {local});
    auto decoder = LocalDecoder::Create(NeedleModel(), /*n_slots=*/1);
    EXPECT_TRUE(prefill.ok() && decoder.ok());
    auto kv = (*decoder)->Receive((*prefill)[0], local.gates, prompt);
    EXPECT_TRUE(kv.ok()) << kv.status();
    std::vector<std::vector<float>> logits = {(*prefill)[0].logits};
    for (size_t i = 0; i + 1 < reply.size(); ++i) {
      auto next = (*decoder)->Step({{.kv = kv->get(),
                                     .selection = local.gates.selection.kind,
                                     .token = reply[i],
                                     .position = LogicalLen(prompt + static_cast<int>(i))}});
      EXPECT_TRUE(next.ok()) << next.status();
      logits.emplace_back((*next)[0].logits.begin(), (*next)[0].logits.end());
    }
    return logits;
  }
  void ExpectLogprobs(const PairRequest& request, const std::vector<std::vector<float>>& logits) {
    ASSERT_EQ(last_.logprobs.size(), logits.size());
    for (size_t i = 0; i < logits.size(); ++i) {
      const TokenLogprobs expected = LogprobsOf(logits[i], last_.ids[i], request.sampling.top_logprobs);
      EXPECT_EQ(last_.logprobs[i].chosen(), expected.chosen) << i;
      EXPECT_THAT(last_.logprobs[i].top_ids(), testing::ElementsAreArray(expected.top_ids));
      EXPECT_THAT(last_.logprobs[i].top(), testing::ElementsAreArray(expected.top));
    }
  }

  TestDecode decode_;
  TestPrefill prefill_;
  PairReply last_;
};

TEST_P(WorkerPair, EqualsTheEngineWithoutServersOrWire) {
  const NeedlePrompt prompt = MakeNeedlePrompt(1500, 0.4, 7);
  for (const Preset& preset : Presets()) {
    SCOPED_TRACE(preset.name);
    const PairRequest request = Ask(prompt.ids, preset.name, 256, 12);
    EXPECT_EQ(Run(request), Local(request));
    EXPECT_EQ(last_.finish, "length");
  }
}

TEST_P(WorkerPair, OnlyTheKeptRowsCrossTheWire) {
  const NeedlePrompt prompt = MakeNeedlePrompt(1500, 0.4, 8);
  const KvShape& shape = NeedleModel().kv_shape();
  Run(Ask(prompt.ids, "full", 0, 4));
  EXPECT_EQ(last_.handed_off.kept().bytes_kept(), last_.handed_off.kept().bytes_full());
  EXPECT_EQ(last_.handed_off.kept().bytes_full(), shape.token_bytes() * prompt.ids.size());
  Run(Ask(prompt.ids, "snapkv", 128, 4));
  EXPECT_EQ(last_.handed_off.kept().kept_min(), 128);
  EXPECT_EQ(last_.handed_off.kept().bytes_kept(), shape.token_bytes() * 128);
  EXPECT_EQ(last_.handed_off.wire_bytes(),
            (shape.token_bytes() + 4u * shape.n_layers * shape.n_kv_heads) * 128);
}

TEST_P(WorkerPair, LoadIsToldWhileAPromptRunsAndItsRateAfterwards) {
  const PairRequest request = Ask(Prose(1500, 4), "full", 0, 2);
  EXPECT_EQ(prefill_.loop().tokens_per_second(), 0);
  std::atomic<bool> done{false};
  int64_t most_tokens = 0, most_bytes = 0;
  std::thread watch([&] {
    while (!done) {
      most_tokens = std::max(most_tokens, prefill_.loop().queued_tokens());
      most_bytes = std::max(most_bytes, prefill_.send_loop().bytes_in_flight());
      absl::SleepFor(absl::Microseconds(200));
    }
  });
  Run(request);
  done = true;
  watch.join();
  EXPECT_EQ(most_tokens, 1500);
  const int64_t kv = static_cast<int64_t>(NeedleModel().kv_shape().token_bytes()) * 1500;
  EXPECT_GT(most_bytes, 0);
  EXPECT_LE(most_bytes, kv);
  EXPECT_GT(prefill_.loop().tokens_per_second(), 0);
  ASSERT_TRUE(WaitIdle(prefill_, decode_));
  EXPECT_EQ(prefill_.loop().queued_tokens(), 0);
  EXPECT_EQ(prefill_.send_loop().bytes_in_flight(), 0);
}

TEST_P(WorkerPair, EightAtOnceEqualEightSingles) {
  std::vector<PairRequest> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(Ask(Prose(300 + 90 * i, 20 + i), i % 2 == 0 ? "full" : "rocketkv", 128, 10));
  }
  std::vector<std::vector<int32_t>> alone;
  for (const PairRequest& request : requests) alone.push_back(Run(request));
  EXPECT_EQ(RunTogether(prefill_, decode_, requests), alone);
}

TEST_P(WorkerPair, AWarmTurnEqualsAColdOneAndComputesOnlyItsTail) {
  std::vector<int32_t> first = Prose(900, 3);
  PairRequest turn1 = Ask(first, "full", 0, 8);
  turn1.gates.history = HistoryKind::kKeep;
  turn1.session_id = "s";
  turn1.turn_id = "t1";
  std::vector<int32_t> answer = Run(turn1);
  EXPECT_EQ(last_.first.cached_tokens(), 0);

  std::vector<int32_t> second = first;
  second.insert(second.end(), answer.begin(), answer.end());
  const std::vector<int32_t> more = Prose(500, 4);
  second.insert(second.end(), more.begin(), more.end());
  PairRequest turn2 = Ask(second, "full", 0, 8);
  turn2.gates.history = HistoryKind::kKeep;
  const std::vector<int32_t> cold = Run(turn2);
  turn2.session_id = "s";
  turn2.turn_id = "t2";
  turn2.parent_turn_id = "t1";
  const std::vector<int32_t> warm = Run(turn2);
  EXPECT_EQ(last_.first.cached_tokens(),
            static_cast<int>(first.size()) / PrefixTree::kBlockTokens * PrefixTree::kBlockTokens);
  EXPECT_EQ(last_.first.history_outcome(), "warm");
  EXPECT_EQ(warm, cold);
}

TEST_P(WorkerPair, AnEvictedHistoryStandsOnItsKeptSet) {
  const NeedlePrompt prompt = MakeNeedlePrompt(1200, 0.5, 5);
  PairRequest turn1 = Ask(prompt.ids, "rocketkv", 256, 8);
  turn1.session_id = "s";
  turn1.turn_id = "t1";
  std::vector<int32_t> second = prompt.ids;
  for (int32_t id : Run(turn1)) second.push_back(id);
  second.insert(second.end(), prompt.ids.end() - 64, prompt.ids.end());
  PairRequest turn2 = turn1;
  turn2.prompt_ids = second;
  turn2.turn_id = "t2";
  turn2.parent_turn_id = "t1";
  Run(turn2);
  EXPECT_EQ(last_.first.cached_tokens(), static_cast<int>(prompt.ids.size()));
  EXPECT_EQ(last_.first.history_outcome(), "warm");
  turn2.parent_turn_id = "unknown";
  turn2.turn_id = "t3";
  Run(turn2);
  EXPECT_EQ(last_.first.cached_tokens(), 0);
  EXPECT_EQ(last_.first.history_outcome(), "cold");
}

// What a rerun keeps is renumbered: the next turn begins from its tokens.
TEST_P(WorkerPair, ARerunIsNotRemembered) {
  const NeedlePrompt prompt = MakeNeedlePrompt(1200, 0.5, 5);
  PairRequest turn1 = Ask(prompt.ids, "gemfilter", 256, 8);
  turn1.session_id = "s";
  turn1.turn_id = "t1";
  std::vector<int32_t> second = prompt.ids;
  for (int32_t id : Run(turn1)) second.push_back(id);
  EXPECT_EQ(last_.handed_off.kept().kept_min(), 256);
  second.insert(second.end(), prompt.ids.end() - 64, prompt.ids.end());
  PairRequest turn2 = turn1;
  turn2.prompt_ids = second;
  turn2.turn_id = "t2";
  turn2.parent_turn_id = "t1";
  EXPECT_EQ(Run(turn2), Local(turn2));
  EXPECT_EQ(last_.first.cached_tokens(), 0);
  EXPECT_EQ(last_.first.history_outcome(), "cold");
}

TEST_P(WorkerPair, ATurnOfOneTokenHandsNothingOff) {
  const PairRequest request = Ask(Prose(500, 6), "full", 0, 1);
  EXPECT_EQ(Run(request).size(), 1u);
  EXPECT_EQ(last_.finish, "length");
  EXPECT_EQ(last_.handed_off.wire_bytes(), 0u);
}

TEST_P(WorkerPair, AStopIdEndsGeneration) {
  PairRequest request = Ask(Prose(500, 9), "full", 0, 16);
  const std::vector<int32_t> all = Run(request);
  ASSERT_GE(all.size(), 6u);
  request.sampling.stop_ids = {all[5]};
  const std::vector<int32_t> stopped = Run(request);
  const auto first = std::find(all.begin(), all.end(), all[5]);
  EXPECT_EQ(stopped, std::vector<int32_t>(all.begin(), first + 1));
  EXPECT_EQ(last_.finish, "stop");
}

TEST_P(WorkerPair, LogprobsAreOfTheRawLogitsHoweverATokenIsChosen) {
  const NeedlePrompt prompt = MakeNeedlePrompt(600, 0.4, 11);
  PairRequest request = Ask(prompt.ids, "rocketkv", 128, 10);
  const std::vector<int32_t> greedy = Run(request);
  ASSERT_EQ(greedy.size(), 10u);
  EXPECT_TRUE(last_.logprobs.empty());
  request.sampling.logprobs = true;
  request.sampling.top_logprobs = 7;
  EXPECT_EQ(Run(request), greedy);
  ExpectLogprobs(request, LogitsBefore(request, greedy));

  // Nine tokens are forced; the last one is drawn, with every rule there is.
  const std::vector<int32_t> likely = {last_.logprobs[9].top_ids().begin(),
                                       last_.logprobs[9].top_ids().end()};
  const auto masked = std::find_if(likely.begin(), likely.end(), [&](int32_t id) {
    return std::find(greedy.begin(), greedy.end(), id) == greedy.end();
  });
  ASSERT_NE(masked, likely.end());
  SamplingParams& sampling = request.sampling;
  sampling.temperature = 1.5f;
  sampling.top_k = 3;
  sampling.repetition_penalty = 1.7f;
  sampling.presence_penalty = 2;
  sampling.min_tokens = 10;
  sampling.stop_ids = {*masked};
  sampling.forced_ids.assign(greedy.begin(), greedy.end() - 1);
  const std::vector<int32_t> drawn = Run(request);
  ASSERT_EQ(drawn.size(), 10u);
  EXPECT_TRUE(std::equal(drawn.begin(), drawn.end() - 1, greedy.begin()));
  EXPECT_NE(drawn[9], *masked);
  ExpectLogprobs(request, LogitsBefore(request, drawn));
}

TEST_P(WorkerPair, ForcedTokensAreWhatTheModelGoesOnFrom) {
  const std::vector<int32_t> ids = Prose(700, 12);
  PairRequest request = Ask({ids.begin(), ids.begin() + 400}, "snapkv", 128, 40);
  request.sampling.forced_ids.assign(ids.begin() + 400, ids.begin() + 430);
  request.sampling.logprobs = true;
  request.sampling.top_logprobs = 4096;
  const std::vector<int32_t> reply = Run(request);
  ASSERT_EQ(reply.size(), 40u);
  EXPECT_TRUE(std::equal(ids.begin() + 400, ids.begin() + 430, reply.begin()));
  const std::vector<std::vector<float>> logits = LogitsBefore(request, reply);
  ExpectLogprobs(request, logits);
  int chosen_too = 0;
  for (size_t i = 0; i < reply.size(); ++i) {
    chosen_too += reply[i] == Greedy(logits[i]);
    if (i >= 30) {
      EXPECT_EQ(reply[i], Greedy(logits[i])) << i;
    }
  }
  EXPECT_LT(chosen_too, 40) << "prose that the model would not have said by itself";
}

TEST_P(WorkerPair, ABiasMakesATokenComeAndLeavesItsLogprobAlone) {
  const NeedlePrompt prompt = MakeNeedlePrompt(600, 0.4, 14);
  PairRequest request = Ask(prompt.ids, "rocketkv", 128, 6);
  request.sampling.logprobs = true;
  request.sampling.top_logprobs = 1;
  const std::vector<int32_t> greedy = Run(request);
  ASSERT_EQ(greedy.size(), 6u);
  request.sampling.logit_bias = {{100, 100}};
  EXPECT_EQ(Run(request), std::vector<int32_t>(6, 100));
  ExpectLogprobs(request, LogitsBefore(request, last_.ids));
  EXPECT_EQ(last_.logprobs[0].top_ids(0), greedy[0]);
  EXPECT_LT(last_.logprobs[0].chosen(), last_.logprobs[0].top(0));
  // What is banned does not come, first or later; with a penalty, too.
  request.sampling.logit_bias = {{greedy[0], -100}, {greedy[1], -100}};
  request.sampling.presence_penalty = 0.5f;
  for (int32_t id : Run(request)) {
    EXPECT_NE(id, greedy[0]);
    EXPECT_NE(id, greedy[1]);
  }
}

TEST_P(WorkerPair, AForcedStopIdEndsGenerationAndAForeignOneIsRefused) {
  PairRequest request = Ask(Prose(300, 13), "full", 0, 10);
  request.sampling.stop_ids = {4095};
  request.sampling.forced_ids = {5, 6, 4095};
  EXPECT_EQ(Run(request), request.sampling.forced_ids);
  EXPECT_EQ(last_.finish, "stop");
  request.sampling.forced_ids = {4096};
  EXPECT_THAT(RunPair(prefill_, decode_, request).status().ToString(),
              testing::HasSubstr("sampling.forced_token_ids: 4096 is outside the vocabulary"));
}

TEST_P(WorkerPair, CancellationAtAnyMomentGivesEverythingBack) {
  PairRequest request = Ask(MakeNeedlePrompt(1500, 0.5, 10).ids, "full", 0, 20000);
  for (int ms : {0, 3, 20, 80, 200, 400}) {
    request.cancel_after = absl::Milliseconds(ms);
    absl::StatusOr<PairReply> reply = RunPair(prefill_, decode_, request);
    EXPECT_TRUE(absl::IsCancelled(reply.status())) << ms << " ms: " << reply.status();
    EXPECT_TRUE(WaitIdle(prefill_, decode_)) << "cancelled after " << ms << " ms";
  }
}

TEST_P(WorkerPair, ABadPromptIsRefusedByName) {
  PairRequest request = Ask({1, 2, 3}, "full", 0, 4);
  request.prompt_ids = {1, 1 << 20};
  EXPECT_THAT(RunPair(prefill_, decode_, request).status().ToString(),
              testing::HasSubstr("outside the vocabulary"));
}

INSTANTIATE_TEST_SUITE_P(Transports, WorkerPair, testing::Values("loopback", "ucx"),
                         [](const auto& info) { return info.param; });

TEST(WorkerPairMemory, ADecodeServerWithoutRoomSaysBusyAndKeepsNothing) {
  TestDecode decode(NeedleServer(), "loopback", size_t{2} << 20);
  TestPrefill prefill(NeedleServer(), "loopback");
  absl::StatusOr<PairReply> reply =
      RunPair(prefill, decode, Ask(MakeNeedlePrompt(1500, 0.5, 1).ids, "full", 0, 8));
  EXPECT_THAT(reply.status().ToString(), testing::HasSubstr("busy"));
  EXPECT_EQ(decode.cache().pages().used(), 0);
}

TEST(WorkerPairMemory, PagesThatNoRequestHoldsAreCountedAsOrphaned) {
  TestDecode decode(NeedleServer(), "loopback");
  const KvShape& shape = decode.cache().shape();
  auto leak = decode.cache().NewSequence({}, std::vector<int>(shape.n_layers * shape.n_kv_heads, 100));
  ASSERT_TRUE(leak.ok()) << leak.status();
  const auto orphaned_is = [&](int pages) {
    for (int i = 0; i < 100 * kPatience && decode.metrics().kv_blocks_orphaned.Value() != pages; ++i)
      absl::SleepFor(absl::Milliseconds(50));
    return decode.metrics().kv_blocks_orphaned.Value() == pages &&
           decode.metrics().kv_blocks_active.Value() == 0;
  };
  ASSERT_GT((*leak)->pages(), 0);
  EXPECT_TRUE(orphaned_is((*leak)->pages()));
  leak->reset();
  EXPECT_TRUE(orphaned_is(0));
}

TEST(WorkerPairMemory, APromptThatNeverFitsIsRefusedWithTheArithmetic) {
  PrefillLoopOptions options = TestPrefill::DefaultOptions();
  options.work_bytes = size_t{1} << 20;
  TestDecode decode(NeedleServer(), "loopback");
  TestPrefill prefill(NeedleServer(), "loopback", options);
  absl::StatusOr<PairReply> reply =
      RunPair(prefill, decode, Ask(MakeNeedlePrompt(1500, 0.5, 1).ids, "full", 0, 8));
  EXPECT_TRUE(absl::IsResourceExhausted(reply.status())) << reply.status();
  EXPECT_THAT(reply.status().ToString(), testing::HasSubstr("--work-memory"));
}

}  // namespace
}  // namespace sluice
