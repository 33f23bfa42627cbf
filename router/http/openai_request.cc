#include "router/http/openai_request.h"

#include <google/protobuf/util/json_util.h>

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/rpc/status_codec.h"
#include "router/http/json_object.h"
#include "router/http/openai_fields.h"
#include "router/request_parser.h"

namespace sluice {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Messages = google::protobuf::RepeatedPtrField<v1::Message>;

constexpr int kInt32Least = std::numeric_limits<int32_t>::min(),
              kInt32Most = std::numeric_limits<int32_t>::max();
constexpr int kDefaultCompletionTokens = 16;  // OpenAI's, for /v1/completions
constexpr char kSluice[] = "sluice.";

// What clients send that asks for nothing else than what is done anyway.
struct Harmless {
  const char* key;
  Json value;
};
const std::vector<Harmless>& HarmlessValues() {
  static const std::vector<Harmless>* values = new std::vector<Harmless>{
      {"store", false},
      {"service_tier", "auto"},
      {"service_tier", "default"},
      {"modalities", Json::array({"text"})},
      {"tool_choice", "none"},
      {"parallel_tool_calls", true},
      {"parallel_tool_calls", false},
      {"best_of", 1},
      {"suffix", ""},
      {"use_beam_search", false},
      {"length_penalty", 1},
      {"skip_special_tokens", true},
      {"spaces_between_special_tokens", true},
      {"include_stop_str_in_output", false},
      {"add_generation_prompt", true},
      {"continue_final_message", false},
  };
  return *values;
}

absl::Status SetScalar(const std::string& name, const Json& value, const FieldDescriptor* field,
                       Message* message) {
  const google::protobuf::Reflection* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: {
      SLUICE_ASSIGN_OR_RETURN(int64_t number, WholeOf(name, value, kInt32Least, kInt32Most));
      if (field->is_repeated()) {
        reflection->AddInt32(message, field, static_cast<int32_t>(number));
      } else {
        reflection->SetInt32(message, field, static_cast<int32_t>(number));
      }
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      if (value.is_number_unsigned()) {
        reflection->SetUInt64(message, field, value.get<uint64_t>());
        return absl::OkStatus();
      }
      SLUICE_ASSIGN_OR_RETURN(int64_t number, WholeOf(name, value, 0, std::numeric_limits<int64_t>::max()));
      reflection->SetUInt64(message, field, static_cast<uint64_t>(number));
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_FLOAT: {
      SLUICE_ASSIGN_OR_RETURN(double number, NumberOf(name, value));
      reflection->SetFloat(message, field, static_cast<float>(number));
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_BOOL: {
      SLUICE_ASSIGN_OR_RETURN(bool flag, BoolOf(name, value));
      reflection->SetBool(message, field, flag);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      SLUICE_ASSIGN_OR_RETURN(std::string text, TextOf(name, value));
      reflection->SetString(message, field, std::move(text));
      return absl::OkStatus();
    }
    default:
      return FieldNotServed(name);
  }
}

// value: of the field at `path`, whose messages come into being on the way.
absl::Status SetField(const std::string& name, const Json& value, absl::string_view path, Message* message) {
  const std::vector<std::string> steps = absl::StrSplit(path, '.');
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    message = message->GetReflection()->MutableMessage(message,
                                                       message->GetDescriptor()->FindFieldByName(steps[i]));
  }
  const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(steps.back());
  if (!field->is_repeated()) return SetScalar(name, value, field, message);
  if (!value.is_array()) return BadField(name, absl::StrCat("a ", value.type_name(), "; send a list"));
  for (size_t i = 0; i < value.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(SetScalar(absl::StrCat(name, "[", i, "]"), value[i], field, message));
  }
  return absl::OkStatus();
}

absl::Status ReadPlain(OpenAiEndpoint endpoint, bool of_sluice, JsonObject* object, Message* request) {
  for (const OpenAiField& field : PlainFields(endpoint)) {
    absl::string_view key = field.name;
    if (absl::ConsumePrefix(&key, kSluice) != of_sluice) continue;
    if (const Json* value = object->Take(key)) {
      SLUICE_RETURN_IF_ERROR(SetField(field.name, *value, field.field, request));
    }
  }
  return absl::OkStatus();
}

// A message in protobuf's own JSON.
absl::Status ReadMessage(const std::string& name, const Json& value, Message* message) {
  if (!value.is_object()) return BadField(name, absl::StrCat("a ", value.type_name(), "; send an object"));
  const auto status = google::protobuf::util::JsonStringToMessage(value.dump(), message);
  if (status.ok()) return absl::OkStatus();
  return BadField(name, std::string(status.message().data(), status.message().size()));
}

absl::Status ReadStop(const Json& value, v1::Stopping* stopping) {
  if (value.is_string()) {
    stopping->add_stop(value.get<std::string>());
    return absl::OkStatus();
  }
  if (!value.is_array()) return BadField("stop", "send a string, or a list of strings");
  for (size_t i = 0; i < value.size(); ++i) {
    SLUICE_ASSIGN_OR_RETURN(std::string stop, TextOf(absl::StrCat("stop[", i, "]"), value[i]));
    stopping->add_stop(std::move(stop));
  }
  return absl::OkStatus();
}

absl::Status ReadLogitBias(const Json& value, v1::Sampling* sampling) {
  if (!value.is_object()) return BadField("logit_bias", "send an object of token ids and numbers");
  for (const auto& [key, bias] : value.items()) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(key, &id))
      return BadField("logit_bias", absl::StrCat("\"", key, "\" is no token id"));
    SLUICE_ASSIGN_OR_RETURN(double number, NumberOf(absl::StrCat("logit_bias.", key), bias));
    (*sampling->mutable_logit_bias())[id] = static_cast<float>(number);
  }
  return absl::OkStatus();
}

