// Role: the one model that this router serves: its texts (tokenizer, chat template), its shape, and what is
// said about it. Why it exists: the router needs no weights. Threads: immutable after loading.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/compression/compression_spec.h"
#include "common/model/model_shape.h"
#include "common/session/session_store.h"
#include "common/text/marked_text.h"
#include "common/text/tokenizer.h"
#include "sluice/internal/v1/worker.pb.h"
#include "sluice/v1/models.pb.h"

namespace sluice {

// The text of a conversation; with add_reply_prefix it ends where the model's reply begins. InvalidArgument:
// the template refuses the messages.
using RenderFn = std::function<absl::StatusOr<std::vector<TextSegment>>(
    absl::Span<const TurnMessage> messages, bool add_reply_prefix)>;

inline constexpr int kDefaultMaxLogprobs = 20;  // largest output.top_logprobs, as in vLLM

struct ServedModel {
  std::string name;
  ModelShape shape;
  std::unique_ptr<Tokenizer> tokenizer;
  RenderFn render;
  internal::v1::ModelIdentity identity;     // what workers must agree with
  v1::Model description;                    // for clients, but for the defaults
  int hsa_pays_from = kDefaultHsaPaysFrom;  // see GateContext
};

// path: a Hugging Face directory or a GGUF file. name: as clients call it; empty: the directory's or file's.
absl::StatusOr<ServedModel> LoadServedModel(const std::string& path, const std::string& name);

}  // namespace sluice
