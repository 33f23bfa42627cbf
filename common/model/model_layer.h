// Role: the weights of one transformer layer as they lie on the device.
// Threads: immutable after loading.
#pragma once

#include <memory>

#include "common/model/model.h"

namespace sluice {

struct Model::Layer {
  Buffer attention_norm;            // [hidden] f32
  std::unique_ptr<Matrix> qkv;      // [(n_q_heads + 2 n_kv_heads) * head_dim, hidden]
  Buffer qkv_bias;                  // [rows of qkv] f32; empty without biases
  Buffer key_center;                // [n_q_heads + n_kv_heads, head_dim] f32; empty without biases
  Buffer q_norm, k_norm;            // [head_dim] f32; empty without q/k norm
  std::unique_ptr<Matrix> o;        // [hidden, n_q_heads * head_dim]
  Buffer mlp_norm;                  // [hidden] f32
  std::unique_ptr<Matrix> gate_up;  // [2 * intermediate, hidden]: gate rows, then up rows
  std::unique_ptr<Matrix> down;     // [hidden, intermediate]
};

}  // namespace sluice
