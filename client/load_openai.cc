#include "client/load_openai.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/errors.h"
#include "client/event_stream_lines.h"
#include "client/http_client.h"
#include "client/load_prompts.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr size_t kMostErrorBytes = 1 << 16;
constexpr size_t kMostListBytes = 16 << 20;

// Null where there is none.
json At(const json& object, const char* key) {
  return object.is_object() ? object.value(key, json()) : json();
}
int IntAt(const json& object, const char* key) {
  const json value = At(object, key);
  return value.is_number_integer() ? value.get<int>() : 0;
}
std::string TextAt(const json& object, const char* key) {
  const json value = At(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

absl::StatusCode CodeOf(int http) {
  switch (http) {
    case 400:
    case 413:
    case 422:
      return absl::StatusCode::kInvalidArgument;
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 408:
    case 504:
      return absl::StatusCode::kDeadlineExceeded;
    case 409:
      return absl::StatusCode::kAborted;
    case 429:
      return absl::StatusCode::kResourceExhausted;
    case 502:
    case 503:
      return absl::StatusCode::kUnavailable;
    default:
      return http < 500 ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kInternal;
  }
}

// What the endpoint says is wrong: OpenAI's {"error": {"message"}}, or the text as it is.
std::string Complaint(const std::string& body) {
  const json error = At(json::parse(body, nullptr, false), "error");
  const std::string message = error.is_string() ? error.get<std::string>() : TextAt(error, "message");
  return message.empty() ? std::string(absl::StripAsciiWhitespace(body)) : message;
}

absl::Status Refusal(int http, const std::string& body) {
  return absl::Status(CodeOf(http), absl::StrCat("HTTP ", http, ": ", Complaint(body)));
}

struct Endpoint {
  OpenAiOptions options;
  HttpUrl url;
  std::string model;
  int64_t context = 0;
  mutable HttpClient http;

  HttpRequest Request(const char* method, const char* path, std::string body) const {
    HttpRequest request{url, method, {{"Accept", "*/*"}}, std::move(body), options.timeout};
    request.url.path += path;
    if (!options.api_key.empty())
      request.headers.emplace_back("Authorization", absl::StrCat("Bearer ", options.api_key));
    if (!request.body.empty()) request.headers.emplace_back("Content-Type", "application/json");
    return request;
  }
};

// One streamed answer and its times. Written by the client's thread until `done`.
class Answer {
 public:
  Answer(const Endpoint* endpoint, const json& body, absl::Time origin, LoadConversation::Done done)
      : origin_(origin), done_(std::move(done)), lines_([this](absl::string_view data) { TakeEvent(data); }) {
    record_.sent = SteadyClock().Now() - origin_;
    call_ = endpoint->http.Start(
        endpoint->Request("POST", "/chat/completions",
                          body.dump(-1, ' ', false, json::error_handler_t::replace)),
        [this](int code, absl::string_view piece) {
          if (code == 200) return lines_.Feed(piece);
          absl::StrAppend(&refusal_,
                          piece.substr(0, kMostErrorBytes - std::min(refusal_.size(), kMostErrorBytes)));
        },
        [this](int code, const absl::Status& status) { TakeEnd(code, status); });
  }

  void Cancel() { call_->Cancel(); }
  RequestRecord& record() { return record_; }
  const std::string& text() const { return text_; }

 private:
  void TakeEvent(absl::string_view data) {
    if (data == "[DONE]") {
      ended_ = true;
      return;
    }
    const json chunk = json::parse(data.begin(), data.end(), nullptr, false);
    if (!chunk.is_object()) {
      failure_ = absl::InternalError("the endpoint sent an event that is not a JSON object");
      return;
    }
    if (chunk.contains("error")) {
      const int code = IntAt(At(chunk, "error"), "code");
      failure_ = absl::Status(code >= 400 ? CodeOf(code) : absl::StatusCode::kInternal,
                              Complaint(std::string(data)));
      return;
    }
    const json choices = At(chunk, "choices");
    if (choices.is_array() && !choices.empty()) TakeDelta(At(choices[0], "delta"));
    if (const json usage = At(chunk, "usage"); usage.is_object()) {
      record_.done.mutable_usage()->set_prompt_tokens(IntAt(usage, "prompt_tokens"));
      record_.done.mutable_usage()->set_completion_tokens(IntAt(usage, "completion_tokens"));
      record_.done.mutable_usage()->set_cached_tokens(
          IntAt(At(usage, "prompt_tokens_details"), "cached_tokens"));
    }
    TakeExtension(At(chunk, "sluice"));
  }

  void TakeDelta(const json& delta) {
    const std::string said = TextAt(delta, "content");
    text_ += said;
    if (said.empty() && TextAt(delta, "reasoning_content").empty() && TextAt(delta, "reasoning").empty())
      return;
    const absl::Duration now = SteadyClock().Now() - origin_;
    if (record_.last_token.has_value()) {
      record_.itl.push_back(now - *record_.last_token);
    } else {
      record_.first_token = now;
    }
    record_.last_token = now;
  }

  // What Sluice tells beyond the protocol.
  void TakeExtension(const json& extension) {
    if (!extension.is_object()) return;
    google::protobuf::util::JsonParseOptions options;
    options.ignore_unknown_fields = true;
    const auto read = [&](const char* key, google::protobuf::Message* message) {
      const json part = At(extension, key);
      if (!part.is_object()) return;
      // What cannot be read stays unset.
      if (!google::protobuf::util::JsonStringToMessage(part.dump(), message, options).ok()) message->Clear();
    };
    read("compression", record_.done.mutable_compression());
    read("timings", record_.done.mutable_timings());
    record_.done.set_attempts(IntAt(extension, "attempts"));
  }

  void TakeEnd(int code, const absl::Status& status) {
    record_.end = SteadyClock().Now() - origin_;
    if (!status.ok()) {
      record_.status = status;
    } else if (code != 200) {
      record_.status = Refusal(code, refusal_);
    } else if (!failure_.ok()) {
      record_.status = failure_;
    } else if (!ended_) {
      record_.status = absl::UnavailableError("the endpoint ended the stream without data: [DONE]");
    } else if (record_.done.usage().completion_tokens() == 0) {
      record_.status = absl::FailedPreconditionError(
          "the endpoint counts no tokens: its stream has no usage, which stream_options.include_usage asks "
          "for");
    }
    const LoadConversation::Done done = std::move(done_);  // it may delete this
    done();
  }

  const absl::Time origin_;
  LoadConversation::Done done_;
  EventStreamLines lines_;
  std::string refusal_, text_;
  absl::Status failure_;
  bool ended_ = false;
  RequestRecord record_;
  std::shared_ptr<HttpCall> call_;
};

class OpenAiConversation final : public LoadConversation {
 public:
  OpenAiConversation(const Endpoint* endpoint, const LoadSettings& settings, absl::Time origin)
      : endpoint_(*endpoint), settings_(settings), origin_(origin) {}

  void Open(Done done) override { done(); }
  absl::Status Opened() const override { return absl::OkStatus(); }
  void Close(Done done) override { done(); }

  void Send(v1::Messages messages, std::optional<int> output_tokens, Done done) override {
    if (answer_ != nullptr) said_.push_back({{"role", "assistant"}, {"content", answer_->text()}});
    for (const v1::Message& message : messages.messages()) {
      said_.push_back({{"role", message.role()}, {"content", message.content()}});
    }
    json body = {{"model", endpoint_.model},
                 {"messages", said_},
                 {"max_tokens", output_tokens.value_or(settings_.output_tokens)},
                 {"temperature", 0},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}}};
    if (endpoint_.options.ignore_eos) body["ignore_eos"] = true;
    json compression = json::object();
    if (!settings_.preset.empty()) compression["preset"] = settings_.preset;
    if (settings_.budget.has_value()) compression["budget_tokens"] = *settings_.budget;
    if (!compression.empty()) body["sluice"] = {{"compression", compression}};
    answer_ = std::make_unique<Answer>(&endpoint_, body, origin_, std::move(done));
  }
  RequestRecord& record() override { return answer_->record(); }
  void Cancel() override {
    if (answer_ != nullptr) answer_->Cancel();
  }

 private:
  const Endpoint& endpoint_;
  const LoadSettings& settings_;
  const absl::Time origin_;
  json said_ = json::array();
  std::unique_ptr<Answer> answer_;
};

