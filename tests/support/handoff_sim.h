// Role: prefill and decode machines in one process, with message queues between them whose faults a test
// chooses, a manual clock, and checks that every received byte is the source's. Why: a whole cluster's
// failures in milliseconds, from one seed. Threads: the test's.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/handoff/receiver.h"
#include "common/handoff/sender.h"
#include "common/transport/loopback.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/paired_transport.h"

namespace sluice {

// Kept rows of a whole model, ragged, made from a seed.
std::vector<KeptLayer> MakeKeptLayers(const KvShape& shape, int n_prompt, const std::vector<int>& ceiling,
                                      uint64_t seed);

struct SimOptions {
  KvShape shape = {3, 4, 2, 8, DType::kBF16};
  size_t slot_bytes = 512;
  int ring_slots = 4;
  HandoffSenderOptions sender;      // clocks; identity and sizes are filled in
  HandoffReceiverOptions receiver;  // same
  // Of MakeTransport. Empty: loopback, "paired": two-sided; both apart from other simulations.
  std::string transport;
};

class SimPrefill final : public SenderHost {
 public:
  void Send(PeerId peer, const HandoffMessage& message) override { send(peer, message); }
  absl::StatusOr<uint64_t> FillSlab(const HandoffKey& key, const KeptLayer& source, const SlabHeader& header,
                                    char* slot) override;
  void OnProbe(PeerId peer, double bytes_per_second) override { rates[peer] = bytes_per_second; }
  void OnPeerReady(PeerId) override {}
  void OnPeerDown(PeerId peer, const absl::Status& why) override { down[peer] = why; }
  void OnResult(const HandoffKey& key, const HandoffResult& result) override;

  std::function<void(PeerId, const HandoffMessage&)> send;
  std::unique_ptr<FaultyTransport> transport;
  std::unique_ptr<HandoffSender> sender;
  KvShape shape;
  std::unique_ptr<SlabWork> work;
  std::set<HandoffKey> started;
  std::map<HandoffKey, HandoffResult> results;
  std::map<PeerId, double> rates;
  std::map<PeerId, absl::Status> down;
  bool hung = false;  // the process is alive, but its loop stands still
};

class SimDecode final : public ReceiverHost {
 public:
  void Send(PeerId peer, const HandoffMessage& message) override { send(peer, message); }
  absl::Status Reserve(const Offer& offer) override;
  absl::StatusOr<SlabFacts> Inspect(const SlabHeader& header, const char* slab) override;
  absl::Status Scatter(const HandoffKey& key, const SlabHeader& header, const char* slab,
                       absl::Span<const int32_t> positions) override;
  void Ready(const HandoffKey& key, const Seal& seal, const std::vector<int>& kept) override;
  void Released(const HandoffKey& key, HandoffReason reason, const std::string& detail) override;

  // Rows of one (layer, KV head) as they were scattered.
  struct Head {
    std::string k, v;
    std::vector<int32_t> positions;
  };
  std::function<void(PeerId, const HandoffMessage&)> send;
  std::function<void(const HandoffKey&)> on_ready;
  std::unique_ptr<FaultyTransport> transport;
  std::unique_ptr<HandoffReceiver> receiver;
  KvShape shape;
  std::unique_ptr<SlabWork> work;
  absl::Status reserve_status;  // what Reserve answers
  absl::Status scatter_status;
  std::map<HandoffKey, std::vector<Head>> reserved;  // live
  std::map<HandoffKey, std::vector<Head>> ready;
  std::map<HandoffKey, Seal> seals;
  std::map<HandoffKey, HandoffReason> released;
  int reserves = 0, scatters = 0;
  bool hung = false;
};

class HandoffSim {
 public:
  HandoffSim(SimOptions options, int n_prefill, int n_decode);
  ~HandoffSim();

