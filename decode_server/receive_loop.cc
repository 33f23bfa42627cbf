#include "decode_server/receive_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/compression/selection/selector.h"
#include "common/rpc/gates_codec.h"

namespace sluice {
namespace {

// While a receive is under way: between GPUs it takes tens of microseconds and nobody's cores are short.
constexpr absl::Duration kBusyWait = absl::Microseconds(50);
constexpr absl::Duration kDeviceBusyWait = absl::ZeroDuration();
constexpr absl::Duration kLiveWait = absl::Microseconds(500);  // a put needs both ends' progress
constexpr absl::Duration kIdleWait = absl::Milliseconds(10);

TensorView Rows(const char* data, const KvShape& shape, int rows) {
  return TensorView::Contiguous(const_cast<char*>(data), shape.dtype, {rows, shape.head_dim});
}

std::vector<std::unique_ptr<Ops>> NewQueues(const BackendGroup& group) {
  std::vector<std::unique_ptr<Ops>> queues;
  for (int rank = 0; rank < group.size(); ++rank) queues.push_back(group.rank(rank)->NewOps());
  return queues;
}

RankQueues Pointers(const std::vector<std::unique_ptr<Ops>>& queues) {
  RankQueues pointers;
  for (const auto& queue : queues) pointers.push_back(queue.get());
  return pointers;
}

}  // namespace

ReceiveLoop::ReceiveLoop(HandoffReceiverOptions options, std::unique_ptr<KvTransport> transport,
                         const BackendGroup& group, RankedCache* cache, GenerationTable* table,
                         DecodeLoop* decode_loop, const Clock* clock, DecodeMetrics* metrics,
                         KvTransferMetrics* transfer_metrics)
    : shape_(options.shape),
      slot_bytes_(options.slot_bytes),
      transport_(std::move(transport)),
      cache_(cache),
      table_(table),
      decode_loop_(decode_loop),
      clock_(clock),
      metrics_(metrics),
      transfer_metrics_(transfer_metrics),
      work_(group.rank(0), shape_),
      ops_(NewQueues(group)),
      queues_(Pointers(ops_)),
      receiver_(std::move(options), transport_.get(), this),
      thread_("transfer", [this] { Run(); }) {}

ReceiveLoop::~ReceiveLoop() { Stop(); }

void ReceiveLoop::AddStream(PeerId peer, std::shared_ptr<HandoffStream> stream) {
  inbox_.TryPush(NewStream{peer, std::move(stream)});
}
void ReceiveLoop::Post(StreamEvent event) { inbox_.TryPush(std::move(event)); }
void ReceiveLoop::Cancel(std::shared_ptr<Generation> generation) {
  inbox_.TryPush(CancelOf{std::move(generation)});
}

void ReceiveLoop::Stop() {
  stopping_ = true;
  inbox_.Close();
  thread_.Join();
}

void ReceiveLoop::Run() {
  bool busy = false;
  const absl::Duration busy_wait = transport_->device_rings() ? kDeviceBusyWait : kBusyWait;
  absl::Time published = absl::InfinitePast();
  while (!stopping_) {
    for (Event& event : inbox_.PopAll(busy ? busy_wait : live_ > 0 ? kLiveWait : kIdleWait))
      Handle(std::move(event));
    const absl::Time now = clock_->Now();
    busy = receiver_.Tick(now);
    live_ = receiver_.live();
    if (now - published > absl::Milliseconds(100)) {
      PublishMetrics();
      published = now;
    }
  }
  // Peers end their attempts when their streams go.
  for (auto& [peer, stream] : streams_) {
    receiver_.OnPeerLost(peer, clock_->Now());
    stream->Close();
  }
  reservations_.clear();
}

void ReceiveLoop::Handle(Event event) {
  const absl::Time now = clock_->Now();
  if (auto* added = std::get_if<NewStream>(&event)) {
    streams_[added->peer] = std::move(added->stream);
  } else if (auto* cancel = std::get_if<CancelOf>(&event)) {
    OnCancel(*cancel->generation);
    receiver_.Abort(cancel->generation->key, "cancelled by the client", now);
  } else {
    auto& incoming = std::get<StreamEvent>(event);
    if (incoming.message.has_value()) {
      receiver_.OnMessage(incoming.peer, *incoming.message, now);
    } else {
      spdlog::info("handoff stream gone peer={} status=\"{}\"", incoming.peer.value(),
                   incoming.status.ToString());
      receiver_.OnPeerLost(incoming.peer, now);
      streams_.erase(incoming.peer);
    }
  }
}

// What decodes already, the decode loop counts.
void ReceiveLoop::OnCancel(const Generation& generation) {
  if (reservations_.contains(generation.key)) {
    metrics_->cancelled_transfer.Increment();
  } else if (generation.reserved == absl::Time()) {
    metrics_->cancelled_queued.Increment();
  }
}

void ReceiveLoop::Send(PeerId peer, const HandoffMessage& message) {
  auto stream = streams_.find(peer);
  if (stream != streams_.end()) stream->second->Send(message);
}

absl::Status ReceiveLoop::Reserve(const Offer& offer) {
  std::shared_ptr<Generation> generation = table_->Find(offer.ids.key);
  if (generation == nullptr || generation->cancelled) {
    return absl::NotFoundError("the request is not registered here, or was cancelled");
  }
  internal::v1::ResolvedGates gates_proto;
  if (!gates_proto.ParseFromString(offer.gates)) return absl::InvalidArgumentError("gates: not readable");
  SLUICE_ASSIGN_OR_RETURN(ResolvedGates gates, GatesFromProto(gates_proto));
  if (!(gates == generation->gates)) {
    return absl::FailedPreconditionError("gates: prefill and router disagree on the request's gates");
  }
  SLUICE_RETURN_IF_ERROR(CheckNumbers(gates.selection, shape_.head_dim));
  const SamplingParams& sampling = generation->sampling;
  const int left = std::max(0, sampling.max_tokens - static_cast<int>(generation->emitted.size()));
  const int growth = std::min(left, kGrowthRows);
  std::vector<int> rows;
  for (int ceiling : offer.ceiling) {
    if (ceiling > cache_->max_rows()) {
      return absl::OutOfRangeError(
          absl::StrCat("ceiling: ", ceiling, " rows exceed the context length ", cache_->max_rows()));
    }
    rows.push_back(std::min(ceiling + growth, cache_->max_rows()));
  }
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<RankedSequence> kv,
      cache_->NewSequence(SelectorOf(gates.selection.kind).parameters(gates.selection), rows));
  generation->reserved = clock_->Now();
  metrics_->queue_seconds.Observe(absl::ToDoubleSeconds(generation->reserved - generation->registered));
  reservations_[offer.ids.key] = {std::move(generation), std::move(kv), {}};
  return absl::OkStatus();
}

