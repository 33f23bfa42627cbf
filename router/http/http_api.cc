#include "router/http/http_api.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/status_codec.h"
#include "router/http/http_reply.h"
#include "router/http/openai_error.h"
#include "router/http/openai_request.h"
#include "router/models_service.h"
#include "router/request_start.h"
#include "router/text_calls.h"

namespace sluice {
namespace {

constexpr char kChatPath[] = "/v1/chat/completions", kCompletionsPath[] = "/v1/completions";

void RespondJson(HttpExchange* exchange, const Json& json) {
  HttpResponse response;
  response.body = Dump(json);
  exchange->Respond(std::move(response));
}

Json ModelJson(const ServedModel& model, const RequestDefaults& defaults) {
  const v1::Model told = DescribeModel(model, defaults);
  return {{"id", model.name},
          {"object", "model"},
          {"created", 0},  // when it was made is not known
          {"owned_by", "sluice"},
          {"max_model_len", model.shape.context},
          {"sluice",
           {{"compression_presets",
             std::vector<std::string>(told.compression_presets().begin(), told.compression_presets().end())},
            {"default_preset", told.default_preset()},
            {"default_session_preset", told.default_session_preset()},
            {"max_logprobs", told.max_logprobs()}}}};
}

template <class Ids>
Json IdsJson(const Ids& ids) {
  return std::vector<int32_t>(ids.begin(), ids.end());
}

// Request: our message. read: its JSON reader.
template <class Request>
void StartRun(const RunServices* services, const char* method, OpenAiEndpoint endpoint,
              const std::shared_ptr<HttpExchange>& exchange, HttpRequest request,
              absl::Status (*read)(const std::string&, Request*, OpenAiShape*)) {
  auto shape = std::make_shared<OpenAiShape>();
  auto reply = std::make_shared<HttpReply>(exchange, endpoint, shape);
  std::shared_ptr<RequestRun> run =
      AdmitRun(services, method, reply.get(), std::nullopt, request.authorization);
  if (run == nullptr) return;
  reply->Attach(run);
  auto came = std::make_shared<HttpRequest>(std::move(request));
  std::function<absl::Status(Request*)> fill = [=](Request* message) {
    const HttpRequest once = std::move(*came);  // the body goes when it is read
    return read(once.body, message, shape.get());
  };
  run->Start(PlannerOf(services, std::move(fill)));
}

}  // namespace

std::vector<std::string> HttpApi::Methods() { return {kChatPath, kCompletionsPath}; }

const std::vector<HttpApi::Route>& HttpApi::Routes() {
  static const std::vector<Route>* routes = new std::vector<Route>{
      {"GET", "/health", &HttpApi::Health},           {"GET", "/v1/models", &HttpApi::ListModels},
      {"GET", "/v1/models/", &HttpApi::GetModel},     {"POST", kChatPath, &HttpApi::Chat},
      {"POST", kCompletionsPath, &HttpApi::Complete}, {"POST", "/tokenize", &HttpApi::Tokenize},
      {"POST", "/detokenize", &HttpApi::Detokenize},
  };
  return *routes;
}

void HttpApi::Serve(std::shared_ptr<HttpExchange> exchange, HttpRequest request) {
  const char* allowed = nullptr;
  for (const Route& route : Routes()) {
    const absl::string_view path = route.path;
    const bool here = path.back() == '/' && path.size() > 1
                          ? absl::StartsWith(request.path, path) && request.path.size() > path.size()
                          : request.path == path;
    if (!here) continue;
    allowed = route.method;
    const bool reads = request.method == "HEAD" && route.method == absl::string_view("GET");
    if (reads || request.method == route.method) return (this->*route.serve)(exchange, std::move(request));
  }
  if (allowed == nullptr)
    return exchange->Respond(Refusal(404, "NOT_FOUND", "nothing is served at this path"));
  HttpResponse refusal = Refusal(405, "METHOD_NOT_ALLOWED", absl::StrCat("this path takes ", allowed));
  refusal.headers.emplace_back("Allow", allowed);
  exchange->Respond(std::move(refusal));
}

HttpResponse HttpApi::Refusal(int code, const std::string& reason, const std::string& message) const {
  const absl::Status status = code == 503 ? WithRetryAfter(absl::UnavailableError(message), absl::Seconds(1))
                                          : absl::InvalidArgumentError(message);
  HttpResponse response = ErrorResponse(OpenAiEndpoint::kNone, WithReason(status, reason));
  response.code = code;
  return response;
}

void HttpApi::Health(const Exchange& exchange, HttpRequest) const {
  if (ready_()) return RespondJson(exchange.get(), {{"status", "ok"}});
  exchange->Respond(Refusal(
      503, "NOT_READY",
      *services_->draining ? "the router is draining" : "no ready prefill and decode worker are here yet"));
}

void HttpApi::ListModels(const Exchange& exchange, HttpRequest request) const {
  absl::StatusOr<Caller> caller = services_->authenticator->Admit(request.authorization);
  if (!caller.ok()) return exchange->Respond(ErrorResponse(OpenAiEndpoint::kNone, caller.status()));
  caller->Leave();
  RespondJson(exchange.get(),
              {{"object", "list"},
               {"data", Json::array({ModelJson(*services_->model, services_->defaults->Get())})}});
}

void HttpApi::GetModel(const Exchange& exchange, HttpRequest request) const {
  absl::StatusOr<Caller> caller = services_->authenticator->Admit(request.authorization);
  if (!caller.ok()) return exchange->Respond(ErrorResponse(OpenAiEndpoint::kNone, caller.status()));
  caller->Leave();
  const std::string id = request.path.substr(absl::string_view("/v1/models/").size());
  if (absl::Status status = CheckModelName(*services_->model, id); !status.ok()) {
    return exchange->Respond(ErrorResponse(OpenAiEndpoint::kNone, status));
  }
  RespondJson(exchange.get(), ModelJson(*services_->model, services_->defaults->Get()));
}

void HttpApi::Chat(const Exchange& exchange, HttpRequest request) const {
  StartRun<v1::ChatRequest>(services_, kChatPath, OpenAiEndpoint::kChat, exchange, std::move(request),
                            ReadChatCompletion);
}

void HttpApi::Complete(const Exchange& exchange, HttpRequest request) const {
  StartRun<v1::CompleteRequest>(services_, kCompletionsPath, OpenAiEndpoint::kCompletion, exchange,
                                std::move(request), ReadCompletion);
}

void HttpApi::AnswerText(const Exchange& exchange, OpenAiEndpoint endpoint, const std::string& authorization,
                         std::function<absl::StatusOr<std::string>()> work) const {
  auto body = std::make_shared<std::string>();
  const auto keep = [body, work = std::move(work)]() -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(*body, work());
    return absl::OkStatus();
  };
  const auto answer = [=](const absl::Status& status) {
    if (!status.ok()) return exchange->Respond(ErrorResponse(endpoint, status));
    HttpResponse response;
    response.body = std::move(*body);
    exchange->Respond(std::move(response));
  };
  if (absl::Status status = SubmitTextCall(*services_, authorization, keep, answer); !status.ok())
    answer(status);
}

