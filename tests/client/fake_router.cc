#include "tests/client/fake_router.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/status_codec.h"

namespace sluice {
namespace {

std::string LastLine(const std::string& text) { return text.substr(text.rfind('\n') + 1); }

v1::ChatEvent MakeDone() {
  v1::ChatEvent event;
  v1::Done* done = event.mutable_done();
  done->add_choices()->set_finish_reason(v1::STOP_EOS);
  done->mutable_usage()->set_prompt_tokens(1000);
  done->mutable_usage()->set_cached_tokens(600);
  done->mutable_usage()->set_completion_tokens(5);
  done->mutable_timings()->set_first_token_seconds(0.5);
  done->mutable_timings()->set_decode_seconds(0.08);
  v1::CompressionReport* report = done->mutable_compression();
  report->set_method("sluice-mt");
  report->set_kept_tokens_mean(256.25);
  report->set_read_tokens(128);
  report->set_kv_bytes_full(8000000);
  report->set_kv_bytes_kept(2000000);
  report->set_wire_bytes(2100000);
  return event;
}

}  // namespace

class FakeRouter::Inference final : public v1::Inference::Service {
 public:
  explicit Inference(FakeRouter* router) : router_(router) {}
  grpc::Status ChatStream(grpc::ServerContext* context, const v1::ChatRequest* request,
                          grpc::ServerWriter<v1::ChatEvent>* writer) override {
    {
      MutexLock lock(&router_->mu_);
      router_->chats_.push_back(*request);
    }
    const bool session = request->has_session_turn();
    const auto& messages = session ? request->session_turn().new_messages() : request->messages().messages();
    grpc::Status status = router_->Generate(messages.rbegin()->content(), context, writer);
    MutexLock lock(&router_->mu_);
    if (status.ok() && session) ++router_->sessions_[request->session_turn().session_id()];
    return status;
  }
  // Says nothing; a prompt is ten tokens and one a word.
  grpc::Status Chat(grpc::ServerContext*, const v1::ChatRequest* request, v1::ChatResponse* out) override {
    const std::string& text = request->messages().messages().rbegin()->content();
    const auto words = std::count(text.begin(), text.end(), ' ') + 1;
    out->mutable_done()->mutable_usage()->set_prompt_tokens(static_cast<int>(words) + 10);
    return grpc::Status::OK;
  }
  grpc::Status CompleteStream(grpc::ServerContext* context, const v1::CompleteRequest* request,
                              grpc::ServerWriter<v1::ChatEvent>* writer) override {
    {
      MutexLock lock(&router_->mu_);
      router_->completes_.push_back(*request);
    }
    for (int i = 1; i < request->sampling().n(); ++i) {
      v1::ChatEvent event;
      event.mutable_delta()->set_index(i);
      event.mutable_delta()->set_text(absl::StrCat("choice ", i));
      writer->Write(event);
    }
    return router_->Generate(request->prompt(), context, writer);
  }

