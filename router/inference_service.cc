#include "router/inference_service.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/status_codec.h"
#include "router/reply_reactors.h"
#include "router/request_parser.h"
#include "router/text_calls.h"

namespace sluice {
namespace {

RequestRun::Planner PlannerOf(const RunServices* services, std::string bytes, v1::ChatRequest) {
  auto request = std::make_shared<v1::ChatRequest>();
  RequestRun::Planner planner;
  planner.check = [=, bytes = std::move(bytes)]() -> absl::StatusOr<SessionRef> {
    SLUICE_RETURN_IF_ERROR(ParseRequest(bytes, request.get()));
    SLUICE_RETURN_IF_ERROR(CheckChat(*services->model, *request));
    const v1::SessionTurn& turn = request->session_turn();
    SessionRef ref{turn.session_id(), std::nullopt};
    if (turn.has_parent_turn_id()) ref.parent_turn_id = turn.parent_turn_id();
    return ref;
  };
  planner.plan = [=](const SessionState* session) {
    return PlanChat(*services->model, *request, session, services->defaults->Get());
  };
  return planner;
}

RequestRun::Planner PlannerOf(const RunServices* services, std::string bytes, v1::CompleteRequest) {
  auto request = std::make_shared<v1::CompleteRequest>();
  RequestRun::Planner planner;
  planner.check = [=, bytes = std::move(bytes)]() -> absl::StatusOr<SessionRef> {
    SLUICE_RETURN_IF_ERROR(ParseRequest(bytes, request.get()));
    return SessionRef{};
  };
  planner.plan = [=](const SessionState*) {
    return PlanComplete(*services->model, *request, services->defaults->Get());
  };
  return planner;
}

// The client's own deadline, if it set one.
std::optional<absl::Duration> TimeoutOf(const grpc::CallbackServerContext& context) {
  absl::Duration left = absl::FromChrono(context.deadline()) - absl::Now();
  if (left > absl::Hours(24 * 365)) return std::nullopt;
  return left;
}

absl::Status QueueFull(const RunServices& services) {
  return WithRetryAfter(WithReason(absl::ResourceExhaustedError(
                                       absl::StrCat(services.runs->capacity(),
                                                    " requests are in flight, the most this router takes "
                                                    "(--max-in-flight)")),
                                   "QUEUE_FULL"),
                        absl::Seconds(1));
}

absl::Status Admit(const RunServices& services, const std::shared_ptr<RequestRun>& run) {
  if (*services.draining) {
    return WithRetryAfter(
        WithReason(absl::UnavailableError("the router is draining; go to another one, or try again later"),
                   "DRAINING"),
        absl::Seconds(1));
  }
  return services.runs->Add(run) ? absl::OkStatus() : QueueFull(services);
}

template <class Request, class Sink>
Sink* Run(const RunServices* services, const char* method, const grpc::CallbackServerContext& context,
          const grpc::ByteBuffer& request, Sink* sink) {
  auto run = std::make_shared<RequestRun>(services, method, sink, TimeoutOf(context));
  if (absl::Status status = Admit(*services, run); !status.ok()) {
    services->metrics->requests.At(method).At(absl::StatusCodeToString(status.code())).Increment();
    sink->Finish(status);
    return sink;
  }
  sink->Attach(run);
  run->Start(PlannerOf(services, BytesOf(request), Request()));
  return sink;
}

}  // namespace

std::vector<std::string> InferenceService::Methods() {
  return {"Chat", "ChatStream", "Complete", "CompleteStream"};
}

grpc::ServerUnaryReactor* InferenceService::Chat(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  return Run<v1::ChatRequest>(services_, "Chat", *context, *request, new UnaryReply(response));
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::ChatStream(grpc::CallbackServerContext* context,
                                                                         const grpc::ByteBuffer* request) {
  return Run<v1::ChatRequest>(services_, "ChatStream", *context, *request, new StreamReply());
}

grpc::ServerUnaryReactor* InferenceService::Complete(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return Run<v1::CompleteRequest>(services_, "Complete", *context, *request, new UnaryReply(response));
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::CompleteStream(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return Run<v1::CompleteRequest>(services_, "CompleteStream", *context, *request, new StreamReply());
}

template <class Request, class Response>
grpc::ServerUnaryReactor* InferenceService::AnswerText(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request, grpc::ByteBuffer* response,
    absl::StatusOr<Response> (*call)(const ServedModel&, const Request&)) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (text_calls_.fetch_add(1) >= services_->runs->capacity()) {
    --text_calls_;
    reactor->Finish(ToGrpcStatus(QueueFull(*services_)));
    return reactor;
  }
  services_->pool->Submit([=, this] {
    Request message;
    absl::Status status = ParseRequest(BytesOf(*request), &message);
    if (status.ok()) {
      absl::StatusOr<Response> answer = call(*services_->model, message);
      if (answer.ok()) *response = ToBuffer(*answer);
      status = answer.status();
    }
    --text_calls_;
    reactor->Finish(ToGrpcStatus(status));
  });
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return AnswerText(context, request, response, sluice::Tokenize);
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  return AnswerText(context, request, response, sluice::Detokenize);
}

grpc::ServerUnaryReactor* InferenceService::RenderTemplate(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  return AnswerText(context, request, response, sluice::RenderTemplate);
}

grpc::ServerUnaryReactor* InferenceService::CountTokens(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* response) {
  return AnswerText(context, request, response, sluice::CountTokens);
}

}  // namespace sluice