void HttpApi::Tokenize(const Exchange& exchange, HttpRequest request) const {
  auto came = std::make_shared<HttpRequest>(std::move(request));
  AnswerText(exchange, OpenAiEndpoint::kTokenize, came->authorization,
             [=, this]() -> absl::StatusOr<std::string> {
               SLUICE_ASSIGN_OR_RETURN(TokenizeAsked asked, ReadTokenize(came->body));
               Json ids;
               if (asked.text.has_value()) {
                 SLUICE_ASSIGN_OR_RETURN(v1::TokenizeResponse answer,
                                         sluice::Tokenize(*services_->model, *asked.text));
                 ids = IdsJson(answer.ids());
               } else {
                 SLUICE_ASSIGN_OR_RETURN(v1::RenderTemplateResponse answer,
                                         sluice::RenderTemplate(*services_->model, *asked.messages));
                 ids = IdsJson(answer.ids());
               }
               return Dump({{"count", ids.size()},
                            {"max_model_len", services_->model->shape.context},
                            {"tokens", std::move(ids)},
                            {"token_strs", nullptr}});
             });
}

void HttpApi::Detokenize(const Exchange& exchange, HttpRequest request) const {
  auto came = std::make_shared<HttpRequest>(std::move(request));
  AnswerText(
      exchange, OpenAiEndpoint::kDetokenize, came->authorization, [=, this]() -> absl::StatusOr<std::string> {
        v1::DetokenizeRequest asked;
        SLUICE_RETURN_IF_ERROR(ReadDetokenize(came->body, &asked));
        SLUICE_ASSIGN_OR_RETURN(v1::DetokenizeResponse answer, sluice::Detokenize(*services_->model, asked));
        return Dump({{"prompt", answer.text()}});
      });
}

}  // namespace sluice