absl::Status ReadMetadata(JsonObject* object, google::protobuf::Map<std::string, std::string>* metadata) {
  if (const Json* value = object->Take("metadata")) {
    if (!value->is_object()) return BadField("metadata", "send an object of strings");
    for (const auto& [key, entry] : value->items()) {
      SLUICE_ASSIGN_OR_RETURN((*metadata)[key], TextOf(absl::StrCat("metadata.", key), entry));
    }
  }
  if (const Json* user = object->Take("user")) {
    SLUICE_ASSIGN_OR_RETURN((*metadata)["user"], TextOf("user", *user));
  }
  return absl::OkStatus();
}

absl::Status ReadStream(JsonObject* object, OpenAiShape* shape) {
  if (const Json* value = object->Take("stream")) {
    SLUICE_ASSIGN_OR_RETURN(shape->stream, BoolOf("stream", *value));
  }
  const Json* value = object->Take("stream_options");
  if (value == nullptr) return absl::OkStatus();
  if (!shape->stream) return BadField("stream_options", "only with stream: true");
  SLUICE_ASSIGN_OR_RETURN(JsonObject options, JsonObject::Of(*value, "stream_options", "stream_options."));
  if (const Json* usage = options.Take("include_usage")) {
    SLUICE_ASSIGN_OR_RETURN(shape->include_usage, BoolOf("stream_options.include_usage", *usage));
  }
  options.TakeIf("continuous_usage_stats", false);
  options.TakeIf("include_obfuscation", false);
  return options.CheckAllTaken();
}

absl::Status ReadResponseFormat(const Json& value, v1::Output* output) {
  SLUICE_ASSIGN_OR_RETURN(JsonObject format, JsonObject::Of(value, "response_format", "response_format."));
  const Json* type = format.Take("type");
  if (type == nullptr) return BadField("response_format.type", "missing");
  SLUICE_ASSIGN_OR_RETURN(std::string name, TextOf("response_format.type", *type));
  if (name == "text") return format.CheckAllTaken();
  output->set_response_format(name);  // refused by the parser until it is served
  return absl::OkStatus();
}

