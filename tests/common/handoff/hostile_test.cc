// What a broken or hostile peer can say: every number may be wrong, nothing may crash or leak.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "tests/support/handoff_sim.h"

namespace sluice {
namespace {

int Mutate(std::mt19937_64& random, int value) {
  switch (random() % 5) {
    case 0:
      return value + 1;
    case 1:
      return value - 1;
    case 2:
      return std::numeric_limits<int>::max();
    case 3:
      return std::numeric_limits<int>::min();
    default:
      return static_cast<int>(random());
  }
}

// Changes one field of a message.
void Mutate(std::mt19937_64& random, HandoffMessage* message) {
  std::visit(
      [&](auto& m) {
        using M = std::decay_t<decltype(m)>;
        if constexpr (requires { m.ids.key; }) {
          if (random() % 8 == 0) {
            if (random() % 2 == 0)
              m.ids.key.attempt += 1;
            else
              m.ids.src_incarnation += "x";
            return;
          }
        }
        if constexpr (std::is_same_v<M, Offer>) {
          if (random() % 2 == 0)
            m.n_prompt = Mutate(random, m.n_prompt);
          else if (m.ceiling.empty() || random() % 2 == 0)
            m.ceiling.resize(random() % 20, 3);
          else
            m.ceiling[random() % m.ceiling.size()] = Mutate(random, 4);
        } else if constexpr (std::is_same_v<M, SlabReady>) {
          int* fields[] = {&m.seq, &m.header.head_begin, &m.slot.slot, m.header.rows.data(),
                           m.header.row_begin.data()};
          uint64_t what = random() % 8;
          if (what < 5 && fields[what] != nullptr) *fields[what] = Mutate(random, *fields[what]);
          if (what == 5) m.header.layer = LayerId(Mutate(random, m.header.layer.value()));
          if (what == 6) m.header.rows.resize(random() % 6, 1);
          if (what == 7) m.slot.generation = random();
        } else if constexpr (std::is_same_v<M, Seal>) {
          int* fields[] = {&m.slabs, &m.first_token};
          uint64_t what = random() % 4;
          if (what < 2) *fields[what] = Mutate(random, *fields[what]);
          if (what == 2) m.logical_len = LogicalLen(Mutate(random, m.logical_len.value()));
          if (what == 3) m.kept_total = static_cast<int64_t>(random());
        } else if constexpr (std::is_same_v<M, HelloAck>) {
          if (random() % 2 == 0)
            m.ring_slots = Mutate(random, m.ring_slots);
          else
            m.slot_bytes = random() % 2 == 0 ? 0 : random();
        } else if constexpr (std::is_same_v<M, SlabArmed>) {
          if (random() % 2 == 0)
            m.slot.slot = Mutate(random, m.slot.slot);
          else
            m.order += Mutate(random, 1);
        } else if constexpr (std::is_same_v<M, Hello>) {
          if (random() % 2 == 0)
            m.probe_pushes = Mutate(random, m.probe_pushes);
          else
            m.slot_bytes = random() % 2 == 0 ? 0 : random();
        } else if constexpr (std::is_same_v<M, SlabAck> || std::is_same_v<M, SlabFail>) {
          m.slot.slot = Mutate(random, m.slot.slot);
        } else if constexpr (std::is_same_v<M, Grant>) {
          m.lease_ms = random() % 2 == 0 ? -1 : static_cast<int64_t>(random());
        }
      },
      *message);
}

TEST(HandoffHostile, MutatedMessagesEndInTypedResultsOnly) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    SimOptions options;
    options.transport = seed % 2 == 0 ? "" : "paired";
    options.receiver.lease = absl::Seconds(2);
    HandoffSim sim(options, 1, 1);
    sim.AddSource("a", 60, 30, seed);
    int victim = static_cast<int>(random() % 25), count = 0;
    sim.fate = [&](HandoffMessage& m, bool) {
      if (count++ == victim) Mutate(random, &m);
      return HandoffSim::Fate{};
    };
    sim.Connect(0, 0);
    HandoffKey key{"a", 1};
    ASSERT_TRUE(sim.Start(0, 0, key, absl::Seconds(10)).ok());
    sim.RunAll(0, key);
    ASSERT_TRUE(
        sim.RunUntil([&] { return sim.has_result(0, key); }, absl::Seconds(11), absl::Milliseconds(20)));
    // Whatever decode takes for ready is the source, bit for bit.
    if (sim.decode(0).ready.contains(key)) {
      EXPECT_EQ(sim.Compare(0, key), "");
    }
    sim.Disconnect(0, 0);
    EXPECT_TRUE(sim.RunUntil([&] { return sim.Leaks().empty(); }, absl::Seconds(20), absl::Milliseconds(20)))
        << sim.Leaks();
  }
}

}  // namespace
}  // namespace sluice
