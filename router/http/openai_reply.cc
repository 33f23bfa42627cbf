#include "router/http/openai_reply.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/http/openai_error.h"

namespace sluice {
namespace {

constexpr double kLeastLogprob = -9999;  // JSON has no infinity; vLLM says this, too

double LogprobOf(const v1::TokenLogprob& token) { return std::max<double>(token.logprob(), kLeastLogprob); }

Json TokenJson(const v1::TokenLogprob& token) {
  Json bytes = Json::array();
  for (const char c : token.text()) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", token.text()}, {"logprob", LogprobOf(token)}, {"bytes", std::move(bytes)}};
}

size_t Characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

Json MessageJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return Json();
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

Json UsageJson(const v1::Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens()},
          {"completion_tokens", usage.completion_tokens()},
          {"total_tokens", usage.prompt_tokens() + usage.completion_tokens()},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens()}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens()}}}};
}

const char* FinishOf(v1::FinishReason reason) {
  switch (reason) {
    case v1::LENGTH:
    case v1::CONTEXT_FULL:
      return "length";
    case v1::TOOL_CALLS:
      return "tool_calls";
    case v1::CANCELLED:
      return "cancelled";
    case v1::ERROR:
      return "error";
    default:
      return "stop";
  }
}

// The stop string, as vLLM tells it.
Json StopReasonOf(const v1::Choice& choice) {
  return choice.finish_reason() == v1::STOP_STRING ? Json(choice.matched_stop()) : Json();
}

std::string Event(const Json& chunk) { return absl::StrCat("data: ", Dump(chunk), "\n\n"); }

// Lists of the same names, one after the other.
void Append(const Json& more, Json* lists) {
  if (more.is_null()) return;
  if (lists->is_null()) {
    *lists = more;
    return;
  }
  for (auto& [name, list] : lists->items()) {
    if (!list.is_array()) continue;
    for (const Json& item : more.at(name)) list.push_back(item);
  }
}

}  // namespace

std::string OpenAiReply::Take(const v1::ChatEvent& event) {
  switch (event.event_case()) {
    case v1::ChatEvent::kStarted:
      started_ = event.started();
      return "";
    case v1::ChatEvent::kDelta:
      return TakeDelta(event.delta());
    case v1::ChatEvent::kDone:
      done_ = event.done();
      return shape_.stream ? TakeDone() : "";
    default:
      return "";
  }
}

Json OpenAiReply::Frame() const {
  const char* object = !shape_.chat    ? "text_completion"
                       : shape_.stream ? "chat.completion.chunk"
                                       : "chat.completion";
  return {{"id", absl::StrCat(shape_.chat ? "chatcmpl-" : "cmpl-", started_.request_id())},
          {"object", object},
          {"created", created_},
          {"model", started_.model()}};
}

Json OpenAiReply::Chunk(int index, Json said, Json logprobs) const {
  Json choice = {{"index", index}, {"logprobs", std::move(logprobs)}, {"finish_reason", nullptr}};
  choice[shape_.chat ? "delta" : "text"] = std::move(said);
  Json chunk = Frame();
  chunk["choices"] = Json::array({std::move(choice)});
  if (shape_.include_usage) chunk["usage"] = nullptr;
  return chunk;
}

std::string OpenAiReply::TakeDelta(const v1::Delta& delta) {
  Said& said = said_[delta.index()];
  Json logprobs = shape_.chat ? ChatLogprobs(delta) : CompletionLogprobs(delta, &said);
  if (!shape_.stream) {
    said.text.append(delta.text());
    Append(logprobs, &said.logprobs);
    return "";
  }
  std::string out;
  if (!std::exchange(said.begun, true) && shape_.chat) {
    out = Event(Chunk(delta.index(), {{"role", "assistant"}, {"content", ""}}, nullptr));
  }
  if (delta.text().empty() && logprobs.is_null()) return out;
  Json text = delta.text();
  if (shape_.chat) text = {{"content", delta.text()}};
  return out + Event(Chunk(delta.index(), std::move(text), std::move(logprobs)));
}

std::string OpenAiReply::TakeDone() {
  std::string out;
  for (int i = 0; i < done_.choices_size(); ++i) {
    const v1::Choice& choice = done_.choices(i);
    Json said = shape_.chat ? Json::object() : Json("");
    if (shape_.chat && !said_[choice.index()].begun) said = {{"role", "assistant"}, {"content", ""}};
    Json chunk = Chunk(choice.index(), std::move(said), nullptr);
    chunk["choices"][0]["finish_reason"] = FinishOf(choice.finish_reason());
    chunk["choices"][0]["stop_reason"] = StopReasonOf(choice);
    if (!shape_.include_usage && i + 1 == done_.choices_size()) chunk["sluice"] = Extension();
    out += Event(chunk);
  }
  if (!shape_.include_usage) return out;
  Json last = Frame();
  last["choices"] = Json::array();
  last["usage"] = UsageJson(done_.usage());
  last["sluice"] = Extension();
  return out + Event(last);
}

std::string OpenAiReply::Whole() const {
  Json whole = Frame();
  whole["choices"] = Json::array();
  for (const v1::Choice& choice : done_.choices()) {
    const auto found = said_.find(choice.index());
    const Said said = found == said_.end() ? Said() : found->second;
    Json out = {{"index", choice.index()},
                {"logprobs", said.logprobs},
                {"finish_reason", FinishOf(choice.finish_reason())},
                {"stop_reason", StopReasonOf(choice)}};
    if (shape_.chat) {
      out["message"] = {{"role", "assistant"}, {"content", said.text}, {"refusal", nullptr}};
    } else {
      out["text"] = said.text;
    }
    whole["choices"].push_back(std::move(out));
  }
  whole["usage"] = UsageJson(done_.usage());
  whole["sluice"] = Extension();
  return Dump(whole);
}

Json OpenAiReply::ChatLogprobs(const v1::Delta& delta) const {
  if (delta.logprobs().empty()) return nullptr;
  Json content = Json::array();
  for (const v1::TokenLogprobs& token : delta.logprobs()) {
    Json entry = TokenJson(token.chosen());
    entry["top_logprobs"] = Json::array();
    for (const v1::TokenLogprob& top : token.top()) entry["top_logprobs"].push_back(TokenJson(top));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json OpenAiReply::CompletionLogprobs(const v1::Delta& delta, Said* said) const {
  if (delta.logprobs().empty()) return nullptr;
  Json tokens = Json::array(), chosen = Json::array(), top = Json::array(), offsets = Json::array();
  for (const v1::TokenLogprobs& token : delta.logprobs()) {
    tokens.push_back(token.chosen().text());
    chosen.push_back(LogprobOf(token.chosen()));
    Json best = Json::object();
    for (const v1::TokenLogprob& entry : token.top()) best[entry.text()] = LogprobOf(entry);
    best[token.chosen().text()] = LogprobOf(token.chosen());
    top.push_back(std::move(best));
    offsets.push_back(said->end);
    said->end += Characters(token.chosen().text());
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(chosen)},
          {"top_logprobs", std::move(top)},
          {"text_offset", std::move(offsets)}};
}

Json OpenAiReply::Extension() const {
  Json out = {{"request_id", started_.request_id()},
              {"attempts", done_.attempts()},
              {"compression", MessageJson(done_.compression())},
              {"timings", MessageJson(done_.timings())}};
  if (!started_.session_id().empty()) {
    out["session_id"] = started_.session_id();
    out["turn_id"] = started_.turn_id();
  }
  return out;
}

}  // namespace sluice
