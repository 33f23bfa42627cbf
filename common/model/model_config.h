// Role: turns a model's own description (Hugging Face JSON or GGUF metadata) into a ModelShape.
// Why: what cannot be computed exactly as the model was trained is refused here, by the name of the field.
// Threads: pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/model_shape.h"
#include "common/weights/gguf.h"

namespace sluice {

// model_type llama (Llama 2 and 3.x, SmolLM2), mistral, ministral, qwen2, qwen3. generation_config_json may
// be empty; its eos_token_id wins. InvalidArgument names the field. `name` is left empty.
absl::StatusOr<ModelShape> ParseHfConfig(absl::string_view config_json,
                                         absl::string_view generation_config_json);

// Architectures llama, qwen2, qwen3. `name` is general.name or empty.
absl::StatusOr<ModelShape> ShapeFromGguf(const GgufFile& file);

}  // namespace sluice
