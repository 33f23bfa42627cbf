// Role: the table of vector kernels of one instruction set, with plain arguments: each entry is one task, or
// one range of rows, of an op; ops (../matmul.cc, ...) check shapes, split work over threads and call them.
// Why: one binary runs on every x86 machine with AVX2; see vec.h for what these files may include. Threads:
// entries are pure functions of their arguments.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/limits.h"

namespace sluice {

constexpr int kPanelRows = 16;  // outputs of a weight panel

// Up to matmul_block_rows rows of x against the packed panels of a matrix (../packed_matrix.h).
struct MatMulBlock {
  const float* x;  // [n, cols], row stride x_stride
  int64_t x_stride;
  int n;
  int cols;
  const uint16_t* panels;
  int rows;
  const float* bias;  // [rows] or null
  bool accumulate;
  float* out;  // [n, rows], row stride out_stride
  int64_t out_stride;
};

// One block of queries of one KV head.
struct AttentionBlock {
  const float* q;  // query r, head g of the group at q + r * q_row_stride + g * head_dim
  int64_t q_row_stride;
  int n_queries;
  int group;
  int head_dim;
  bool bf16;      // dtype of k and v
  const void* k;  // [len, head_dim]
  const void* v;
  int64_t k_row_stride, v_row_stride;
  int visible;               // query r sees keys [0, visible + r)
  const int32_t* positions;  // of the keys; null: no sliding window
  int sliding_window;
  float* out;  // as q
  int64_t out_row_stride;
  float* lse;  // query r >= lse_first, head g: lse[g * lse_head_stride + r - lse_first]
  int64_t lse_head_stride;
  int lse_first;  // n_queries or more: none asked
};

// Scores of keys [key_begin, key_end) of one KV head under the whole window.
struct WindowScoresBlock {
  const float* q;  // [window, group, head_dim], row stride q_row_stride
  int64_t q_row_stride;
  int window;
  int group;  // query heads that are summed
  int head_dim;
  bool bf16;
  const void* k;
  int64_t k_row_stride;
  const float* lse;  // [group, window], head stride lse_head_stride; not read if raw
  int64_t lse_head_stride;
  int key_begin, key_end;
  int first_query_row;       // key row of query 0
  const int32_t* positions;  // null: no sliding window
  int sliding_window;
  bool raw;
  bool round_weights;
  bool accumulate;
  float* scores;  // at key 0
};

constexpr int kRowBlock = 64;  // rows that one step of AttendRows takes

// State of an online softmax over one part of a decode query group; o is not yet divided by l.
struct DecodePartial {
  float* m;  // [group] running maximum
  float* l;  // [group] sum of exp(s - m)
  float* o;  // [group, head_dim]
};

struct MatMulKernels {
  int block_rows;                            // rows of x that one block may have
  size_t (*packed_bytes)(int n, int cols);   // of a block's activations
  size_t (*scratch_bytes)(int n, int cols);  // of one call of `run`
  int panel_step;                            // panels that fit each other best in one call
  int (*k_blocks)(int n, int cols);          // parts of the packed form
  void (*pack)(const MatMulBlock& block, int k_block, void* packed);
  void (*run)(const MatMulBlock& block, const void* packed, int panel_begin, int panel_end, void* scratch);
};

struct AttentionKernels {
  size_t (*scratch_bytes)(int rows, int head_dim);  // rows = queries * group
  void (*attention)(const AttentionBlock& block, void* scratch);
  void (*window_scores)(const WindowScoresBlock& block, void* scratch);
};

struct DecodeKernels {
  // Adds n <= kRowBlock rows, given by pointers, to the partial. q [group, head_dim] already scaled.
  void (*attend_rows)(const float* q, int group, int head_dim, bool bf16, const void* const* k_rows,
                      const void* const* v_rows, int n, const DecodePartial& partial);

  // scores[g, i] = q_g . k_i for i < n rows given by pointers.
  void (*row_scores)(const float* q, int group, int head_dim, bool bf16, const void* const* k_rows, int n,
                     float* scores, int64_t score_stride);

  // scores[g, i] = sum over channels c of w[g, c] * lines[c][i] for i < 64: lines of one bounds chunk.
  void (*page_scores)(const float* w, int64_t w_stride, int group, int n_channels, bool bf16,
                      const void* const* lines, float* scores, int64_t score_stride);

  // weights[j] = mean over g of the softmax over tokens of scores[g, j] * inverse_tau[g]; page j holds `page`
  // tokens, the last one last_page. Overwrites scores.
  void (*page_weights)(float* scores, int64_t score_stride, int group, int n_pages, int page, int last_page,
                       const float* inverse_tau, float* weights);
};

struct RowKernels {
  void (*rms_norm)(const float* x, const float* weight, float eps, int n, float* out);
  // One head in place; shift [head_dim] or null.
  void (*rope)(float* x, const float* cos_sin, const float* shift, int head_dim);
  void (*swiglu)(const float* gate, const float* up, int n, float* out);
  void (*round_to_bf16)(const float* x, int n, uint16_t* out);  // nearest even
  void (*add)(const float* x, int n, float* sum);               // sum += x
  // The sum of words[i] times (2 i + 1 mod 2^32), mod 2^64.
  uint64_t (*checksum)(const uint32_t* words, int64_t n);
  // out[i] = max of out[i] and x[i + d * direction] * weights[d] over d < n_weights, for i < n. x is readable
  // over all of that reach; x_max bounds it from above.
  void (*fade)(const float* x, int n, const float* weights, int n_weights, int direction, float x_max,
               float* out);
};

struct IsaKernels {
  const MatMulKernels* matmul;
  const AttentionKernels* attention;
  const DecodeKernels* decode;
  const RowKernels* row;
};

#define SLUICE_DECLARE_ISA(isa)             \
  namespace isa {                           \
  extern const MatMulKernels kMatMul;       \
  extern const AttentionKernels kAttention; \
  extern const DecodeKernels kDecode;       \
  extern const RowKernels kRow;             \
  }
SLUICE_DECLARE_ISA(avx2)
SLUICE_DECLARE_ISA(avx512)
SLUICE_DECLARE_ISA(avx512_bf16)
#undef SLUICE_DECLARE_ISA

}  // namespace sluice
