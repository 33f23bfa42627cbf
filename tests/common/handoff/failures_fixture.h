// Role: two prefill and two decode machines of the hand-off with faults and a manual clock, and what every
// row of its failure matrix asks of them. Threads: none.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <variant>

#include "tests/support/handoff_sim.h"

namespace sluice {

// Over a one-sided and a two-sided transport.
class HandoffFailures : public ::testing::TestWithParam<std::string> {
 protected:
  HandoffFailures() { Build(SimOptions()); }
  void Build(SimOptions options) {
    options.transport = GetParam();
    sim_ = std::make_unique<HandoffSim>(options, 2, 2);
  }
  static bool two_sided() { return GetParam() == "paired"; }
  HandoffSim& sim() { return *sim_; }
  const HandoffResult& Result(int p, const HandoffKey& key) { return sim().prefill(p).results.at(key); }
  void WaitForResult(int p, const HandoffKey& key, absl::Duration limit = absl::Seconds(90)) {
    ASSERT_TRUE(sim().RunUntil([&] { return sim().has_result(p, key); }, limit));
  }
  // One attempt from Start to Commit.
  void Commit(int p, int d, const HandoffKey& key) {
    ASSERT_TRUE(sim().Start(p, d, key).ok());
    sim().RunAll(p, key);
    WaitForResult(p, key);
    EXPECT_TRUE(Result(p, key).committed()) << ReasonName(Result(p, key).reason) << Result(p, key).detail;
    EXPECT_EQ(sim().Compare(d, key), "");
  }
  // Everything drains: streams stay up, resends are answered.
  void ExpectNoLeaks() {
    sim().fate = nullptr;
    sim().RunUntil([&] { return sim().Leaks().empty(); }, absl::Seconds(120), absl::Milliseconds(50));
    EXPECT_EQ(sim().Leaks(), "");
  }
  // Loses the first `n` messages of type M.
  template <class M>
  void Lose(int n = 1) {
    sim().fate = [n](const HandoffMessage& m, bool) mutable {
      return HandoffSim::Fate{std::holds_alternative<M>(m) && n-- > 0 ? 0 : 1, absl::ZeroDuration()};
    };
  }
  // Streaming, with layer 0 received and the rest not yet there.
  void StartStreaming(int p, int d, const HandoffKey& key) {
    ASSERT_TRUE(sim().Start(p, d, key).ok());
    sim().AddLayers(p, key, 0, 1);
    ASSERT_TRUE(sim().RunUntil([&] { return sim().decode(d).scatters > 0; }, absl::Seconds(1)));
  }

  const HandoffKey a1_{"a", 1}, a2_{"a", 2}, b1_{"b", 1};

 private:
  std::unique_ptr<HandoffSim> sim_;
};

}  // namespace sluice
