#include "tests/support/worker_pair.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/random_id.h"
#include "common/rpc/gates_codec.h"
#include "common/rpc/sampling_codec.h"
#include "common/rpc/status_codec.h"
#include "common/transport/transports.h"
#include "tests/support/early_logger.h"

namespace sluice {
namespace {

namespace pb = internal::v1;

Compatibility CompatibilityOf(const RankedModel& model) {
  const KvShape& shape = model.kv_shape();
  return {"w", "t", "r", "bf16", PagedKv::kPageRows, shape.n_layers, shape.n_kv_heads, shape.head_dim};
}

std::unique_ptr<RpcServer> Listen(const std::vector<grpc::Service*>& services) {
  auto server = RpcServer::Start({"127.0.0.1:0", "--listen"}, services);
  SLUICE_CHECK(server.ok());
  return *std::move(server);
}

std::unique_ptr<KvTransport> Transport(const std::string& name, Backend* backend) {
  auto transport = MakeTransport(name, {.ucx_tls = {}, .backend = backend});
  SLUICE_CHECK(transport.ok());
  return *std::move(transport);
}

}  // namespace

TestDecode::TestDecode(const RankedModel& model, const std::string& transport, size_t kv_bytes)
    : incarnation_(RandomId128()),
      registry_(std::make_unique<MetricsRegistry>(MetricsIdentity{"decode", "needle", "test"})),
      metrics_(std::make_unique<DecodeMetrics>(registry_.get())),
      transfer_metrics_(std::make_unique<KvTransferMetrics>(registry_.get(), FailureReasonNames())) {
  MakeLogger();
  DecodeCacheOptions cache;
  cache.n_slots = 16;
  cache.max_rows = model.shape().context;
  cache.memory_bytes = kv_bytes;
  auto created = RankedCache::Create(model.group(), model.kv_shape(), cache);
  SLUICE_CHECK(created.ok());
  cache_ = *std::move(created);
  decode_loop_ = std::make_unique<DecodeLoop>(&model, cache_.get(), &table_, DecodeLoopOptions{}, &clock_,
                                              metrics_.get());
  HandoffReceiverOptions options;
  options.incarnation = incarnation_;
  options.compatibility = CompatibilityOf(model);
  options.shape = model.kv_shape();
  receive_loop_ = std::make_unique<ReceiveLoop>(options, Transport(transport, model.group().rank(0)),
                                                model.group(), cache_.get(), &table_, decode_loop_.get(),
                                                &clock_, metrics_.get(), transfer_metrics_.get());
  generate_ = std::make_unique<GenerateService>(&table_, receive_loop_.get(), &clock_);
  handoff_ = std::make_unique<HandoffService>(receive_loop_.get());
  server_ = Listen({generate_.get(), handoff_.get()});
}

TestDecode::~TestDecode() {
  server_->Stop(absl::ZeroDuration());
  receive_loop_->Stop();
  decode_loop_->Stop();
}

std::string TestDecode::address() const { return absl::StrCat("127.0.0.1:", server_->port()); }

bool TestDecode::Idle() const {
  return cache_->pages().used() == 0 && cache_->chunks().used() == 0 && table_.size() == 0 &&
         decode_loop_->running() == 0 && receive_loop_->live() == 0;
}

PrefillLoopOptions TestPrefill::DefaultOptions() {
  PrefillLoopOptions options;
  options.work_bytes = size_t{1} << 30;
  options.history_bytes = size_t{512} << 20;
  return options;
}

TestPrefill::TestPrefill(const RankedModel& model, const std::string& transport, PrefillLoopOptions options,
                         const ShadowOptions& shadow)
    : registry_(std::make_unique<MetricsRegistry>(MetricsIdentity{"prefill", "needle", "test"})),
      metrics_(std::make_unique<PrefillMetrics>(
          registry_.get(), PrefillLabels{{"full", "rocketkv", "streaming_llm"}, TransportNames()})),
      transfer_metrics_(std::make_unique<KvTransferMetrics>(registry_.get(), FailureReasonNames())) {
  MakeLogger();
  HandoffSenderOptions sender;
  sender.incarnation = RandomId128();
  sender.compatibility = CompatibilityOf(model);
  sender.shape = model.kv_shape();
  send_loop_ = *SendLoop::Create(sender, Transport(transport, model.group().rank(0)), model.group().rank(0),
                                 &clock_, metrics_.get(), transfer_metrics_.get());
  std::unique_ptr<Shadow> measures;
  if (shadow.rate > 0) {
    auto created = Shadow::Create(&model, shadow, &clock_, metrics_.get());
    SLUICE_CHECK(created.ok());
    measures = *std::move(created);
  }
  prefill_loop_ = std::make_unique<PrefillLoop>(&model, send_loop_.get(), options, &clock_, metrics_.get(),
                                                std::move(measures));
  service_ = std::make_unique<PrefillService>(&model, prefill_loop_.get(), send_loop_.get(), &clock_);
  server_ = Listen({service_.get()});
}

TestPrefill::~TestPrefill() {
  server_->Stop(absl::ZeroDuration());
  prefill_loop_->Stop();
  send_loop_->Stop();
}

std::string TestPrefill::address() const { return absl::StrCat("127.0.0.1:", server_->port()); }

bool TestPrefill::Idle() const {
  return prefill_loop_->queued() == 0 && prefill_loop_->running() == 0 && send_loop_->live() == 0;
}

absl::StatusOr<PairReply> RunPair(const TestPrefill& prefill, const TestDecode& decode,
                                  const PairRequest& request) {
  const std::string handoff_id = UuidV7();
  const auto deadline = absl::ToChronoTime(absl::Now() + request.timeout);
  auto decode_stub =
      pb::DecodeWorker::NewStub(grpc::CreateChannel(decode.address(), grpc::InsecureChannelCredentials()));
  auto prefill_stub =
      pb::PrefillWorker::NewStub(grpc::CreateChannel(prefill.address(), grpc::InsecureChannelCredentials()));

  grpc::ClientContext decode_context, prefill_context;
  decode_context.set_deadline(deadline);
  prefill_context.set_deadline(deadline);
  std::atomic<bool> over{false}, cancelled{false};
  std::thread canceller([&] {
    const absl::Time at = absl::Now() + request.cancel_after;
    while (!over && absl::Now() < at) absl::SleepFor(absl::Milliseconds(1));
    if (!over) {
      cancelled = true;
      decode_context.TryCancel();
      prefill_context.TryCancel();
    }
  });
  PairReply reply;
  absl::Status status = [&]() -> absl::Status {
    pb::GenerateRequest generate;
    generate.set_handoff_id(handoff_id);
    generate.set_attempt(1);
    *generate.mutable_gates() = GatesToProto(request.gates);
    *generate.mutable_sampling() = SamplingToProto(request.sampling);
    auto tokens = decode_stub->Generate(&decode_context, generate);
    pb::GenerateEvent event;
    if (!tokens->Read(&event) || !event.has_registered()) return FromGrpcStatus(tokens->Finish());

    pb::PrefillRequest ask;
    ask.set_handoff_id(handoff_id);
    ask.set_attempt(1);
    ask.set_decode_address(decode.address());
    ask.set_decode_incarnation(decode.incarnation());
    ask.mutable_prompt_ids()->Add(request.prompt_ids.begin(), request.prompt_ids.end());
    *ask.mutable_gates() = GatesToProto(request.gates);
    *ask.mutable_sampling() = SamplingToProto(request.sampling);
    ask.set_session_id(request.session_id);
    ask.set_parent_turn_id(request.parent_turn_id);
    ask.set_turn_id(request.turn_id);
    ask.set_measure(request.measure);
    auto prefill_events = prefill_stub->Prefill(&prefill_context, ask);
    pb::PrefillEvent got;
    while (prefill_events->Read(&got)) {
      if (got.has_first_token()) reply.first = got.first_token();
      if (got.has_handed_off()) reply.handed_off = got.handed_off();
      if (got.has_measured()) reply.loss = got.measured();
      if (got.has_handoff_failed()) {
        return absl::AbortedError(
            absl::StrCat(got.handoff_failed().reason(), ": ", got.handoff_failed().detail()));
      }
    }
    SLUICE_RETURN_IF_ERROR(FromGrpcStatus(prefill_events->Finish()));
    reply.ids.push_back(reply.first.token_id());
    if (reply.first.has_logprobs()) reply.logprobs.push_back(reply.first.logprobs());
    if (reply.first.ends()) {
      reply.finish = reply.first.stopped() ? "stop" : "length";
      return absl::OkStatus();
    }
    while (tokens->Read(&event)) {
      if (event.has_tokens()) {
        if (event.tokens().index() != static_cast<int>(reply.ids.size()))
          return absl::DataLossError("token order");
        reply.ids.insert(reply.ids.end(), event.tokens().ids().begin(), event.tokens().ids().end());
        reply.logprobs.insert(reply.logprobs.end(), event.tokens().logprobs().begin(),
                              event.tokens().logprobs().end());
      }
      if (event.has_generated()) reply.finish = event.generated().finish();
    }
    return FromGrpcStatus(tokens->Finish());
  }();
  decode_context.TryCancel();  // a turn that the first token ended leaves Generate open
  over = true;
  canceller.join();
  // Whichever stream said first how it ended: prefill's hand-off, too, fails when decode is cancelled.
  if (!status.ok() && cancelled) return absl::CancelledError(status.message());
  if (!status.ok()) return status;
  return reply;
}

std::vector<std::vector<int32_t>> RunTogether(const TestPrefill& prefill, const TestDecode& decode,
                                              const std::vector<PairRequest>& requests) {
  std::vector<std::vector<int32_t>> ids(requests.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&, i] {
      absl::StatusOr<PairReply> reply = RunPair(prefill, decode, requests[i]);
      if (reply.ok()) ids[i] = reply->ids;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ids;
}

bool WaitIdle(const TestPrefill& prefill, const TestDecode& decode, absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  while (absl::Now() < end) {
    if (prefill.Idle() && decode.Idle()) return true;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return prefill.Idle() && decode.Idle();
}

}  // namespace sluice
