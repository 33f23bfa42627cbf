#include "tests/router/fake_workers.h"

#include "absl/strings/str_cat.h"

namespace sluice {

namespace pb = internal::v1;

pb::TokenLogprobs FakeLogprobs(int index, int32_t id, int top) {
  pb::TokenLogprobs out;
  out.set_chosen(-0.25f * static_cast<float>(index + 1));
  for (int i = 0; i < top; ++i) {
    out.add_top_ids(id + i);
    out.add_top(out.chosen() - static_cast<float>(i));
  }
  return out;
}

void FakeAttempt::Progress(int layers_done, int layers) const {
  pb::PrefillEvent event;
  event.mutable_progress()->set_running(true);
  event.mutable_progress()->set_layers_done(layers_done);
  event.mutable_progress()->set_layers(layers);
  prefill->Push(event);
}

void FakeAttempt::FirstToken(int32_t id, bool ends, bool stopped) const {
  pb::PrefillEvent event;
  event.mutable_first_token()->set_token_id(id);
  event.mutable_first_token()->set_ends(ends);
  event.mutable_first_token()->set_stopped(stopped);
  event.mutable_first_token()->set_prefill_seconds(0.25);
  event.mutable_first_token()->set_cached_tokens(3);
  event.mutable_first_token()->set_history_outcome("cold");
  const pb::SamplingParams& sampling = prefill_request.sampling();
  if (sampling.logprobs() && tells_logprobs) {
    *event.mutable_first_token()->mutable_logprobs() =
        FakeLogprobs(prefill_request.emitted(), id, sampling.top_logprobs());
  }
  prefill->Push(event);
  if (ends) prefill->Finish(absl::OkStatus());
}

void FakeAttempt::HandedOff() const {
  pb::PrefillEvent event;
  event.mutable_handed_off()->mutable_kept()->set_kept_min(11);
  event.mutable_handed_off()->mutable_kept()->set_bytes_kept(1000);
  event.mutable_handed_off()->set_wire_bytes(1100);
  prefill->Push(event);
  prefill->Finish(absl::OkStatus());
}

void FakeAttempt::HandedOffAndMeasuring() const {
  pb::PrefillEvent event;
  event.mutable_handed_off()->set_measuring(true);
  prefill->Push(event);
}

void FakeAttempt::Measured(const v1::CompressionLoss& loss) const {
  pb::PrefillEvent event;
  *event.mutable_measured() = loss;
  prefill->Push(event);
  prefill->Finish(absl::OkStatus());
}

void FakeAttempt::HandoffFailed(const std::string& reason, bool retained) const {
  pb::PrefillEvent event;
  event.mutable_handoff_failed()->set_reason(reason);
  event.mutable_handoff_failed()->set_retained(retained);
  prefill->Push(event);
  prefill->Finish(absl::OkStatus());
}

void FakeAttempt::Receiving() const {
  pb::GenerateEvent event;
  event.mutable_receiving();
  decode->Push(event);
}

void FakeAttempt::Tokens(int index, std::vector<int32_t> ids) const {
  pb::GenerateEvent event;
  event.mutable_tokens()->set_index(index);
  event.mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
  const pb::SamplingParams& sampling = generate_request.sampling();
  for (size_t i = 0; i < ids.size() && sampling.logprobs() && tells_logprobs; ++i) {
    *event.mutable_tokens()->add_logprobs() =
        FakeLogprobs(index + static_cast<int>(i), ids[i], sampling.top_logprobs());
  }
  decode->Push(event);
}

void FakeAttempt::Generated(const std::string& finish, int stop_id) const {
  pb::GenerateEvent event;
  event.mutable_generated()->set_finish(finish);
  event.mutable_generated()->set_stop_token_id(stop_id);
  event.mutable_generated()->set_decode_seconds(0.5);
  event.mutable_generated()->set_steps(5);
  decode->Push(event);
  decode->Finish(absl::OkStatus());
}

void FakeAttempt::Serve(const std::vector<int32_t>& reply, const std::string& finish) const {
  int index = prefill_request.emitted();
  bool ends = index + 1 == static_cast<int>(reply.size());
  FirstToken(reply[index], ends, ends && finish == "stop");
  if (ends) return;
  Receiving();
  for (++index; index < static_cast<int>(reply.size()); ++index) Tokens(index, {reply[index]});
  HandedOff();
  Generated(finish, reply.back());
}

void FakeAttempt::ServeThreeAndDie(const std::vector<int32_t>& reply) const {
  FirstToken(reply[0]);
  Receiving();
  HandedOff();
  Tokens(1, {reply[1], reply[2]});
  decode->Finish(absl::UnavailableError("killed"));
}

class FakeWorkers::DecodeService final : public pb::DecodeWorker::CallbackService {
 public:
  DecodeService(FakeWorkers* owner, std::string name) : owner_(owner), name_(std::move(name)) {}

