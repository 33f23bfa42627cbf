// Role: the decode end of the hand-off: owns the receiver machine and the transport, reserves pages at Offer,
// scatters slabs into them, and gives validated sequences to the decode loop. Threads: one of its own
// ("transfer"). The public functions may be called by any thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/queue.h"
#include "common/base/thread.h"
#include "common/handoff/receiver.h"
#include "common/kvcache/ranked_cache.h"
#include "common/metrics/kv_transfer_metrics.h"
#include "common/metrics/worker_metrics.h"
#include "common/rpc/handoff_stream.h"
#include "decode_server/decode_loop.h"
#include "decode_server/generation.h"

namespace sluice {

class ReceiveLoop final : public ReceiverHost {
 public:
  // Rows reserved beyond the kept ones, so that decode seldom asks the pool.
  static constexpr int kGrowthRows = 256;

  // Slabs lie where every rank of the group reads them.
  ReceiveLoop(HandoffReceiverOptions options, std::unique_ptr<KvTransport> transport,
              const BackendGroup& group, RankedCache* cache, GenerationTable* table, DecodeLoop* decode_loop,
              const Clock* clock, DecodeMetrics* metrics, KvTransferMetrics* transfer_metrics);
  ~ReceiveLoop() override;

  void AddStream(PeerId peer, std::shared_ptr<HandoffStream> stream);
  void Post(StreamEvent event);
  // The client went away: ends the attempt wherever it is.
  void Cancel(std::shared_ptr<Generation> generation);
  void Stop();

  int live() const { return live_; }

 private:
  struct NewStream {
    PeerId peer;
    std::shared_ptr<HandoffStream> stream;
  };
  struct CancelOf {
    std::shared_ptr<Generation> generation;
  };
  using Event = std::variant<StreamEvent, NewStream, CancelOf>;

  void Run();
  void Handle(Event event);
  void OnCancel(const Generation& generation);
  void PublishMetrics();
  void PublishMemory(const SlotCounts& slots);
  absl::Status SyncRanks();

  // ReceiverHost, on the loop's thread.
  void Send(PeerId peer, const HandoffMessage& message) override;
  absl::Status Reserve(const Offer& offer) override;
  absl::StatusOr<SlabFacts> Inspect(const SlabHeader& header, const char* slab) override;
  absl::Status Scatter(const HandoffKey& key, const SlabHeader& header, const char* slab,
                       absl::Span<const int32_t> positions) override;
  void Ready(const HandoffKey& key, const Seal& seal, const std::vector<int>& kept) override;
  void Released(const HandoffKey& key, HandoffReason reason, const std::string& detail) override;

  const KvShape shape_;
  const size_t slot_bytes_;
  const std::unique_ptr<KvTransport> transport_;
  RankedCache* const cache_;
  GenerationTable* const table_;
  DecodeLoop* const decode_loop_;
  const Clock* const clock_;
  DecodeMetrics* const metrics_;
  KvTransferMetrics* const transfer_metrics_;
  SlabWork work_;
  std::vector<std::unique_ptr<Ops>> ops_;  // by rank
  RankQueues queues_;
  HandoffReceiver receiver_;
  struct Reservation {
    std::shared_ptr<Generation> generation;
    std::unique_ptr<RankedSequence> kv;
    absl::Time last_slab;  // its rows are in pages
  };
  std::map<HandoffKey, Reservation> reservations_;
  std::map<PeerId, std::shared_ptr<HandoffStream>> streams_;
  BoundedQueue<Event> inbox_{1 << 16};
  std::atomic<bool> stopping_{false};
  std::atomic<int> live_{0};
  int unknown_pages_ = 0;  // at the last look
  int64_t seen_mismatches_ = 0, seen_expired_ = 0;
  NamedThread thread_;
};

}  // namespace sluice