 private:
  FakeRouter* const router_;
};

class FakeRouter::Sessions final : public v1::Sessions::Service {
 public:
  explicit Sessions(FakeRouter* router) : router_(router) {}
  grpc::Status CreateSession(grpc::ServerContext*, const v1::CreateSessionRequest*,
                             v1::Session* out) override {
    MutexLock lock(&router_->mu_);
    Add(0, out);
    return grpc::Status::OK;
  }
  // One session a page.
  grpc::Status ListSessions(grpc::ServerContext*, const v1::ListSessionsRequest* request,
                            v1::ListSessionsResponse* out) override {
    MutexLock lock(&router_->mu_);
    auto it = router_->sessions_.lower_bound(request->page_token());
    if (it == router_->sessions_.end()) return grpc::Status::OK;
    out->add_sessions()->set_id(it->first);
    out->mutable_sessions(0)->set_turns(it->second);
    if (++it != router_->sessions_.end()) out->set_next_page_token(it->first);
    return grpc::Status::OK;
  }
  grpc::Status GetSession(grpc::ServerContext*, const v1::GetSessionRequest* request,
                          v1::GetSessionResponse* out) override {
    MutexLock lock(&router_->mu_);
    auto it = router_->sessions_.find(request->session_id());
    if (it == router_->sessions_.end()) return Unknown(request->session_id());
    out->mutable_session()->set_id(it->first);
    for (int i = 0; i < it->second; ++i) {
      v1::Turn* turn = out->add_turns();
      turn->set_id(absl::StrCat("t", i));
      turn->add_messages()->set_role("user");
      turn->mutable_messages(0)->set_content(std::string(500, 'q'));
      turn->set_reply("a\x1b[2Jb");
    }
    return grpc::Status::OK;
  }
  grpc::Status DeleteSession(grpc::ServerContext*, const v1::DeleteSessionRequest* request,
                             v1::DeleteSessionResponse*) override {
    MutexLock lock(&router_->mu_);
    return router_->sessions_.erase(request->session_id()) == 1 ? grpc::Status::OK
                                                                : Unknown(request->session_id());
  }
  grpc::Status ForkSession(grpc::ServerContext*, const v1::ForkSessionRequest* request,
                           v1::Session* out) override {
    MutexLock lock(&router_->mu_);
    auto it = router_->sessions_.find(request->session_id());
    if (it == router_->sessions_.end()) return Unknown(request->session_id());
    Add(it->second, out);
    return grpc::Status::OK;
  }

  // Turn i is called "ti".
  grpc::Status TruncateSession(grpc::ServerContext*, const v1::TruncateSessionRequest* request,
                               v1::Session* out) override {
    MutexLock lock(&router_->mu_);
    auto it = router_->sessions_.find(request->session_id());
    if (it == router_->sessions_.end()) return Unknown(request->session_id());
    for (int i = 0; i < it->second; ++i) {
      if (request->turn_id() != absl::StrCat("t", i)) continue;
      it->second = i + 1;
      out->set_id(it->first);
      out->set_turns(it->second);
      return grpc::Status::OK;
    }
    return ToGrpcStatus(absl::NotFoundError(absl::StrCat("no turn ", request->turn_id())));
  }

 private:
  static grpc::Status Unknown(const std::string& id) {
    return ToGrpcStatus(absl::NotFoundError(absl::StrCat("no session ", id)));
  }
  void Add(int turns, v1::Session* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(router_->mu_) {
    out->set_id(absl::StrCat("s", router_->next_session_++));
    router_->sessions_[out->id()] = turns;
  }
  FakeRouter* const router_;
};

class FakeRouter::Models final : public v1::Models::Service {
  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                          v1::ListModelsResponse* out) override {
    out->add_models()->set_id("fake-model");
    return grpc::Status::OK;
  }
};

class FakeRouter::Admin final : public v1::Admin::Service {
 public:
  explicit Admin(FakeRouter* router) : router_(router) {}
  grpc::Status ListWorkers(grpc::ServerContext*, const v1::ListWorkersRequest*,
                           v1::ListWorkersResponse* out) override {
    MutexLock lock(&router_->mu_);
    *out = router_->workers_;
    return grpc::Status::OK;
  }
  // With two requests left, which end at once; a deadline below a second is too short for them.
  grpc::Status Drain(grpc::ServerContext*, const v1::DrainRequest* request,
                     grpc::ServerWriter<v1::DrainProgress>* writer) override {
    if (!Set(request->worker(), "draining")) return Unknown(request->worker());
    v1::DrainProgress progress;
    progress.set_remaining(2);
    progress.set_seconds_left(request->deadline_seconds());
    writer->Write(progress);
    if (request->deadline_seconds() < 1) {
      return ToGrpcStatus(absl::DeadlineExceededError("2 requests are left; the drain holds"));
    }
    progress.set_remaining(0);
    writer->Write(progress);
    return grpc::Status::OK;
  }
  grpc::Status Undrain(grpc::ServerContext*, const v1::UndrainRequest* request,
                       v1::UndrainResponse*) override {
    return Set(request->worker(), "ready") ? grpc::Status::OK : Unknown(request->worker());
  }

