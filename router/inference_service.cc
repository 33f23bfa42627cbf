#include "router/inference_service.h"

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/status_codec.h"
#include "router/reply_reactors.h"
#include "router/request_parser.h"
#include "router/request_start.h"
#include "router/text_calls.h"

namespace sluice {
namespace {

// The client's own deadline, if it set one.
std::optional<absl::Duration> TimeoutOf(const grpc::CallbackServerContext& context) {
  absl::Duration left = absl::FromChrono(context.deadline()) - absl::Now();
  if (left > absl::Hours(24 * 365)) return std::nullopt;
  return left;
}

template <class Request, class Sink>
Sink* Run(const RunServices* services, const char* method, const grpc::CallbackServerContext& context,
          const grpc::ByteBuffer& bytes, Sink* sink) {
  std::shared_ptr<RequestRun> run =
      AdmitRun(services, method, sink, TimeoutOf(context), AuthorizationOf(context));
  if (run == nullptr) return sink;
  sink->Attach(run);
  std::function<absl::Status(Request*)> read = [bytes = BytesOf(bytes)](Request* request) {
    return ParseRequest(bytes, request);
  };
  run->Start(PlannerOf(services, std::move(read)));
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
  const auto work = [=, this]() -> absl::Status {
    Request message;
    SLUICE_RETURN_IF_ERROR(ParseRequest(BytesOf(*request), &message));
    SLUICE_ASSIGN_OR_RETURN(Response answer, call(*services_->model, message));
    *response = ToBuffer(answer);
    return absl::OkStatus();
  };
  const auto answer = [reactor](const absl::Status& status) { reactor->Finish(ToGrpcStatus(status)); };
  absl::Status status = SubmitTextCall(*services_, AuthorizationOf(*context), work, answer);
  if (!status.ok()) answer(status);
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