class OpenAiTarget final : public LoadTarget {
 public:
  OpenAiTarget(std::unique_ptr<Endpoint> endpoint, Interrupts* interrupts)
      : endpoint_(std::move(endpoint)), interrupts_(interrupts) {}

  const std::string& address() const override { return endpoint_->options.url; }
  const std::string& model() const override { return endpoint_->model; }
  int64_t context() const override { return endpoint_->context; }
  Interrupts* interrupts() const override { return interrupts_; }

  absl::StatusOr<int> CountTokens(const std::string& text) const override {
    LoadSettings settings;
    settings.output_tokens = 1;
    std::promise<void> done;
    OpenAiConversation conversation(endpoint_.get(), settings, SteadyClock().Now());
    conversation.Send(UserMessage(text), std::nullopt, [&done] { done.set_value(); });
    CancelOnInterrupt cancel(interrupts_, [&conversation] { conversation.Cancel(); });
    done.get_future().wait();
    if (cancel.signal() != 0) return Interrupted();
    const RequestRecord& record = conversation.record();
    if (!record.status.ok()) return FromServer(record.status, address(), "--openai", true);
    return record.done.usage().prompt_tokens();
  }

  std::unique_ptr<LoadConversation> Begin(const LoadSettings& settings, absl::Time origin) const override {
    return std::make_unique<OpenAiConversation>(endpoint_.get(), settings, origin);
  }

