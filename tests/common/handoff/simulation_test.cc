// A whole cluster from one seed: two prefill and two decode machines, a router that pairs anew after each
// failure, and every fault there is. Whatever happens: exactly one result per attempt, by its deadline; ready
// rows are the source's, bit for bit; and when the faults end, nothing is left behind.
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "tests/support/handoff_sim.h"

namespace sluice {
namespace {

constexpr absl::Duration kStep = absl::Milliseconds(10);
constexpr absl::Duration kDeadline = absl::Seconds(4);

struct Tally {
  int committed = 0, failed = 0;
};

class Cluster {
 public:
  Cluster(uint64_t seed, const std::string& transport) : random_(seed), sim_(Options(transport), 2, 2) {
    if (Chance(2)) loss_ = Uniform(0.1);
    if (Chance(2)) doubling_ = Uniform(0.2);
    if (Chance(2)) delay_ms_ = Uniform(200);
    sim_.fate = [this](HandoffMessage&, bool) {
      HandoffSim::Fate fate;
      if (Uniform(1) < loss_)
        fate.copies = 0;
      else if (Uniform(1) < doubling_)
        fate.copies = 2;
      fate.delay = absl::Milliseconds(Uniform(delay_ms_));
      return fate;
    };
    for (int d = 0; d < 2; ++d) Watch(d);
    int n = 1 + Pick(4);
    for (int i = 0; i < n; ++i) {
      Request request{{absl::StrCat("h", i), 0}, Pick(2), Pick(2)};
      sim_.AddSource(request.key.id, 20 + Pick(100), 1 + Pick(60), random_());
      requests_.push_back(request);
    }
  }

  void Go(Tally* tally) {
    absl::Time end = sim_.now() + kDeadline;
    while (sim_.now() < end) {
      Dial();
      for (Request& request : requests_) Drive(&request, end);
      if (Chance(20)) Fault();
      sim_.Step(kStep);
    }
    // By the deadline every attempt has its result, on both ends.
    sim_.Step(kStep);
    for (int p = 0; p < 2; ++p) {
      EXPECT_EQ(sim_.prefill(p).sender->live(), 0);
      for (const HandoffKey& key : sim_.prefill(p).started) {
        EXPECT_TRUE(sim_.has_result(p, key)) << key.id;
      }
    }
    Heal();
    EXPECT_TRUE(sim_.RunUntil([&] { return CloseGivenUp(), sim_.Leaks().empty(); }, absl::Seconds(20), kStep))
        << sim_.Leaks();
    for (int d = 0; d < 2; ++d)
      for (const auto& [key, heads] : sim_.decode(d).ready) EXPECT_EQ(sim_.Compare(d, key), "");
    for (int p = 0; p < 2; ++p) {
      for (const auto& [key, result] : sim_.prefill(p).results) {
        ++(result.committed() ? tally->committed : tally->failed);
        // What prefill calls committed, one decode held ready, and only one.
        if (result.committed()) {
          EXPECT_EQ(readied_.count(key), 1u) << key.id;
        }
      }
    }
  }

 private:
  struct Request {
    HandoffKey key;  // attempt 0: none yet
    int p, d;
    int layers = 0;
    bool finished = false, done = false;
  };

  static SimOptions Options(const std::string& transport) {
    SimOptions options;
    options.transport = transport;
    options.shape = {2, 4, 2, 8, DType::kBF16};
    options.ring_slots = 3;
    options.sender.offer_timeout = absl::Milliseconds(600);
    options.sender.progress_timeout = absl::Milliseconds(500);
    options.sender.commit_resend = absl::Milliseconds(300);
    options.sender.reconnect_grace = absl::Milliseconds(400);
    options.sender.drain_timeout = absl::Milliseconds(200);
    options.sender.handshake_timeout = absl::Milliseconds(800);
    options.receiver.lease = absl::Seconds(2);
    options.receiver.abort_resend = absl::Milliseconds(500);
    return options;
  }

  bool Chance(int one_in) { return random_() % one_in == 0; }
  int Pick(int n) { return static_cast<int>(random_() % n); }
  double Uniform(double top) { return top * static_cast<double>(random_() % 10000) / 10000; }

  void Watch(int d) {
    // No attempt is ever ready twice, on whatever decode.
    sim_.decode(d).on_ready = [this](const HandoffKey& key) {
      EXPECT_TRUE(readied_.insert(key).second) << key.id;
    };
  }

  // The owner's part: end the stream when a peer was given up, and dial again with a new one.
  void CloseGivenUp() {
    for (int p = 0; p < 2; ++p)
      for (int d = 0; d < 2; ++d)
        if (sim_.connected(p, d) && sim_.prefill(p).down.contains(sim_.peer(p, d))) sim_.Disconnect(p, d);
  }
  void Dial() {
    CloseGivenUp();
    for (int p = 0; p < 2; ++p) {
      for (int d = 0; d < 2; ++d) {
        if (!sim_.connected(p, d) && !sim_.partitioned.contains({p, d})) sim_.Connect(p, d);
      }
    }
  }

