// Role: the prefill end of the hand-off: owns the sender machine, the transport and the control streams to
// decode servers. Takes finished layers from the prefill loop while it computes the next, serves later
// attempts of a job from its kept set, and forgets a job when it is committed, cancelled or unclaimed for too
// long. Threads: one of its own ("transfer"). The public functions may be called by any thread.
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
#include "common/handoff/sender.h"
#include "common/handoff/slab_work.h"
#include "common/metrics/kv_transfer_metrics.h"
#include "common/metrics/worker_metrics.h"
#include "common/rpc/handoff_stream.h"
#include "common/rpc/tls.h"
#include "prefill_server/prefill_job.h"

namespace sluice {

class SendLoop final : public SenderHost {
 public:
  // How long a job whose attempt failed waits for the router's next one.
  static constexpr absl::Duration kParkTime = absl::Seconds(30);
  static constexpr absl::Duration kShortParkTime = absl::Seconds(2);
  // A connection that was too slow, or failed before a prompt needed it, is tried again after this.
  static constexpr absl::Duration kProbeAgain = absl::Seconds(10);

  // ResourceExhausted, InvalidArgument: the send ring cannot be had. tls: of hand-offs; null for none.
  static absl::StatusOr<std::unique_ptr<SendLoop>> Create(HandoffSenderOptions options,
                                                          std::unique_ptr<KvTransport> transport,
                                                          Backend* backend, const Clock* clock,
                                                          PrefillMetrics* metrics,
                                                          KvTransferMetrics* transfer_metrics,
                                                          std::shared_ptr<Tls> tls = nullptr);
  ~SendLoop() override;

  // Decode servers that prompts may be handed to: connects to those that are not connected, so that the first
  // prompt finds its way open.
  void Know(std::vector<std::string> decode_addresses);

  void Offer(std::shared_ptr<PrefillJob> job);  // compute starts
  void LayerDone(std::shared_ptr<PrefillJob> job, LayerId layer);
  void Sealed(std::shared_ptr<PrefillJob> job);
  void Failed(std::shared_ptr<PrefillJob> job, absl::Status status);
  void Done(std::shared_ptr<PrefillJob> job);  // the first token ended the turn: nothing to hand off
  void Retry(const std::string& handoff_id, Attempt attempt);  // a later attempt, from the kept set
  void Cancel(const HandoffKey& key);
  void Stop();

  int live() const { return live_; }  // jobs known here
  // Kept KV of layers that are finished, of hand-offs that are not committed.
  int64_t bytes_in_flight() const { return bytes_in_flight_; }
  bool too_slow() const { return too_slow_; }  // a decode server's last probe was below the sender's floor

 private:
  SendLoop(const HandoffSenderOptions& options, std::unique_ptr<KvTransport> transport, Backend* backend,
           const Clock* clock, PrefillMetrics* metrics, KvTransferMetrics* transfer_metrics,
           std::shared_ptr<Tls> tls);
  struct Job {
    std::shared_ptr<PrefillJob> job;
    HandoffKey key;  // of the attempt under way
    bool attempt_live = false;
    int layers_done = 0;
    int64_t kept_bytes = 0;  // of these layers
    bool sealed = false;
    absl::Time last_kept;  // the last layer's rows were ready
    absl::Time filled;     // the last slab was in its slot
    absl::Time sealed_at;
    absl::Time offered;
    absl::Time park_until;  // without an attempt under way
  };
  using Action = std::function<void()>;
  using Event = std::variant<Action, StreamEvent>;

  void Run();
  void Post(Action action);
  void StartAttempt(Job* job);
  void ProbeSlowAgain(absl::Time now);
  void OnStream(StreamEvent event);
  // Drops what waits in the inbox until every dialled stream has ended.
  void AwaitStreamEnds(absl::Time deadline);
  void Drop(const std::string& handoff_id);
  PeerId Dial(const std::string& address);
  void PublishMetrics();

  void Send(PeerId peer, const HandoffMessage& message) override;
  absl::StatusOr<uint64_t> FillSlab(const HandoffKey& key, const KeptLayer& source, const SlabHeader& header,
                                    char* slot) override;
  void OnProbe(PeerId peer, double bytes_per_second) override;
  void OnPeerReady(PeerId peer) override;
  void OnPeerDown(PeerId peer, const absl::Status& why) override;
  void OnResult(const HandoffKey& key, const HandoffResult& result) override;

  const KvShape shape_;
  const size_t slot_bytes_;
  const std::unique_ptr<KvTransport> transport_;
  SlabWork work_;
  const Clock* const clock_;
  PrefillMetrics* const metrics_;
  KvTransferMetrics* const transfer_metrics_;
  const std::shared_ptr<Tls> tls_;
  std::unique_ptr<HandoffSender> sender_;
  struct Peer {
    std::string address;
    std::shared_ptr<HandoffStream> stream;
  };
  std::map<PeerId, Peer> peers_;
  std::map<std::string, PeerId, std::less<>> peer_of_;    // by address
  std::map<std::string, absl::Time, std::less<>> slow_;   // by address: when to probe again
  std::map<std::string, absl::Time, std::less<>> known_;  // by address: when Know dialled last
  int next_peer_ = 1;
  int open_streams_ = 0;                          // dialled and not gone
  std::map<std::string, Job, std::less<>> jobs_;  // by handoff id
  std::vector<std::pair<HandoffKey, HandoffResult>>
      results_;  // the machine's, handled after its call returned
  std::vector<PeerId> lost_;
  // Streams hold it, too: gRPC may report the end of one after this loop is gone.
  const std::shared_ptr<BoundedQueue<Event>> inbox_ = std::make_shared<BoundedQueue<Event>>(1 << 16);
  std::atomic<bool> stopping_{false};
  std::atomic<int> live_{0};
  std::atomic<int64_t> bytes_in_flight_{0};
  std::atomic<bool> too_slow_{false};
  int64_t seen_expired_ = 0;
  NamedThread thread_;
};

}  // namespace sluice