// What both endpoints share, but for their prompts. sluice: the extension, or null.
template <class Request>
absl::Status ReadShared(OpenAiEndpoint endpoint, JsonObject* object, JsonObject* sluice, Request* request,
                        OpenAiShape* shape) {
  SLUICE_RETURN_IF_ERROR(ReadPlain(endpoint, false, object, request));
  if (request->sampling().top_k() == -1) request->mutable_sampling()->clear_top_k();  // vLLM's word for off
  SLUICE_RETURN_IF_ERROR(ReadStream(object, shape));
  SLUICE_RETURN_IF_ERROR(ReadMetadata(object, request->mutable_metadata()));
  if (const Json* stop = object->Take("stop")) {
    SLUICE_RETURN_IF_ERROR(ReadStop(*stop, request->mutable_stopping()));
  }
  if (const Json* bias = object->Take("logit_bias")) {
    SLUICE_RETURN_IF_ERROR(ReadLogitBias(*bias, request->mutable_sampling()));
  }
  if (const Json* format = object->Take("response_format")) {
    SLUICE_RETURN_IF_ERROR(ReadResponseFormat(*format, request->mutable_output()));
  }
  for (const char* key : {"echo", "prompt_logprobs"}) {  // likewise
    const Json* value = object->Take(key);
    if (value == nullptr || *value == false) continue;
    key[0] == 'e' ? request->mutable_output()->set_echo(true)
                  : request->mutable_output()->set_prompt_logprobs(true);
  }
  for (const Harmless& harmless : HarmlessValues()) object->TakeIf(harmless.key, harmless.value);
  if (sluice == nullptr) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(ReadPlain(endpoint, true, sluice, request));
  if (const Json* spec = sluice->Take("compression")) {
    SLUICE_RETURN_IF_ERROR(ReadMessage("sluice.compression", *spec, request->mutable_compression()));
  }
  if (const Json* slo = sluice->Take("slo")) {
    SLUICE_RETURN_IF_ERROR(ReadMessage("sluice.slo", *slo, request->mutable_slo()));
  }
  return absl::OkStatus();
}

// Text, or parts of type text, which the template sees on lines of their own, as vLLM has it.
absl::StatusOr<std::string> ReadContent(const std::string& name, const Json& value) {
  if (!value.is_array()) return TextOf(name, value);
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string here = absl::StrCat(name, "[", i, "]");
    SLUICE_ASSIGN_OR_RETURN(JsonObject part, JsonObject::Of(value[i], here, here + "."));
    const Json* type = part.Take("type");
    if (type == nullptr || *type != "text") {
      return FieldNotServed(absl::StrCat(here, ".type other than \"text\""));
    }
    const Json* piece = part.Take("text");
    if (piece == nullptr) return BadField(here + ".text", "missing");
    SLUICE_ASSIGN_OR_RETURN(std::string said, TextOf(here + ".text", *piece));
    SLUICE_RETURN_IF_ERROR(part.CheckAllTaken());
    absl::StrAppend(&text, i == 0 ? "" : "\n", said);
  }
  return text;
}

absl::Status ReadMessages(const Json& value, Messages* messages) {
  if (!value.is_array()) return BadField("messages", absl::StrCat("a ", value.type_name(), "; send a list"));
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string here = absl::StrCat("messages[", i, "]");
    SLUICE_ASSIGN_OR_RETURN(JsonObject said, JsonObject::Of(value[i], here, here + "."));
    v1::Message* message = messages->Add();
    if (const Json* role = said.Take("role")) {
      SLUICE_ASSIGN_OR_RETURN(std::string name, TextOf(here + ".role", *role));
      message->set_role(name == "developer" ? "system" : name);  // OpenAI's newer word
    }
    if (const Json* content = said.Take("content")) {
      SLUICE_ASSIGN_OR_RETURN(*message->mutable_content(), ReadContent(here + ".content", *content));
    }
    SLUICE_RETURN_IF_ERROR(said.CheckAllTaken());
  }
  return absl::OkStatus();
}

