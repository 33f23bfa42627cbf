// Role: what a method costs, from its gates' numbers: in bytes for one prompt, and as formulas for people.
// Why: a method is chosen before anything runs; what really was stored and sent comes back with every reply.
// Threads: pure functions.
#pragma once

#include <string>

#include "common/compression/resolved_gates.h"
#include "common/kvcache/kv_shape.h"

namespace sluice {

// A prompt of n tokens, bytes over all layers and KV heads. Pages that are not full are not counted.
struct MethodCosts {
  double prefill_share = 1;  // rows that go through layers, of n in every layer
  double kept_rows = 0;      // per layer and KV head, on average
  double full_bytes = 0;     // K,V of the whole prompt
  double stored_bytes = 0;   // on decode: kept K,V, and what selection keeps beside them
  double wire_bytes = 0;     // kept K,V and their positions
  double read_bytes = 0;     // by the first decode step
};
MethodCosts CostsOf(const ResolvedGates& gates, const KvShape& shape, int prompt_tokens);

// In rows of K,V per layer and KV head. n: prompt tokens, t: budget, L: layers, D: head_dim, g: tokens
// generated.
struct MethodFormulas {
  std::string prefill;  // share of n rows in every layer
  std::string kept;     // and sent
  std::string stored;   // of `kept` rows
  std::string read;     // of `kept` rows, at a step
};
MethodFormulas FormulasOf(const ResolvedGates& gates);

}  // namespace sluice
