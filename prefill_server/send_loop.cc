#include "prefill_server/send_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/rpc/gates_codec.h"
#include "sluice/internal/v1/handoff.grpc.pb.h"

namespace sluice {
namespace {

namespace pb = internal::v1;

// While a push is under way: between GPUs it takes tens of microseconds and nobody's cores are short.
constexpr absl::Duration kBusyWait = absl::Microseconds(50);
constexpr absl::Duration kDeviceBusyWait = absl::ZeroDuration();
constexpr absl::Duration kLiveWait = absl::Microseconds(500);  // a put needs both ends' progress
constexpr absl::Duration kIdleWait = absl::Milliseconds(10);
constexpr absl::Duration kStreamEndTime = absl::Seconds(5);  // cancelled streams end within milliseconds

class DialReactor;

// The loop's end of a dialled stream; shares it with gRPC.
class DialledStream final : public HandoffStream {
 public:
  DialledStream(const std::string& address, const Tls* tls, PeerId peer,
                std::function<void(StreamEvent)> inbox);
  ~DialledStream() override { Close(); }
  void Send(const HandoffMessage& message) override;
  void Close() override;
  void Detach() {
    MutexLock lock(&mu_);
    reactor_ = nullptr;
  }

 private:
  Mutex mu_;
  std::shared_ptr<DialReactor> reactor_ ABSL_GUARDED_BY(mu_);
};

class DialReactor final
    : public HandoffReactor<grpc::ClientBidiReactor<pb::HandoffMessage, pb::HandoffMessage>> {
 public:
  DialReactor(const std::string& address, const Tls* tls, PeerId peer, Inbox inbox)
      : HandoffReactor(peer, std::move(inbox)) {
    channel_ = OpenChannel(address, tls);
    stub_ = pb::KvHandoff::NewStub(channel_);
  }
  // self: gRPC's reference, handed to the loop when the stream is done.
  void Start(std::shared_ptr<DialReactor> self) {
    self_ = std::move(self);
    stub_->async()->Connect(&context_, this);
    AddHold();  // the loop writes until Cancel
    StartReading();
    StartCall();
  }
  void Cancel() {
    CloseQueue();
    if (held_.exchange(false)) {
      context_.TryCancel();
      RemoveHold();
    }
  }
  void OnDone(const grpc::Status& status) override { ReportGone(FromGrpcStatus(status), std::move(self_)); }

 private:
  void OnBroken() override { Cancel(); }
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<pb::KvHandoff::Stub> stub_;
  grpc::ClientContext context_;
  std::shared_ptr<DialReactor> self_;
  std::atomic<bool> held_{true};
};

DialledStream::DialledStream(const std::string& address, const Tls* tls, PeerId peer,
                             std::function<void(StreamEvent)> inbox)
    : reactor_(std::make_shared<DialReactor>(address, tls, peer, std::move(inbox))) {
  reactor_->Start(reactor_);
}

void DialledStream::Send(const HandoffMessage& message) {
  MutexLock lock(&mu_);
  if (reactor_ != nullptr && !reactor_->Enqueue(message)) reactor_->Cancel();
}

void DialledStream::Close() {
  std::shared_ptr<DialReactor> reactor;
  {
    MutexLock lock(&mu_);
    reactor = std::move(reactor_);
  }
  if (reactor != nullptr) reactor->Cancel();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SendLoop>> SendLoop::Create(HandoffSenderOptions options,
                                                           std::unique_ptr<KvTransport> transport,
                                                           Backend* backend, const Clock* clock,
                                                           PrefillMetrics* metrics,
                                                           KvTransferMetrics* transfer_metrics,
                                                           std::shared_ptr<Tls> tls) {
  std::unique_ptr<SendLoop> loop(
      new SendLoop(options, std::move(transport), backend, clock, metrics, transfer_metrics, std::move(tls)));
  SLUICE_ASSIGN_OR_RETURN(loop->sender_,
                          HandoffSender::Create(std::move(options), loop->transport_.get(), loop.get()));
  loop->thread_ = NamedThread("transfer", [loop = loop.get()] { loop->Run(); });
  return loop;
}

SendLoop::SendLoop(const HandoffSenderOptions& options, std::unique_ptr<KvTransport> transport,
                   Backend* backend, const Clock* clock, PrefillMetrics* metrics,
                   KvTransferMetrics* transfer_metrics, std::shared_ptr<Tls> tls)
    : shape_(options.shape),
      slot_bytes_(options.slot_bytes),
      transport_(std::move(transport)),
      work_(backend, shape_),
      clock_(clock),
      metrics_(metrics),
      transfer_metrics_(transfer_metrics),
      tls_(std::move(tls)) {}

SendLoop::~SendLoop() { Stop(); }

void SendLoop::Post(Action action) {
  if (!inbox_->TryPush(std::move(action))) spdlog::error("the transfer loop's queue is full or closed");
}

void SendLoop::Know(std::vector<std::string> decode_addresses) {
  Post([this, addresses = std::move(decode_addresses)] {
    const absl::Time now = clock_->Now();
    std::map<std::string, absl::Time, std::less<>> known;
    for (const std::string& address : addresses) {
      auto before = known_.find(address);
      absl::Time& dialled = known[address];
      dialled = before == known_.end() ? absl::InfinitePast() : before->second;
      if (peer_of_.contains(address) || slow_.contains(address) || now - dialled < kProbeAgain) continue;
      dialled = now;
      Dial(address);
    }
    known_ = std::move(known);
  });
}

void SendLoop::Offer(std::shared_ptr<PrefillJob> job) {
  Post([this, job = std::move(job)] {
    Job& entry = jobs_[job->request.handoff_id];
    entry = Job{};
    entry.job = job;
    StartAttempt(&entry);
  });
}

void SendLoop::LayerDone(std::shared_ptr<PrefillJob> job, LayerId layer) {
  Post([this, job = std::move(job), layer, now = clock_->Now()] {
    auto found = jobs_.find(job->request.handoff_id);
    if (found == jobs_.end()) return;
    Job& entry = found->second;
    entry.layers_done = layer.value() + 1;
    entry.last_kept = now;
    entry.kept_bytes += job->kept->layers[layer.value()].total() * 2 * shape_.row_bytes();
    if (!entry.attempt_live) return;
    absl::Status added = sender_->AddLayer(entry.key, layer, &job->kept->layers[layer.value()]);
    if (!added.ok()) sender_->Abort(entry.key, added.ToString(), clock_->Now());
  });
}

void SendLoop::Sealed(std::shared_ptr<PrefillJob> job) {
  Post([this, job = std::move(job), now = clock_->Now()] {
    auto found = jobs_.find(job->request.handoff_id);
    if (found == jobs_.end()) return;
    found->second.sealed = true;
    found->second.sealed_at = now;
    if (!found->second.attempt_live) return;
    absl::Status finished = sender_->Finish(found->second.key, job->seal);
    if (!finished.ok()) sender_->Abort(found->second.key, finished.ToString(), clock_->Now());
  });
}

void SendLoop::Failed(std::shared_ptr<PrefillJob> job, absl::Status status) {
  Post([this, job = std::move(job), status = std::move(status)] {
    job->attempt().events->OnError(status);
    Drop(job->request.handoff_id);
  });
}

void SendLoop::Done(std::shared_ptr<PrefillJob> job) {
  Post([this, job = std::move(job)] { Drop(job->request.handoff_id); });
}

void SendLoop::Retry(const std::string& handoff_id, Attempt attempt) {
  Post([this, handoff_id, attempt = std::move(attempt)]() mutable {
    auto found = jobs_.find(handoff_id);
    if (found == jobs_.end()) {
      transfer_metrics_->failures.At(ReasonName(HandoffReason::kNotRetained)).Increment();
      attempt.events->OnHandoffFailed(HandoffReason::kNotRetained,
                                      "prefill no longer holds this request's kept set", false,
                                      absl::ZeroDuration());
      return;
    }
    Job& entry = found->second;
    if (entry.attempt_live) sender_->Abort(entry.key, "superseded", clock_->Now());
    std::shared_ptr<PrefillEvents> events = attempt.events;
    if (!entry.job->Attach(std::move(attempt))) {
      events->OnError(absl::InvalidArgumentError("attempt: must be higher than the one before"));
      return;
    }
    StartAttempt(&entry);
  });
}

void SendLoop::Cancel(const HandoffKey& key) {
  Post([this, key] {
    auto found = jobs_.find(key.id);
    if (found == jobs_.end() || found->second.key.attempt != key.attempt || !found->second.attempt_live)
      return;
    found->second.job->cancelled = true;
    metrics_->cancelled_transfer.Increment();
    Drop(key.id);
  });
}

void SendLoop::Stop() {
  stopping_ = true;
  thread_.Join();
  inbox_->Close();
}

void SendLoop::StartAttempt(Job* entry) {
  const absl::Time now = clock_->Now();
  const Attempt attempt = entry->job->attempt();
  entry->key = entry->job->key();
  entry->offered = now;
  OfferSpec spec;
  spec.key = entry->key;
  spec.peer = Dial(attempt.decode_address);
  spec.dst_incarnation = attempt.decode_incarnation;
  spec.n_prompt = static_cast<int>(entry->job->request.prompt_ids.size());
  spec.ceiling = entry->job->ceilings;
  spec.gates = GatesToProto(entry->job->request.gates).SerializeAsString();
  spec.deadline = attempt.deadline;
  absl::Status started = sender_->Start(std::move(spec), now);
  if (!started.ok()) {
    entry->attempt_live = false;
    entry->park_until = now + kParkTime;
    transfer_metrics_->failures.At(ReasonName(HandoffReason::kOfferRefused)).Increment();
    attempt.events->OnHandoffFailed(HandoffReason::kOfferRefused, started.ToString(), true,
                                    absl::ZeroDuration());
    return;
  }
  entry->attempt_live = true;
  for (int layer = 0; layer < entry->layers_done; ++layer) {
    (void)sender_->AddLayer(entry->key, LayerId(layer), &entry->job->kept->layers[layer]);
  }
  if (entry->sealed) (void)sender_->Finish(entry->key, entry->job->seal);
}

PeerId SendLoop::Dial(const std::string& address) {
  auto known = peer_of_.find(address);
  if (known != peer_of_.end()) return known->second;
  const PeerId peer(next_peer_++);
  auto stream = std::make_shared<DialledStream>(
      address, tls_.get(), peer,
      [inbox = inbox_](StreamEvent event) { inbox->TryPush(Event(std::move(event))); });
  ++open_streams_;
  peers_[peer] = {address, std::move(stream)};
  peer_of_[address] = peer;
  sender_->OnConnected(peer, clock_->Now());
  return peer;
}

void SendLoop::OnStream(StreamEvent event) {
  const absl::Time now = clock_->Now();
  if (event.message.has_value()) {
    sender_->OnMessage(event.peer, *event.message, now);
    return;
  }
  --open_streams_;
  spdlog::info("handoff stream gone peer={} status=\"{}\"", event.peer.value(), event.status.ToString());
  if (auto found = peers_.find(event.peer); found != peers_.end()) slow_.erase(found->second.address);
  lost_.push_back(event.peer);
}

// A worker that is not ready gets no prompt that would dial.
void SendLoop::ProbeSlowAgain(absl::Time now) {
  std::vector<std::string> due;
  for (auto& [address, at] : slow_) {
    if (at > now) continue;
    at = now + kProbeAgain;
    due.push_back(address);
  }
  for (const std::string& address : due) Dial(address);
  too_slow_ = !slow_.empty();
}

void SendLoop::Run() {
  bool busy = false;
  const absl::Duration busy_wait = transport_->device_rings() ? kDeviceBusyWait : kBusyWait;
  absl::Time published = absl::InfinitePast();
  while (!stopping_) {
    for (Event& event : inbox_->PopAll(busy ? busy_wait : live_ > 0 ? kLiveWait : kIdleWait)) {
      if (auto* action = std::get_if<Action>(&event)) {
        (*action)();
      } else {
        OnStream(std::get<StreamEvent>(std::move(event)));
      }
    }
    const absl::Time now = clock_->Now();
    for (PeerId peer : std::exchange(lost_, {})) {
      auto found = peers_.find(peer);
      if (found == peers_.end()) continue;
      if (auto of = peer_of_.find(found->second.address); of != peer_of_.end() && of->second == peer) {
        peer_of_.erase(of);
      }
      found->second.stream->Close();
      peers_.erase(found);
      sender_->OnPeerLost(peer, now);
    }
    busy = sender_->Tick(now);
    ProbeSlowAgain(now);
    for (auto& [key, result] : std::exchange(results_, {})) {
      auto found = jobs_.find(key.id);
      if (found == jobs_.end() || found->second.key.attempt != key.attempt) continue;
      Job& entry = found->second;
      entry.attempt_live = false;
      std::shared_ptr<PrefillEvents> events = entry.job->attempt().events;
      metrics_->kv_transfer_retries.Increment(result.stats.retries);
      if (!result.committed()) {
        transfer_metrics_->failures.At(ReasonName(result.reason)).Increment();
        spdlog::warn("handoff failed id={} attempt={} reason={} detail=\"{}\"", key.id, key.attempt,
                     std::string(ReasonName(result.reason)), result.detail);
        // Decode aborts when its client is gone: most likely ours is going too.
        const bool client_gone = result.reason == HandoffReason::kPeerAborted;
        entry.park_until = now + (client_gone ? kShortParkTime : kParkTime);
        events->OnHandoffFailed(result.reason, result.detail, result.retained(), result.retry_after);
        continue;
      }
      HandedOff handed;
      handed.kept_min = std::numeric_limits<int>::max();
      int64_t total = 0;
      for (const KeptLayer& layer : entry.job->kept->layers) {
        for (int n : layer.kept) handed.kept_min = std::min(handed.kept_min, n);
        total += layer.total();
      }
      handed.kept_mean = static_cast<double>(total) / (shape_.n_layers * shape_.n_kv_heads);
      handed.bytes_full = shape_.token_bytes() * entry.job->request.prompt_ids.size();
      handed.bytes_kept = static_cast<size_t>(total) * 2 * shape_.row_bytes();
      handed.wire_bytes = result.stats.bytes;
      handed.exposed = now - entry.last_kept;
      spdlog::info(
          "handoff committed id={} attempt={} kept_mean={:.0f} bytes={} exposed_ms={:.2f} token_ms={:.2f} "
          "filled_ms={:.2f} last_kept_us={}",
          key.id, key.attempt, handed.kept_mean, handed.wire_bytes,
          absl::ToDoubleMilliseconds(handed.exposed),
          absl::ToDoubleMilliseconds(entry.sealed_at - entry.last_kept),
          absl::ToDoubleMilliseconds(entry.filled - entry.last_kept), absl::ToUnixMicros(entry.last_kept));
      metrics_->kv_transfer_seconds.At(transport_->name())
          .Observe(absl::ToDoubleSeconds(now - entry.offered));
      metrics_->kv_transfer_exposed_seconds.Observe(absl::ToDoubleSeconds(handed.exposed));
      metrics_->kv_transfer_size_bytes.Observe(static_cast<double>(handed.wire_bytes));
      metrics_->kv_transfer_bytes_logical.Increment(static_cast<double>(handed.bytes_full));
      metrics_->kv_transfer_bytes_wire.Increment(static_cast<double>(handed.wire_bytes));
      metrics_->compression_kept_ratio.At(entry.job->request.gates.method)
          .Observe(static_cast<double>(handed.bytes_kept) / static_cast<double>(handed.bytes_full));
      entry.job->SetHandedOff(handed);
      jobs_.erase(found);
    }
    std::vector<std::string> expired;
    for (auto& [id, entry] : jobs_) {
      if (!entry.attempt_live && now > entry.park_until) expired.push_back(id);
    }
    for (const std::string& id : expired) {
      jobs_[id].job->cancelled = true;
      Drop(id);
    }
    live_ = static_cast<int>(jobs_.size());
    int64_t in_flight = 0;
    for (const auto& [id, entry] : jobs_) in_flight += entry.attempt_live ? entry.kept_bytes : 0;
    bytes_in_flight_ = in_flight;
    if (now - published > absl::Milliseconds(100)) {
      PublishMetrics();
      published = now;
    }
  }
  for (auto& [id, entry] : jobs_) {
    entry.job->cancelled = true;
    if (entry.attempt_live) {
      entry.job->attempt().events->OnError(absl::UnavailableError("the prefill server is stopping"));
    }
  }
  for (auto& [peer, entry] : peers_) {
    sender_->OnPeerLost(peer, clock_->Now());
    entry.stream->Close();
  }
  sender_.reset();
  jobs_.clear();
  peers_.clear();
  AwaitStreamEnds(clock_->Now() + kStreamEndTime);
}

void SendLoop::AwaitStreamEnds(absl::Time deadline) {
  while (open_streams_ > 0 && clock_->Now() < deadline) {
    for (const Event& event : inbox_->PopAll(kIdleWait)) {
      const auto* stream = std::get_if<StreamEvent>(&event);
      if (stream != nullptr && !stream->message.has_value()) --open_streams_;
    }
  }
  if (open_streams_ > 0) spdlog::warn("{} control streams have not ended", open_streams_);
}

// The sender machine borrows a job's layers until its result: it is told to let go first.
void SendLoop::Drop(const std::string& handoff_id) {
  auto found = jobs_.find(handoff_id);
  if (found == jobs_.end()) return;
  if (found->second.attempt_live) sender_->Abort(found->second.key, "done", clock_->Now());
  jobs_.erase(found);
}

void SendLoop::Send(PeerId peer, const HandoffMessage& message) {
  auto found = peers_.find(peer);
  if (found != peers_.end()) found->second.stream->Send(message);
}

absl::StatusOr<uint64_t> SendLoop::FillSlab(const HandoffKey& key, const KeptLayer& source,
                                            const SlabHeader& header, char* slot) {
  absl::StatusOr<uint64_t> checksum = work_.Fill(source, header, slot);
  if (auto found = jobs_.find(key.id); found != jobs_.end()) found->second.filled = clock_->Now();
  return checksum;
}

void SendLoop::OnProbe(PeerId peer, double bytes_per_second) {
  spdlog::info("handoff probe peer={} address={} transport={} mb_per_s={:.0f}", peer.value(),
               peers_[peer].address, std::string(transport_->name()), bytes_per_second / 1e6);
  metrics_->kv_transport_probe_bytes_per_second.At(transport_->name()).Set(bytes_per_second);
}

void SendLoop::OnPeerReady(PeerId peer) {
  spdlog::info("handoff peer ready peer={}", peer.value());
  slow_.erase(peers_[peer].address);
}

void SendLoop::OnPeerDown(PeerId peer, const absl::Status& why) {
  spdlog::warn("handoff peer down peer={} why=\"{}\"", peer.value(), why.ToString());
  slow_.erase(peers_[peer].address);
  if (absl::IsResourceExhausted(why)) slow_[peers_[peer].address] = clock_->Now() + kProbeAgain;
  lost_.push_back(peer);
}

void SendLoop::OnResult(const HandoffKey& key, const HandoffResult& result) {
  results_.emplace_back(key, result);
}

void SendLoop::PublishMetrics() {
  const SlotCounts slots = sender_->send_slots(clock_->Now());
  transfer_metrics_->in_flight.Set(sender_->live());
  transfer_metrics_->ring_slots_free.Set(slots.free);
  transfer_metrics_->ring_slots_busy.Set(slots.busy);
  transfer_metrics_->ring_slots_quarantined.Set(slots.quarantined);
  transfer_metrics_->quarantine_oldest_seconds.Set(absl::ToDoubleSeconds(slots.oldest_quarantine));
  transfer_metrics_->lease_expired.Increment(static_cast<double>(
      sender_->leases_expired() - std::exchange(seen_expired_, sender_->leases_expired())));
  metrics_->in_flight_transfer.Set(sender_->live());
  metrics_->kv_memory_ring_bytes.Set(static_cast<double>(slots.total()) * static_cast<double>(slot_bytes_));
}

}  // namespace sluice