absl::Status ReadMaxTokens(JsonObject* object, v1::ChatRequest* request) {
  const Json* value = object->Take("max_completion_tokens");
  if (value == nullptr) return absl::OkStatus();
  v1::Stopping* stopping = request->mutable_stopping();
  const bool twice = stopping->has_max_tokens();
  const int before = stopping->max_tokens();
  SLUICE_RETURN_IF_ERROR(SetField("max_completion_tokens", *value, "stopping.max_tokens", request));
  if (!twice || before == stopping->max_tokens()) return absl::OkStatus();
  return BadField("max_tokens", "not the same as max_completion_tokens; send one of the two");
}

absl::Status ReadSession(JsonObject* sluice, v1::ChatRequest* request) {
  const Json* id = sluice->Take("session_id");
  const Json* parent = sluice->Take("parent_turn_id");
  if (id == nullptr) {
    return parent == nullptr ? absl::OkStatus()
                             : BadField("sluice.parent_turn_id", "send sluice.session_id with it");
  }
  Messages messages = request->messages().messages();
  v1::SessionTurn* turn = request->mutable_session_turn();  // in place of messages
  *turn->mutable_new_messages() = std::move(messages);
  SLUICE_ASSIGN_OR_RETURN(*turn->mutable_session_id(), TextOf("sluice.session_id", *id));
  if (turn->session_id().empty()) return BadField("sluice.session_id", "empty; name a session");
  if (parent != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(*turn->mutable_parent_turn_id(), TextOf("sluice.parent_turn_id", *parent));
  }
  return absl::OkStatus();
}

bool IsIds(const Json& value) { return value.is_array() && !value.empty() && value[0].is_number(); }

absl::Status ReadPrompt(const Json* value, v1::CompleteRequest* request) {
  if (value == nullptr) return BadField("prompt", "missing; send a text, or token ids");
  // A list of one prompt is that prompt.
  if (value->is_array() && !IsIds(*value)) {
    if (value->size() > 1) {
      return BadField("prompt", absl::StrCat(value->size(), " prompts; send one a request"));
    }
    value = &(*value)[0];
  }
  if (IsIds(*value)) return SetField("prompt", *value, "prompt_token_ids.ids", request);
  return SetField("prompt", *value, "prompt", request);
}

// As bytes from anywhere, so that the checks are the same.
absl::Status CheckAsParsed(Message* request) {
  const std::string bytes = request->SerializeAsString();
  return ParseRequest(bytes, request);
}

// The body's object, and its `sluice` if it has one.
struct Opened {
  JsonObject object;
  std::optional<JsonObject> sluice;
};
absl::StatusOr<Opened> Open(const Json& json) {
  if (!json.is_object()) return absl::InvalidArgumentError("the body is not a JSON object");
  SLUICE_ASSIGN_OR_RETURN(JsonObject object, JsonObject::Of(json, "body", ""));
  Opened opened{std::move(object), std::nullopt};
  if (const Json* value = opened.object.Take("sluice")) {
    SLUICE_ASSIGN_OR_RETURN(JsonObject sluice, JsonObject::Of(*value, "sluice", kSluice));
    opened.sluice.emplace(std::move(sluice));
  }
  return opened;
}
absl::Status CheckAllTaken(const Opened& opened) {
  SLUICE_RETURN_IF_ERROR(opened.object.CheckAllTaken());
  return opened.sluice.has_value() ? opened.sluice->CheckAllTaken() : absl::OkStatus();
}
JsonObject* SluiceOf(Opened* opened) { return opened->sluice.has_value() ? &*opened->sluice : nullptr; }

}  // namespace

absl::Status ReadChatCompletion(const std::string& body, v1::ChatRequest* request, OpenAiShape* shape) {
  shape->chat = true;
  SLUICE_ASSIGN_OR_RETURN(Json json, ParseJson(body));
  SLUICE_ASSIGN_OR_RETURN(Opened opened, Open(json));
  JsonObject& object = opened.object;
  SLUICE_RETURN_IF_ERROR(ReadShared(OpenAiEndpoint::kChat, &object, SluiceOf(&opened), request, shape));
  SLUICE_RETURN_IF_ERROR(ReadMaxTokens(&object, request));
  if (const Json* messages = object.Take("messages")) {
    SLUICE_RETURN_IF_ERROR(ReadMessages(*messages, request->mutable_messages()->mutable_messages()));
  }
  if (opened.sluice.has_value()) SLUICE_RETURN_IF_ERROR(ReadSession(&*opened.sluice, request));
  SLUICE_RETURN_IF_ERROR(CheckAllTaken(opened));
  return CheckAsParsed(request);
}