 private:
  const std::unique_ptr<Endpoint> endpoint_;
  Interrupts* const interrupts_;
};

// The list of the endpoint's models.
absl::StatusOr<json> ListModels(const Endpoint& endpoint, Interrupts* interrupts) {
  std::string body;
  std::promise<absl::Status> done;
  const std::shared_ptr<HttpCall> call = endpoint.http.Start(
      endpoint.Request("GET", "/models", ""),
      [&body](int, absl::string_view piece) {
        if (body.size() + piece.size() <= kMostListBytes) absl::StrAppend(&body, piece);
      },
      [&](int code, const absl::Status& status) {
        done.set_value(status.ok() && code != 200 ? Refusal(code, body) : status);
      });
  CancelOnInterrupt cancel(interrupts, [&call] { call->Cancel(); });
  const absl::Status status = done.get_future().get();
  if (cancel.signal() != 0) return Interrupted();
  if (!status.ok()) return FromServer(status, endpoint.options.url, "--openai", true);
  const json models = At(json::parse(body, nullptr, false), "data");
  if (models.is_array() && !models.empty()) return models;
  return absl::FailedPreconditionError(
      absl::StrCat("--openai ", endpoint.options.url, ": it lists no model; name one with --model"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LoadTarget>> LoadOpenAi(const OpenAiOptions& options, Interrupts* interrupts) {
  auto endpoint = std::make_unique<Endpoint>();
  endpoint->options = options;
  SLUICE_ASSIGN_OR_RETURN(endpoint->url, ParseHttpUrl(options.url, "--openai"));
  absl::StatusOr<json> models = ListModels(*endpoint, interrupts);
  // Who names the model needs no list.
  if (!models.ok() && (options.model.empty() || IsInterrupted(models.status()))) return models.status();
  endpoint->model = options.model;
  for (const json& model : models.ok() ? *models : json::array()) {
    const std::string id = TextAt(model, "id");
    if (endpoint->model.empty()) endpoint->model = id;
    if (endpoint->model == id) endpoint->context = IntAt(model, "max_model_len");
  }
  return std::make_unique<OpenAiTarget>(std::move(endpoint), interrupts);
}

}  // namespace sluice