  grpc::ServerWriteReactor<pb::GenerateEvent>* Generate(grpc::CallbackServerContext*,
                                                        const pb::GenerateRequest* request) override {
    grpc::ServerWriteReactor<pb::GenerateEvent>* reactor = nullptr;
    FakeAttempt attempt;
    attempt.decode_name = name_;
    attempt.generate_request = *request;
    attempt.decode = DecodeStream::Open(
        [owner = owner_] {
          MutexLock lock(&owner->mu_);
          ++owner->cancelled_decodes_;
        },
        &reactor);
    {
      MutexLock lock(&owner_->mu_);
      owner_->waiting_[{request->handoff_id(), request->attempt()}] = attempt;
    }
    pb::GenerateEvent registered;
    registered.mutable_registered();
    attempt.decode->Push(registered);
    return reactor;
  }

 private:
  FakeWorkers* const owner_;
  const std::string name_;
};

class FakeWorkers::PrefillService final : public pb::PrefillWorker::CallbackService {
 public:
  PrefillService(FakeWorkers* owner, std::string name) : owner_(owner), name_(std::move(name)) {}

  grpc::ServerWriteReactor<pb::PrefillEvent>* Prefill(grpc::CallbackServerContext*,
                                                      const pb::PrefillRequest* request) override {
    grpc::ServerWriteReactor<pb::PrefillEvent>* reactor = nullptr;
    std::shared_ptr<PrefillStream> stream = PrefillStream::Open(
        [owner = owner_] {
          MutexLock lock(&owner->mu_);
          ++owner->cancelled_prefills_;
        },
        &reactor);
    FakeAttempt attempt;
    Script script;
    {
      MutexLock lock(&owner_->mu_);
      attempt = owner_->waiting_[{request->handoff_id(), request->attempt()}];
      attempt.number = static_cast<int>(owner_->attempts_.size()) + 1;
      attempt.prefill_name = name_;
      attempt.prefill_request = *request;
      attempt.prefill = stream;
      owner_->attempts_.push_back(attempt);
      script = owner_->script_;
    }
    if (attempt.decode == nullptr) {
      stream->Finish(absl::InternalError("Prefill came before Generate"));
    } else {
      script(attempt);
    }
    return reactor;
  }

  grpc::ServerUnaryReactor* Forget(grpc::CallbackServerContext* context, const pb::ForgetRequest* request,
                                   pb::ForgetResponse* response) override {
    {
      MutexLock lock(&owner_->mu_);
      owner_->forgotten_.emplace_back(name_, *request);
    }
    response->set_freed_bytes(7);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  FakeWorkers* const owner_;
  const std::string name_;
};

FakeWorkers::~FakeWorkers() {
  for (auto& [name, worker] : workers_) {
    worker.routers.reset();
    worker.server.reset();
  }
}

void FakeWorkers::Add(const std::string& role, const std::string& name, int router_port) {
  Worker worker;
  if (role == "prefill") {
    worker.service = std::make_unique<PrefillService>(this, name);
  } else {
    worker.service = std::make_unique<DecodeService>(this, name);
  }
  worker.server = *RpcServer::Start({"127.0.0.1:0", "listen"}, {worker.service.get()});
  pb::WorkerReport report;
  report.set_name(name);
  report.set_role(role);
  report.set_address(absl::StrCat("127.0.0.1:", worker.server->port()));
  report.set_incarnation(absl::StrCat(name, "-life-", ++lives_));
  *report.mutable_model() = identity_;
  const auto load = [this, name] {
    MutexLock lock(&mu_);
    pb::WorkerLoad ready = loads_[name];
    ready.set_ready(true);
    return ready;
  };
  const auto heard = [this, name](std::vector<std::string> decodes) {
    MutexLock lock(&mu_);
    heard_[name] = std::move(decodes);
  };
  const std::vector<std::string> routers = {absl::StrCat("127.0.0.1:", router_port)};
  worker.routers = std::make_unique<RouterLinks>(routers, report, load, heard);
  workers_[name] = std::move(worker);
}

void FakeWorkers::Kill(const std::string& name) {
  Worker& worker = workers_.at(name);
  worker.server->Stop(absl::ZeroDuration());
  worker.routers.reset();
}

void FakeWorkers::Stop(const std::string& name) {
  Worker& worker = workers_.at(name);
  worker.routers->Drain(absl::Seconds(10));
  worker.routers.reset();
  worker.server->Stop(absl::Seconds(10));
}

void FakeWorkers::SetLoad(const std::string& name, pb::WorkerLoad load) {
  MutexLock lock(&mu_);
  loads_[name] = std::move(load);
}

void FakeWorkers::SetScript(Script script) {
  MutexLock lock(&mu_);
  script_ = std::move(script);
}

std::vector<FakeAttempt> FakeWorkers::attempts() const {
  MutexLock lock(&mu_);
  return attempts_;
}

std::vector<std::string> FakeWorkers::heard(const std::string& name) const {
  MutexLock lock(&mu_);
  auto found = heard_.find(name);
  return found == heard_.end() ? std::vector<std::string>() : found->second;
}

std::string FakeWorkers::address(const std::string& name) const {
  return absl::StrCat("127.0.0.1:", workers_.at(name).server->port());
}

int FakeWorkers::cancelled_prefills() const {
  MutexLock lock(&mu_);
  return cancelled_prefills_;
}

int FakeWorkers::cancelled_decodes() const {
  MutexLock lock(&mu_);
  return cancelled_decodes_;
}

std::vector<std::pair<std::string, pb::ForgetRequest>> FakeWorkers::forgotten() const {
  MutexLock lock(&mu_);
  return forgotten_;
}

}  // namespace sluice