absl::Status ReadCompletion(const std::string& body, v1::CompleteRequest* request, OpenAiShape* shape) {
  shape->chat = false;
  SLUICE_ASSIGN_OR_RETURN(Json json, ParseJson(body));
  SLUICE_ASSIGN_OR_RETURN(Opened opened, Open(json));
  JsonObject& object = opened.object;
  SLUICE_RETURN_IF_ERROR(ReadShared(OpenAiEndpoint::kCompletion, &object, SluiceOf(&opened), request, shape));
  if (!request->stopping().has_max_tokens()) {
    request->mutable_stopping()->set_max_tokens(kDefaultCompletionTokens);
  }
  if (const Json* top = object.Take("logprobs")) {
    SLUICE_RETURN_IF_ERROR(SetField("logprobs", *top, "output.top_logprobs", request));
    request->mutable_output()->set_logprobs(true);
  }
  SLUICE_RETURN_IF_ERROR(ReadPrompt(object.Take("prompt"), request));
  SLUICE_RETURN_IF_ERROR(CheckAllTaken(opened));
  return CheckAsParsed(request);
}

absl::StatusOr<TokenizeAsked> ReadTokenize(const std::string& body) {
  SLUICE_ASSIGN_OR_RETURN(Json json, ParseJson(body));
  SLUICE_ASSIGN_OR_RETURN(Opened opened, Open(json));
  JsonObject& object = opened.object;
  TokenizeAsked asked;
  std::string model;
  if (const Json* name = object.Take("model")) {
    SLUICE_ASSIGN_OR_RETURN(model, TextOf("model", *name));
  }
  object.TakeIf("return_token_strs", false);
  if (const Json* messages = object.Take("messages")) {
    v1::RenderTemplateRequest& request = asked.messages.emplace();
    request.set_model(model);
    SLUICE_RETURN_IF_ERROR(ReadMessages(*messages, request.mutable_messages()));
    if (const Json* prefix = object.Take("add_generation_prompt")) {
      SLUICE_ASSIGN_OR_RETURN(bool add, BoolOf("add_generation_prompt", *prefix));
      request.set_add_reply_prefix(add);
    }
    object.TakeIf("add_special_tokens", false);  // the template writes its own
  } else {
    v1::TokenizeRequest& request = asked.text.emplace();
    request.set_model(model);
    const Json* prompt = object.Take("prompt");
    if (prompt == nullptr) return BadField("prompt", "missing; send prompt or messages");
    SLUICE_ASSIGN_OR_RETURN(*request.mutable_text(), TextOf("prompt", *prompt));
    request.set_add_special(true);
    if (const Json* special = object.Take("add_special_tokens")) {
      SLUICE_ASSIGN_OR_RETURN(bool add, BoolOf("add_special_tokens", *special));
      request.set_add_special(add);
    }
  }
  SLUICE_RETURN_IF_ERROR(CheckAllTaken(opened));
  return asked;
}

absl::Status ReadDetokenize(const std::string& body, v1::DetokenizeRequest* request) {
  SLUICE_ASSIGN_OR_RETURN(Json json, ParseJson(body));
  SLUICE_ASSIGN_OR_RETURN(Opened opened, Open(json));
  if (const Json* name = opened.object.Take("model")) {
    SLUICE_ASSIGN_OR_RETURN(*request->mutable_model(), TextOf("model", *name));
  }
  if (const Json* tokens = opened.object.Take("tokens")) {
    SLUICE_RETURN_IF_ERROR(SetField("tokens", *tokens, "ids", request));
  }
  request->set_keep_special(true);  // as vLLM shows them
  return CheckAllTaken(opened);
}

}  // namespace sluice