absl::StatusOr<SlabFacts> ReceiveLoop::Inspect(const SlabHeader& header, const char* slab) {
  return work_.Inspect(header, slab);
}

absl::Status ReceiveLoop::Scatter(const HandoffKey& key, const SlabHeader& header, const char* slab,
                                  absl::Span<const int32_t> positions) {
  auto found = reservations_.find(key);
  if (found == reservations_.end()) return absl::NotFoundError("no reservation");
  absl::Status written;
  for (const SlabRun& run : RunsOf(header, shape_, slab, positions)) {
    written =
        found->second.kv->Write(header.layer, run.kv_head, run.row_begin, Rows(run.k, shape_, run.n_rows),
                                Rows(run.v, shape_, run.n_rows), run.positions, queues_);
    if (!written.ok()) break;
  }
  // Whatever came of it: the slot and the pages may be somebody else's next.
  absl::Status synced = SyncRanks();
  found->second.last_slab = clock_->Now();
  return written.ok() ? synced : written;
}

void ReceiveLoop::Ready(const HandoffKey& key, const Seal& seal, const std::vector<int>& kept) {
  auto found = reservations_.find(key);
  if (found == reservations_.end()) return;
  const absl::Time validated = clock_->Now();
  Reservation reservation = std::move(found->second);
  reservations_.erase(found);
  const SamplingParams& sampling = reservation.generation->sampling;
  const int left =
      std::max(0, sampling.max_tokens - static_cast<int>(reservation.generation->emitted.size()));
  reservation.kv->FinishWrites(std::min(left, kGrowthRows), queues_);
  std::shared_ptr<TokenSink> sink = reservation.generation->sink;
  if (absl::Status status = SyncRanks(); !status.ok()) {
    table_->Remove(key);
    sink->OnError(status);
    return;
  }
  sink->OnReady(clock_->Now() - reservation.generation->reserved);
  ReadySequence ready;
  ready.generation = std::move(reservation.generation);
  ready.kv = std::move(reservation.kv);
  ready.next_position = seal.logical_len;
  ready.first_token = seal.first_token;
  ready.prompt_ids = seal.distinct_prompt_ids;
  if (!decode_loop_->Start(std::move(ready))) {
    table_->Remove(key);
    sink->OnError(absl::ResourceExhaustedError("the decode loop's queue is full; try again"));
    return;
  }
  spdlog::info("handoff ready id={} attempt={} after_last_slab_ms={:.2f} start_ms={:.2f} validated_us={}",
               key.id, key.attempt, absl::ToDoubleMilliseconds(validated - reservation.last_slab),
               absl::ToDoubleMilliseconds(clock_->Now() - validated), absl::ToUnixMicros(validated));
}