  SimPrefill& prefill(int p) { return *prefills_[p]; }
  SimDecode& decode(int d) { return *decodes_[d]; }
  int n_prefill() const { return static_cast<int>(prefills_.size()); }
  int n_decode() const { return static_cast<int>(decodes_.size()); }
  ManualClock& clock() { return clock_; }
  absl::Time now() const { return clock_.Now(); }
  const SimOptions& options() const { return options_; }

  // A new control stream; prefill's peer id of it.
  PeerId Connect(int p, int d);
  void ConnectReady(int p, int d);  // and the handshake is through
  void Disconnect(int p, int d);    // both ends are told; what was under way is lost
  bool connected(int p, int d) const { return links_.contains({p, d}); }
  PeerId peer(int p, int d) const { return links_.at({p, d}).prefill_peer; }
  void KillPrefill(int p);  // kill -9: its memory is gone, the others see a broken stream
  void KillDecode(int d);
  void RestartPrefill(int p);
  void RestartDecode(int d);

  // Faults of messages. `toward_decode` names the direction.
  struct Fate {
    int copies = 1;  // 0: lost
    absl::Duration delay = absl::ZeroDuration();
  };
  std::function<Fate(HandoffMessage&, bool toward_decode)> fate;  // may also change the message
  std::set<std::pair<int, int>> partitioned;                      // links that lose everything, unnoticed
  int64_t delivered(size_t variant_index) const;

  // Registers the source of a handoff id (kept layers survive attempts) and starts an attempt.
  void AddSource(const std::string& id, int n_prompt, int ceiling, uint64_t seed);
  const std::vector<KeptLayer>& source(const std::string& id) const { return sources_.at(id).layers; }
  absl::Status Start(int p, int d, const HandoffKey& key, absl::Duration deadline = absl::Seconds(60));
  void AddLayers(int p, const HandoffKey& key, int begin, int end);
  void Finish(int p, const HandoffKey& key);
  void RunAll(int p, const HandoffKey& key);  // every layer, then Finish

  // Delivers what is due and ticks every machine, then advances the clock.
  void Step(absl::Duration by = absl::Milliseconds(1));
  // Steps until `done`; false when `limit` of simulated time went by.
  bool RunUntil(const std::function<bool()>& done, absl::Duration limit,
                absl::Duration by = absl::Milliseconds(1));
  void RunFor(absl::Duration time, absl::Duration by = absl::Milliseconds(1));
  bool has_result(int p, const HandoffKey& key) { return prefill(p).results.contains(key); }

  // Empty, or what differs between the source and what decode d holds as ready.
  std::string Compare(int d, const HandoffKey& key);
  // Empty, or what is not back at its baseline: live attempts, reservations, slots, rings, flights.
  std::string Leaks();

 private:
  struct Queued {
    absl::Time at;
    HandoffMessage message;
  };
  struct Link {
    PeerId prefill_peer, decode_peer;
    std::deque<Queued> to_decode, to_prefill;
  };
  struct Source {
    int n_prompt;
    std::vector<int> ceiling;
    std::vector<KeptLayer> layers;
  };
  std::unique_ptr<FaultyTransport> MakeSimTransport();
  void MakePrefill(int p);
  void MakeDecode(int d);
  void Enqueue(std::pair<int, int> ends, bool toward_decode, HandoffMessage message);
  void Deliver();

  const SimOptions options_;
  ManualClock clock_;
  const std::unique_ptr<Backend> backend_ = *NewCpuBackend({.threads = 1});
  std::shared_ptr<LoopbackFabric> fabric_ = std::make_shared<LoopbackFabric>();
  std::shared_ptr<PairedFabric> paired_ = std::make_shared<PairedFabric>();
  std::vector<std::unique_ptr<SimPrefill>> prefills_;
  std::vector<std::unique_ptr<SimDecode>> decodes_;
  std::map<std::pair<int, int>, Link> links_;
  std::map<std::string, Source> sources_;
  std::map<size_t, int64_t> delivered_;
  PeerId next_peer_{0};
  int incarnations_ = 0;
};

}  // namespace sluice