 private:
  bool Set(const std::string& name, const char* state) {
    MutexLock lock(&router_->mu_);
    for (v1::Worker& worker : *router_->workers_.mutable_workers()) {
      if (worker.name() != name) continue;
      worker.set_state(state);
      return true;
    }
    return false;
  }
  static grpc::Status Unknown(const std::string& name) {
    return ToGrpcStatus(absl::NotFoundError(absl::StrCat("worker: no \"", name, "\"")));
  }
  FakeRouter* const router_;
};

FakeRouter::FakeRouter() {
  services_.push_back(std::make_unique<Inference>(this));
  services_.push_back(std::make_unique<Sessions>(this));
  services_.push_back(std::make_unique<Models>());
  services_.push_back(std::make_unique<Admin>(this));
  std::vector<grpc::Service*> services;
  for (const auto& service : services_) services.push_back(service.get());
  absl::StatusOr<std::unique_ptr<RpcServer>> server = RpcServer::Start({"127.0.0.1:0", "--test"}, services);
  SLUICE_CHECK(server.ok());
  server_ = *std::move(server);
  server_->SetServing("sluice.v1.Inference", true);
}

FakeRouter::~FakeRouter() { server_->Stop(absl::ZeroDuration()); }

std::string FakeRouter::address() const { return absl::StrCat("127.0.0.1:", server_->port()); }

void FakeRouter::FailWith(absl::Status status) {
  MutexLock lock(&mu_);
  fail_ = std::move(status);
}

void FakeRouter::Hang() {
  MutexLock lock(&mu_);
  hang_ = true;
}

void FakeRouter::AnswerWith(std::string text) {
  MutexLock lock(&mu_);
  answer_ = std::move(text);
}

void FakeRouter::AddWorker(const std::string& role, const std::string& state) {
  MutexLock lock(&mu_);
  v1::Worker* worker = workers_.add_workers();
  worker->set_name(role + "-1");
  worker->set_role(role);
  worker->set_state(state);
  worker->set_queued_tokens(3000);
  worker->set_prefill_tokens_per_second(1500);
  worker->set_kv_pages_free(250);
  worker->set_kv_pages_total(1000);
}

std::map<std::string, std::string> FakeRouter::workers() const {
  MutexLock lock(&mu_);
  std::map<std::string, std::string> states;
  for (const v1::Worker& worker : workers_.workers()) states[worker.name()] = worker.state();
  return states;
}

std::vector<v1::ChatRequest> FakeRouter::chats() const {
  MutexLock lock(&mu_);
  return chats_;
}

std::vector<v1::CompleteRequest> FakeRouter::completes() const {
  MutexLock lock(&mu_);
  return completes_;
}

int FakeRouter::cancelled() const {
  MutexLock lock(&mu_);
  return cancelled_;
}

std::map<std::string, int> FakeRouter::sessions() const {
  MutexLock lock(&mu_);
  return sessions_;
}

grpc::Status FakeRouter::Generate(const std::string& prompt, grpc::ServerContext* context,
                                  grpc::ServerWriter<v1::ChatEvent>* writer) {
  absl::Status fail;
  bool hang = false;
  std::string answer;
  {
    MutexLock lock(&mu_);
    fail = std::exchange(fail_, absl::OkStatus());
    hang = std::exchange(hang_, false);
    answer = answer_.empty() ? "you said " + LastLine(prompt) : answer_;
  }
  v1::ChatEvent event;
  event.mutable_started()->set_request_id("r1");
  writer->Write(event);
  event.mutable_progress()->set_stage(v1::Progress::PREFILL);
  writer->Write(event);
  const size_t half = answer.size() / 2;
  event.mutable_delta()->set_text(answer.substr(0, half));
  event.mutable_delta()->add_token_ids(1);
  writer->Write(event);
  if (!fail.ok()) return ToGrpcStatus(fail);
  if (hang) {
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    MutexLock lock(&mu_);
    ++cancelled_;
    return grpc::Status::CANCELLED;
  }
  event.mutable_delta()->set_text(answer.substr(half));
  writer->Write(event);
  writer->Write(MakeDone());
  return grpc::Status::OK;
}

}  // namespace sluice