  // The router's part: the next attempt on another decode, until one commits or the time is over.
  void Drive(Request* r, absl::Time end) {
    if (r->done) return;
    SimPrefill& prefill = sim_.prefill(r->p);
    bool running =
        r->key.attempt > 0 && prefill.started.contains(r->key) && !prefill.results.contains(r->key);
    if (!running) {
      auto result = prefill.results.find(r->key);
      if (result != prefill.results.end() && result->second.committed()) {
        r->done = true;
        return;
      }
      if (r->key.attempt > 0) r->d = 1 - r->d;
      if (r->key.attempt > 0 && Chance(4)) r->p = 1 - r->p;
      if (!sim_.connected(r->p, r->d)) return;
      ++r->key.attempt;
      // A new attempt is served from the kept layers: all that were computed so far go at once.
      if (!sim_.Start(r->p, r->d, r->key, end - sim_.now()).ok()) return;
      sim_.AddLayers(r->p, r->key, 0, r->layers);
      if (r->finished) sim_.Finish(r->p, r->key);
      return;
    }
    if (r->layers < 2 && Chance(4)) {
      sim_.AddLayers(r->p, r->key, r->layers, r->layers + 1);
      ++r->layers;
    } else if (r->layers == 2 && !r->finished && Chance(3)) {
      sim_.Finish(r->p, r->key);
      r->finished = true;
    }
    if (Chance(150)) prefill.sender->Abort(r->key, "cancelled", sim_.now());
    if (Chance(150)) sim_.decode(r->d).receiver->Abort(r->key, "cancelled", sim_.now());
  }

  void Fault() {
    int p = Pick(2), d = Pick(2);
    FaultyTransport& transport = *sim_.prefill(p).transport;
    switch (Pick(11)) {
      case 0:
        transport.corrupt_pushes += 1 + Pick(4);
        break;
      case 1:
        transport.fail_pushes += 1 + Pick(4);
        break;
      case 2:
        transport.hang = true;
        break;
      case 3:
        transport.hang = false;
        break;
      case 4:
        transport.bytes_per_second = Chance(2) ? 0 : 2000;
        break;
      case 5:
        (Chance(2) ? transport : *sim_.decode(d).transport).unprovable = true;
        break;
      case 6:
        transport.unprovable = sim_.decode(d).transport->unprovable = false;
        break;
      case 7:
        sim_.Disconnect(p, d);
        break;
      case 8:
        if (!sim_.partitioned.erase({p, d})) sim_.partitioned.insert({p, d});
        break;
      case 9:
        if (Chance(3)) {
          sim_.RestartPrefill(p);
          // Its kept layers are gone with it; a request of it starts over elsewhere or there.
          for (Request& r : requests_)
            if (r.p == p && !r.done) r.layers = 0, r.finished = false;
        }
        break;
      default:
        if (Chance(3)) {
          sim_.RestartDecode(d);
          Watch(d);
        }
    }
  }

  void Heal() {
    sim_.fate = nullptr;
    sim_.partitioned.clear();
    for (int p = 0; p < 2; ++p) {
      sim_.prefill(p).transport->hang = sim_.prefill(p).transport->unprovable = false;
      for (int d = 0; d < 2; ++d) {
        sim_.decode(d).transport->unprovable = false;
        // Half of them end; over the others what is left must drain. A handshake that was lost ends too.
        bool ready = sim_.connected(p, d) && sim_.prefill(p).sender->peer_ready(sim_.peer(p, d));
        if (!ready || Chance(2)) sim_.Disconnect(p, d);
      }
    }
  }

  std::mt19937_64 random_;
  HandoffSim sim_;
  std::vector<Request> requests_;
  std::set<HandoffKey> readied_;
  double loss_ = 0, doubling_ = 0, delay_ms_ = 0;
};

class HandoffSimulation : public ::testing::TestWithParam<std::string> {};

TEST_P(HandoffSimulation, InvariantsHoldForEverySeed) {
  Tally tally;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Cluster cluster(seed, GetParam());
    cluster.Go(&tally);
    if (HasFailure()) break;
  }
  // The faults must not be so bad that nothing is tested.
  EXPECT_GT(tally.committed, 2000);
  EXPECT_GT(tally.failed, 2000);
  RecordProperty("committed", tally.committed);
  RecordProperty("failed", tally.failed);
}

INSTANTIATE_TEST_SUITE_P(Transports, HandoffSimulation, ::testing::Values("", "paired"),
                         [](const auto& info) { return info.param.empty() ? "OneSided" : "TwoSided"; });

}  // namespace
}  // namespace sluice
