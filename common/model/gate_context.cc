#include "common/model/gate_context.h"

#include <algorithm>

namespace sluice {

GateContext GateContextOf(const ModelShape& shape, int prompt_tokens, int max_tokens) {
  GateContext context;
  context.prompt_tokens = context.turn_tokens = prompt_tokens;
  context.max_tokens = max_tokens;
  context.context = shape.context;
  context.head_dim = shape.head_dim;
  context.n_layers = shape.n_layers;
  context.n_kv_heads = shape.n_kv_heads;
  context.sliding_window = std::any_of(shape.sliding_window.begin(), shape.sliding_window.end(),
                                       [](int window) { return window > 0; });
  context.tsp_layer = shape.tsp_layer;
  return context;
}

}  // namespace sluice