void ReceiveLoop::Released(const HandoffKey& key, HandoffReason reason, const std::string& detail) {
  spdlog::info("handoff released id={} attempt={} reason={} detail=\"{}\"", key.id, key.attempt,
               std::string(ReasonName(reason)), detail);
  transfer_metrics_->failures.At(ReasonName(reason)).Increment();
  reservations_.erase(key);
  // The router hears of the failure from prefill and decides; it closes the Generate stream of a dead
  // attempt.
}

absl::Status ReceiveLoop::SyncRanks() {
  absl::Status status;
  for (Ops* queue : queues_) status.Update(queue->Sync());
  return status;
}

void ReceiveLoop::PublishMetrics() {
  const absl::Time now = clock_->Now();
  const SlotCounts slots = receiver_.slots(now);
  transfer_metrics_->in_flight.Set(receiver_.live());
  transfer_metrics_->ring_slots_free.Set(slots.free);
  transfer_metrics_->ring_slots_busy.Set(slots.busy);
  transfer_metrics_->ring_slots_quarantined.Set(slots.quarantined);
  transfer_metrics_->quarantine_oldest_seconds.Set(absl::ToDoubleSeconds(slots.oldest_quarantine));
  transfer_metrics_->lease_expired.Increment(static_cast<double>(
      receiver_.leases_expired() - std::exchange(seen_expired_, receiver_.leases_expired())));
  metrics_->kv_integrity_mismatches.Increment(static_cast<double>(
      receiver_.integrity_mismatches() - std::exchange(seen_mismatches_, receiver_.integrity_mismatches())));
  metrics_->in_flight_transfer.Set(receiver_.live());
  metrics_->in_flight_decode.Set(decode_loop_->running());
  metrics_->in_flight_queued.Set(std::max(0, table_->size() - receiver_.live() - decode_loop_->running()));
  PublishMemory(slots);
}

void ReceiveLoop::PublishMemory(const SlotCounts& slots) {
  int leased = 0;
  for (const auto& [key, reservation] : reservations_) leased += reservation.kv->pages();
  const int decoding = decode_loop_->pages();
  const RankedCache::Pieces pages = cache_->pages(), chunks = cache_->chunks();
  const int used = pages.used();
  // Pages that neither loop knows of. A sequence that grew or ended between two looks is not one.
  const int unknown = std::max(0, used - leased - decoding);
  metrics_->kv_blocks_free.Set(pages.free);
  metrics_->kv_blocks_leased.Set(leased);
  const int orphaned = std::min(unknown, std::exchange(unknown_pages_, unknown));
  metrics_->kv_blocks_orphaned.Set(orphaned);
  metrics_->kv_blocks_active.Set(std::max(0, used - leased - orphaned));
  metrics_->kv_memory_ring_bytes.Set(static_cast<double>(slots.total()) * static_cast<double>(slot_bytes_));
  metrics_->kv_memory_pages_bytes.Set(static_cast<double>(used) * static_cast<double>(pages.bytes));
  metrics_->kv_memory_side_tables_bytes.Set(static_cast<double>(chunks.used()) *
                                            static_cast<double>(chunks.bytes));
}

}  // namespace sluice
