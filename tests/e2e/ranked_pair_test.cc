// Prefill and decode servers of every pair of sizes: what they say is what one rank on each side says, what
// they hold they give back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "common/compression/compression_spec.h"
#include "tests/support/local_engine.h"
#include "tests/support/needle_prompts.h"
#include "tests/support/test_model.h"
#include "tests/support/worker_pair.h"

namespace sluice {
namespace {

const std::string kNeedle = SourcePath("models/needle-14m");
const std::string kHeads = SourcePath("tests/golden/models/qwen2-heads");  // four KV heads

// The ranks of a model are one loop's: each server has its own.
const RankedModel& ServerModel(const std::string& path, int ranks, const std::string& role) {
  static auto* loaded = new std::map<std::tuple<std::string, int, std::string>, RankedTestModel>;
  auto [it, added] = loaded->try_emplace({path, ranks, role});
  if (added) it->second = LoadRanked(path, ranks);
  return *it->second.model;
}

struct PairCase {
  const std::string* model;
  int prefill, decode;  // ranks
};

class RankedPair : public testing::TestWithParam<PairCase> {
 protected:
  RankedPair()
      : decode_(ServerModel(*GetParam().model, GetParam().decode, "decode"), "loopback"),
        prefill_(ServerModel(*GetParam().model, GetParam().prefill, "prefill"), "loopback") {}
  ~RankedPair() override { EXPECT_TRUE(WaitIdle(prefill_, decode_)) << "something leaked"; }

  static const Model& One() { return TestModel(*GetParam().model); }

  PairRequest Ask(const std::vector<int32_t>& ids, const std::string& preset, int max_tokens) {
    CompressionSpec spec;
    spec.preset = preset;
    if (preset != "full") spec.budget_tokens = 128;
    spec.min_prompt_tokens = 0;
    PairRequest request;
    request.prompt_ids = ids;
    auto gates = ResolveFor(One().shape(), spec, static_cast<int>(ids.size()), max_tokens);
    EXPECT_TRUE(gates.ok()) << gates.status();
    request.gates = *gates;
    request.gates.history = HistoryKind::kEvict;
    request.sampling.max_tokens = max_tokens;
    return request;
  }
  std::vector<int32_t> Run(const PairRequest& request) {
    absl::StatusOr<PairReply> reply = RunPair(prefill_, decode_, request);
    EXPECT_TRUE(reply.ok()) << reply.status();
    if (!reply.ok()) return {};
    last_ = *reply;
    return reply->ids;
  }
  static std::vector<int32_t> Local(const PairRequest& request) {
    auto ids = Generate(One(), {request.prompt_ids, request.gates}, request.sampling.max_tokens);
    EXPECT_TRUE(ids.ok()) << ids.status();
    return ids.ok() ? *ids : std::vector<int32_t>{};
  }
  static std::vector<int32_t> Prompt(int tokens, uint32_t seed) {
    std::vector<int32_t> ids = MakeNeedlePrompt(2000, 0.4, seed).ids;
    ids.resize(tokens);
    for (int32_t& id : ids) id %= One().shape().vocab;
    return ids;
  }

  TestDecode decode_;
  TestPrefill prefill_;
  PairReply last_;
};

TEST_P(RankedPair, SaysWhatOneRankSays) {
  for (const char* preset :
       {"full", "snapkv", "streaming_llm", "rocketkv", "sluice", "quest", "sparq", "exact_topk"}) {
    if (std::string(preset) == "sluice" && !One().shape().tsp_layer.has_value()) continue;
    SCOPED_TRACE(preset);
    // A GPU rounds activations: beyond nine tokens of this answer the model is undecided.
    const PairRequest request = Ask(Prompt(900, 7), preset, TestDevice() == "cpu" ? 10 : 9);
    EXPECT_EQ(Run(request), Local(request));
    EXPECT_EQ(last_.finish, "length");
  }
}

TEST_P(RankedPair, SeveralAtOnceEqualSingles) {
  std::vector<PairRequest> requests;
  for (int i = 0; i < 5; ++i)
    requests.push_back(Ask(Prompt(200 + 90 * i, 20 + i), i % 2 == 0 ? "full" : "rocketkv", 8));
  std::vector<std::vector<int32_t>> alone;
  for (const PairRequest& request : requests) alone.push_back(Run(request));
  EXPECT_EQ(RunTogether(prefill_, decode_, requests), alone);
}

// A kept history lies on every rank, an evicted one on the first.
TEST_P(RankedPair, BothKindsOfHistoryGoOn) {
  const std::vector<int32_t> first = Prompt(500, 3), more = Prompt(200, 4);
  for (const HistoryKind history : {HistoryKind::kKeep, HistoryKind::kEvict}) {
    const char* preset = history == HistoryKind::kKeep ? "full" : "snapkv";
    SCOPED_TRACE(preset);
    PairRequest turn1 = Ask(first, preset, 6);
    turn1.gates.history = history;
    turn1.session_id = preset;
    turn1.turn_id = std::string(preset) + "1";
    std::vector<int32_t> second = first;
    for (int32_t id : Run(turn1)) second.push_back(id);
    second.insert(second.end(), more.begin(), more.end());

    PairRequest turn2 = Ask(second, preset, 6);
    turn2.gates.history = history;
    const std::vector<int32_t> cold = Run(turn2);
    turn2.session_id = preset;
    turn2.turn_id = std::string(preset) + "2";
    turn2.parent_turn_id = turn1.turn_id;
    const std::vector<int32_t> warm = Run(turn2);
    EXPECT_EQ(last_.first.history_outcome(), "warm");
    EXPECT_EQ(warm.size(), 6u);
    if (history == HistoryKind::kKeep) {
      EXPECT_EQ(warm, cold);
    }
  }
}

// Of a model large enough to be cancelled in its work.
class RankedCancel : public RankedPair {};

TEST_P(RankedCancel, GivesEverythingBack) {
  PairRequest request = Ask(Prompt(900, 10), "full", 20000);
  for (int ms : {0, 20, 100}) {
    request.cancel_after = absl::Milliseconds(ms);
    absl::StatusOr<PairReply> reply = RunPair(prefill_, decode_, request);
    EXPECT_TRUE(absl::IsCancelled(reply.status())) << ms << " ms: " << reply.status();
    EXPECT_TRUE(WaitIdle(prefill_, decode_)) << "cancelled after " << ms << " ms";
  }
}

void AddPair(const PairCase& pair, std::vector<PairCase>* pairs) {
  if (std::max(pair.prefill, pair.decode) <= MostRanks()) pairs->push_back(pair);
}

std::vector<PairCase> NeedlePairs() {
  std::vector<PairCase> pairs;
  for (int prefill : {1, 2})
    for (int decode : {1, 2}) AddPair({&kNeedle, prefill, decode}, &pairs);
  return pairs;
}

std::vector<PairCase> Pairs() {
  std::vector<PairCase> pairs = NeedlePairs();
  for (int prefill : {1, 2, 4})
    for (int decode : {1, 2, 4}) AddPair({&kHeads, prefill, decode}, &pairs);
  return pairs;
}

std::string Name(const testing::TestParamInfo<PairCase>& info) {
  return std::string(info.param.model == &kNeedle ? "needle" : "heads") + "_" +
         std::to_string(info.param.prefill) + "_to_" + std::to_string(info.param.decode);
}

INSTANTIATE_TEST_SUITE_P(Sizes, RankedPair, testing::ValuesIn(Pairs()), Name);
INSTANTIATE_TEST_SUITE_P(Sizes, RankedCancel, testing::ValuesIn(NeedlePairs()), Name);

}  // namespace
}  // namespace sluice
