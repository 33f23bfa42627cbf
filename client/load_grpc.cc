#include "client/load_grpc.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/load_prompts.h"
#include "client/load_request.h"
#include "common/base/status.h"
#include "sluice/v1/inference.grpc.pb.h"
#include "sluice/v1/models.grpc.pb.h"
#include "sluice/v1/sessions.grpc.pb.h"

namespace sluice {
namespace {

constexpr absl::Duration kDeleteTimeout = absl::Seconds(5);

template <class Request, class Reply>
struct UnaryCall {
  grpc::ClientContext context;
  Request request;
  Reply reply;
};

struct Stubs {
  explicit Stubs(const Connection* connection)
      : connection(*connection),
        inference(v1::Inference::NewStub(connection->channel())),
        sessions(v1::Sessions::NewStub(connection->channel())) {}
  const Connection& connection;
  const std::unique_ptr<v1::Inference::Stub> inference;
  const std::unique_ptr<v1::Sessions::Stub> sessions;
};

// Of several turns: a session, which is deleted at the end.
class RouterConversation final : public LoadConversation {
 public:
  RouterConversation(const Stubs* stubs, const LoadSettings& settings, absl::Time origin)
      : stubs_(*stubs), settings_(settings), origin_(origin) {}

  void Open(Done done) override {
    stubs_.connection.SetDeadline(&create_.context);
    stubs_.sessions->async()->CreateSession(&create_.context, &create_.request, &create_.reply,
                                            [this, done = std::move(done)](grpc::Status status) {
                                              opened_ = stubs_.connection.Result(status, 0);
                                              done();
                                            });
  }
  absl::Status Opened() const override { return opened_; }

  void Send(v1::Messages messages, std::optional<int> output_tokens, Done done) override {
    v1::ChatRequest request;
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stopping()->set_max_tokens(output_tokens.value_or(settings_.output_tokens));
    request.mutable_stopping()->set_ignore_eos(true);
    if (!settings_.preset.empty()) request.mutable_compression()->set_preset(settings_.preset);
    if (settings_.budget.has_value()) request.mutable_compression()->set_budget_tokens(*settings_.budget);
    if (create_.reply.id().empty()) {
      request.mutable_messages()->Swap(&messages);
    } else {
      request.mutable_session_turn()->set_session_id(create_.reply.id());
      request.mutable_session_turn()->mutable_new_messages()->Swap(messages.mutable_messages());
    }
    request_ = std::make_unique<LoadRequest>(&stubs_.connection, std::move(request), origin_);
    request_->Start(stubs_.inference.get(), std::move(done));
  }
  RequestRecord& record() override { return request_->record(); }

  void Close(Done done) override {
    if (create_.reply.id().empty()) return done();
    remove_.request.set_session_id(create_.reply.id());
    remove_.context.set_deadline(absl::ToChronoTime(absl::Now() + kDeleteTimeout));
    stubs_.sessions->async()->DeleteSession(&remove_.context, &remove_.request, &remove_.reply,
                                            [done = std::move(done)](grpc::Status) { done(); });
  }

  void Cancel() override {
    create_.context.TryCancel();
    if (request_ != nullptr) request_->Cancel();
  }

 private:
  const Stubs& stubs_;
  const LoadSettings& settings_;
  const absl::Time origin_;
  absl::Status opened_;
  std::unique_ptr<LoadRequest> request_;
  UnaryCall<v1::CreateSessionRequest, v1::Session> create_;
  UnaryCall<v1::DeleteSessionRequest, v1::DeleteSessionResponse> remove_;
};

class RouterTarget final : public LoadTarget {
 public:
  RouterTarget(const Connection* connection, const v1::Model& model) : stubs_(connection), model_(model) {}

  const std::string& address() const override { return stubs_.connection.address(); }
  const std::string& model() const override { return model_.id(); }
  int64_t context() const override { return model_.context_length(); }
  Interrupts* interrupts() const override { return stubs_.connection.interrupts(); }

  absl::StatusOr<int> CountTokens(const std::string& text) const override {
    v1::ChatRequest request;
    *request.mutable_messages() = UserMessage(text);
    request.mutable_stopping()->set_max_tokens(1);
    SLUICE_ASSIGN_OR_RETURN(v1::ChatResponse reply, stubs_.connection.Call(&v1::Inference::Stub::Chat,
                                                                           stubs_.inference.get(), request));
    return reply.done().usage().prompt_tokens();
  }

  std::unique_ptr<LoadConversation> Begin(const LoadSettings& settings, absl::Time origin) const override {
    return std::make_unique<RouterConversation>(&stubs_, settings, origin);
  }

 private:
  const Stubs stubs_;
  const v1::Model model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LoadTarget>> LoadRouter(const Connection* connection) {
  auto models = v1::Models::NewStub(connection->channel());
  SLUICE_ASSIGN_OR_RETURN(
      v1::ListModelsResponse served,
      connection->Call(&v1::Models::Stub::ListModels, models.get(), v1::ListModelsRequest()));
  if (served.models().empty()) return absl::FailedPreconditionError("the router serves no model");
  return std::make_unique<RouterTarget>(connection, served.models(0));
}

}  // namespace sluice
