// How soon a machine wants its next Tick: near the end of a hand-off at once, for a while, and else when
// there is something to move.
#include <gtest/gtest.h>

#include "tests/support/handoff_sim.h"

namespace sluice {
namespace {

class Pace : public ::testing::Test {
 protected:
  Pace() {
    sim_.AddSource("a", 100, 60, 1);
    sim_.ConnectReady(0, 0);
  }
  bool prefill_hurries() { return sim_.prefill(0).sender->Tick(sim_.now()); }
  bool decode_hurries() { return sim_.decode(0).receiver->Tick(sim_.now()); }

  HandoffSim sim_{{}, 1, 1};
  const HandoffKey a_{"a", 1};
};

TEST_F(Pace, NobodyHurriesForLayersThatAreBeingComputed) {
  ASSERT_TRUE(sim_.Start(0, 0, a_).ok());
  sim_.AddLayers(0, a_, 0, sim_.options().shape.n_layers - 1);
  sim_.RunFor(absl::Milliseconds(100));
  EXPECT_FALSE(prefill_hurries());
  EXPECT_FALSE(decode_hurries());
}

TEST_F(Pace, BothHurryForTheLastWordsAndNotForLong) {
  const int layers = sim_.options().shape.n_layers;
  ASSERT_TRUE(sim_.Start(0, 0, a_).ok());
  sim_.AddLayers(0, a_, 0, layers - 1);
  sim_.RunFor(absl::Milliseconds(100));
  sim_.AddLayers(0, a_, layers - 1, layers);
  // The rows are over, and the first token is being computed.
  const int scatters = sim_.decode(0).scatters;
  ASSERT_TRUE(sim_.RunUntil([&] { return sim_.decode(0).scatters > scatters; }, absl::Seconds(1)));
  EXPECT_TRUE(prefill_hurries());
  EXPECT_TRUE(decode_hurries());
  sim_.RunFor(absl::Milliseconds(100));
  EXPECT_FALSE(prefill_hurries());
  EXPECT_FALSE(decode_hurries());
  // The Seal is out, and its Commit lost.
  sim_.fate = [](const HandoffMessage& m, bool) {
    return HandoffSim::Fate{std::holds_alternative<Commit>(m) ? 0 : 1, absl::ZeroDuration()};
  };
  sim_.Finish(0, a_);
  sim_.Step();
  EXPECT_TRUE(prefill_hurries());
  sim_.RunFor(absl::Milliseconds(100));
  EXPECT_FALSE(prefill_hurries());
  sim_.fate = nullptr;
  EXPECT_TRUE(sim_.RunUntil([&] { return sim_.has_result(0, a_); }, absl::Seconds(5)));
  EXPECT_TRUE(sim_.prefill(0).results.at(a_).committed());
}

}  // namespace
}  // namespace sluice
