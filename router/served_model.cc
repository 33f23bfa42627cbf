#include "router/served_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/compression/compression_spec.h"
#include "common/model/model_dir.h"
#include "common/text/chat_template.h"
#include "router/request_plan.h"

namespace sluice {
namespace {

// The rendering is the template's; this gives it the tokenizer's own tokens and today's date.
RenderFn RendererOf(ChatTemplate chat_template, const Tokenizer& tokenizer) {
  return [chat_template = std::move(chat_template), bos = tokenizer.bos_token(), eos = tokenizer.eos_token()](
             absl::Span<const TurnMessage> messages, bool add_reply_prefix) {
    std::vector<ChatMessage> chat;
    for (const TurnMessage& message : messages) chat.push_back({message.role, message.content});
    ChatTemplateInput input;
    input.messages = chat;
    input.bos_token = bos;
    input.eos_token = eos;
    input.add_generation_prompt = add_reply_prefix;
    input.now = absl::Now();
    return chat_template.Render(input);
  };
}

v1::Model Describe(const ServedModel& model, const std::string& template_hash) {
  v1::Model out;
  const ModelShape& shape = model.shape;
  out.set_id(model.name);
  out.set_architecture(shape.family);
  out.set_context_length(shape.context);
  out.set_layers(shape.n_layers);
  out.set_hidden(shape.hidden);
  out.set_q_heads(shape.n_q_heads);
  out.set_kv_heads(shape.n_kv_heads);
  out.set_head_dim(shape.head_dim);
  out.set_vocabulary(shape.vocab);
  out.set_weight_dtype("bf16");  // whatever the file holds, the backend computes with bf16
  out.set_kv_dtype(model.identity.kv_dtype());
  out.set_kv_bytes_per_token(uint64_t{2} * 2 * shape.n_layers * shape.n_kv_heads * shape.head_dim);
  out.set_chat_template_hash(template_hash);
  out.set_max_logprobs(std::min(kDefaultMaxLogprobs, shape.vocab));
  for (const Preset& preset : Presets()) out.add_compression_presets(preset.name);
  return out;
}

}  // namespace

absl::StatusOr<ServedModel> LoadServedModel(const std::string& path, const std::string& name) {
  ServedModel model;
  SLUICE_ASSIGN_OR_RETURN(ModelFiles files, OpenModel(path));
  SLUICE_ASSIGN_OR_RETURN(model.tokenizer, OpenTokenizer(path));
  model.shape = files.shape;
  model.name = name.empty() ? files.shape.name : name;
  if (model.tokenizer->chat_template().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": no chat template; --model needs a model that was trained to chat"));
  }
  SLUICE_ASSIGN_OR_RETURN(ChatTemplate chat_template, ChatTemplate::Parse(model.tokenizer->chat_template()));

  internal::v1::ModelIdentity& id = model.identity;
  id.set_name(model.name);
  id.set_weights_hash(WeightsHash(files));
  id.set_tokenizer_hash(model.tokenizer->hash());
  id.set_rope_hash(RopeHash(model.shape));
  id.set_kv_dtype("bf16");
  id.set_layers(model.shape.n_layers);
  id.set_q_heads(model.shape.n_q_heads);
  id.set_kv_heads(model.shape.n_kv_heads);
  id.set_head_dim(model.shape.head_dim);
  id.set_vocabulary(model.shape.vocab);
  id.set_context(model.shape.context);
  model.description = Describe(model, chat_template.hash());
  model.render = RendererOf(std::move(chat_template), *model.tokenizer);
  return model;
}

}  // namespace sluice
