#include "decode_server/decode_service.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/event_stream.h"
#include "common/rpc/gates_codec.h"
#include "common/rpc/sampling_codec.h"

namespace sluice {
namespace {

namespace pb = internal::v1;

// Tokens, and tokens listed with them, not yet taken by the reader, at most; beyond it decode pauses the
// sequence.
constexpr int kMaxPendingTokens = 1024;

class TokenStream final : public TokenSink {
 public:
  explicit TokenStream(std::shared_ptr<EventStream<pb::GenerateEvent>> events) : events_(std::move(events)) {}

  void OnReady(absl::Duration since_reserved) override {
    pb::GenerateEvent event;
    event.mutable_receiving()->set_reserve_to_ready_seconds(absl::ToDoubleSeconds(since_reserved));
    events_->Push(std::move(event));
  }
  void OnToken(int index, int32_t id, const TokenLogprobs* logprobs) override {
    const auto add_to = [&](pb::Tokens* tokens) {
      tokens->add_ids(id);
      if (logprobs != nullptr) *tokens->add_logprobs() = LogprobsToProto(*logprobs);
    };
    const int weight = 1 + (logprobs != nullptr ? static_cast<int>(logprobs->top_ids.size()) : 0);
    pb::GenerateEvent event;
    event.mutable_tokens()->set_index(index);
    add_to(event.mutable_tokens());
    // While the reader lags, tokens gather in one event.
    events_->PushOrMerge(std::move(event), [&](pb::GenerateEvent* last) {
      if (!last->has_tokens()) return false;
      add_to(last->mutable_tokens());
      gathered_ = last->tokens().ids_size() * weight;
      return true;
    });
    if (events_->waiting() < 2) gathered_ = 0;
  }
  bool writable() const override { return events_->waiting() < 2 || gathered_ < kMaxPendingTokens; }
  void OnEnd(const GenerationEnd& end) override {
    static constexpr const char* kNames[] = {"stop", "length", "context"};
    pb::GenerateEvent event;
    pb::Generated* out = event.mutable_generated();
    out->set_finish(kNames[end.reason]);
    out->set_stop_token_id(end.stop_id);
    out->set_decode_seconds(absl::ToDoubleSeconds(end.decode_time));
    out->set_steps(end.steps);
    events_->Push(std::move(event));
    events_->Finish(absl::OkStatus());
  }
  void OnError(const absl::Status& status) override { events_->Finish(status); }

 private:
  const std::shared_ptr<EventStream<pb::GenerateEvent>> events_;
  std::atomic<int> gathered_{0};  // in the event that waits
};

class ConnectReactor;

class ServerStream final : public HandoffStream {
 public:
  explicit ServerStream(ConnectReactor* reactor) : reactor_(reactor) {}
  void Send(const HandoffMessage& message) override;
  void Close() override;
  void Detach() {
    MutexLock lock(&mu_);
    reactor_ = nullptr;
  }

 private:
  Mutex mu_;
  ConnectReactor* reactor_ ABSL_GUARDED_BY(mu_);
};

class ConnectReactor final
    : public HandoffReactor<grpc::ServerBidiReactor<pb::HandoffMessage, pb::HandoffMessage>> {
 public:
  ConnectReactor(PeerId peer, Inbox inbox)
      : HandoffReactor(peer, std::move(inbox)), stream_(std::make_shared<ServerStream>(this)) {}
  std::shared_ptr<HandoffStream> stream() const { return stream_; }
  void Start() { StartReading(); }
  void End(const grpc::Status& status) {
    CloseQueue();
    if (!ended_.exchange(true)) Finish(status);
  }
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override {
    stream_->Detach();
    ReportGone(absl::UnavailableError("the control stream ended"));
    delete this;
  }

 private:
  void OnBroken() override { End(grpc::Status::OK); }
  const std::shared_ptr<ServerStream> stream_;
  std::atomic<bool> ended_{false};
};

void ServerStream::Send(const HandoffMessage& message) {
  MutexLock lock(&mu_);
  if (reactor_ == nullptr || reactor_->Enqueue(message)) return;
  reactor_->End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the peer stopped reading"));
}

void ServerStream::Close() {
  MutexLock lock(&mu_);
  if (reactor_ != nullptr) reactor_->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "decode is stopping"));
}

}  // namespace

grpc::ServerWriteReactor<pb::GenerateEvent>* GenerateService::Generate(grpc::CallbackServerContext* context,
                                                                       const pb::GenerateRequest* request) {
  auto generation = std::make_shared<Generation>();
  generation->key = {request->handoff_id(), request->attempt()};
  std::weak_ptr<Generation> weak = generation;
  grpc::ServerWriteReactor<pb::GenerateEvent>* reactor = nullptr;
  auto events = EventStream<pb::GenerateEvent>::Open(
      [this, weak] {
        if (std::shared_ptr<Generation> gone = weak.lock()) {
          gone->cancelled = true;
          table_->Remove(gone->key);
          receive_loop_->Cancel(std::move(gone));
        }
      },
      &reactor);
  absl::StatusOr<ResolvedGates> gates = GatesFromProto(request->gates());
  if (!gates.ok()) {
    events->Finish(gates.status());
    return reactor;
  }
  generation->gates = *std::move(gates);
  generation->sampling = SamplingFromProto(request->sampling());
  generation->emitted.assign(request->emitted_ids().begin(), request->emitted_ids().end());
  generation->sink = std::make_shared<TokenStream>(events);
  generation->registered = clock_->Now();
  if (absl::Status added = table_->Add(generation); !added.ok()) {
    events->Finish(added);
    return reactor;
  }
  pb::GenerateEvent registered;
  registered.mutable_registered();
  events->Push(std::move(registered));
  return reactor;
}

grpc::ServerBidiReactor<pb::HandoffMessage, pb::HandoffMessage>* HandoffService::Connect(
    grpc::CallbackServerContext* context) {
  const PeerId peer(next_peer_++);
  auto* reactor =
      new ConnectReactor(peer, [this](StreamEvent event) { receive_loop_->Post(std::move(event)); });
  receive_loop_->AddStream(peer, reactor->stream());
  reactor->Start();
  return reactor;
}

}  // namespace sluice
