#include "router/text_calls.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/status_codec.h"
#include "router/request_plan.h"

namespace sluice {
namespace {

using Messages = google::protobuf::RepeatedPtrField<v1::Message>;

absl::Status CheckBytes(absl::string_view field, size_t bytes) {
  if (bytes <= kMaxCalledTextBytes) return absl::OkStatus();
  return BadField(field, absl::StrCat(bytes, " bytes; at most ", kMaxCalledTextBytes));
}

absl::Status CheckConversation(const Messages& messages) {
  SLUICE_RETURN_IF_ERROR(CheckMessages(messages, "messages"));
  size_t bytes = 0;
  for (const v1::Message& message : messages) bytes += message.role().size() + message.content().size();
  return CheckBytes("messages", bytes);
}

}  // namespace

absl::StatusOr<v1::TokenizeResponse> Tokenize(const ServedModel& model, const v1::TokenizeRequest& request) {
  SLUICE_RETURN_IF_ERROR(CheckModelName(model, request.model()));
  SLUICE_RETURN_IF_ERROR(CheckBytes("text", request.text().size()));
  const EncodeOptions options{.parse_special = request.parse_special(), .add_special = request.add_special()};
  SLUICE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, model.tokenizer->Encode(request.text(), options));
  v1::TokenizeResponse response;
  response.mutable_ids()->Add(ids.begin(), ids.end());
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> Detokenize(const ServedModel& model,
                                                  const v1::DetokenizeRequest& request) {
  SLUICE_RETURN_IF_ERROR(CheckModelName(model, request.model()));
  if (request.ids_size() > kMaxCalledIds) {
    return BadField("ids", absl::StrCat(request.ids_size(), " ids; at most ", kMaxCalledIds));
  }
  for (int32_t id : request.ids()) {
    if (id < 0 || id >= model.shape.vocab) {
      return BadField("ids", absl::StrCat(id, " is not in the vocabulary [0, ", model.shape.vocab, ")"));
    }
  }
  v1::DetokenizeResponse response;
  response.set_text(model.tokenizer->Decode({request.ids().data(), static_cast<size_t>(request.ids_size())},
                                            /*skip_special=*/!request.keep_special()));
  return response;
}

absl::StatusOr<v1::RenderTemplateResponse> RenderTemplate(const ServedModel& model,
                                                          const v1::RenderTemplateRequest& request) {
  SLUICE_RETURN_IF_ERROR(CheckModelName(model, request.model()));
  SLUICE_RETURN_IF_ERROR(CheckConversation(request.messages()));
  const bool prefix = !request.has_add_reply_prefix() || request.add_reply_prefix();
  SLUICE_ASSIGN_OR_RETURN(std::vector<TextSegment> segments,
                          model.render(TurnMessagesOf(request.messages()), prefix));
  SLUICE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, model.tokenizer->EncodeSegments(segments));
  v1::RenderTemplateResponse response;
  for (const TextSegment& segment : segments) response.mutable_text()->append(segment.text);
  response.mutable_ids()->Add(ids.begin(), ids.end());
  return response;
}

absl::StatusOr<v1::CountTokensResponse> CountTokens(const ServedModel& model,
                                                    const v1::CountTokensRequest& request) {
  SLUICE_RETURN_IF_ERROR(CheckModelName(model, request.model()));
  std::vector<int32_t> ids;
  if (request.has_text()) {
    if (request.messages_size() > 0) return BadField("text", "set messages or text, not both");
    SLUICE_RETURN_IF_ERROR(CheckBytes("text", request.text().size()));
    SLUICE_ASSIGN_OR_RETURN(ids, model.tokenizer->Encode(request.text()));
  } else {
    SLUICE_RETURN_IF_ERROR(CheckConversation(request.messages()));
    SLUICE_ASSIGN_OR_RETURN(std::vector<TextSegment> segments,
                            model.render(TurnMessagesOf(request.messages()), true));
    SLUICE_ASSIGN_OR_RETURN(ids, model.tokenizer->EncodeSegments(segments));
  }
  v1::CountTokensResponse response;
  response.set_tokens(static_cast<int32_t>(ids.size()));
  return response;
}

}  // namespace sluice
