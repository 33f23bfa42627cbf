// Role: every op as the simplest scalar code that could be right, in f64, on host memory: what the parity
// suite holds all backends against. Shapes are those of Ops (backend.h). Not linked into servers.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "kernels/backend.h"

namespace sluice::reference {

// Element of a view as f64; dtype f32 or bf16.
double Get(const TensorView& view, int64_t i, int64_t j = 0, int64_t k = 0);
void Set(const TensorView& view, double value, int64_t i, int64_t j = 0, int64_t k = 0);

void RmsNorm(TensorView x, TensorView weight, float eps, TensorView out);
// w [rows, cols] f32 row-major.
void MatMul(TensorView x, TensorView w, TensorView bias, bool accumulate, TensorView out);
void Rope(TensorView x, TensorView positions, TensorView cos_sin, TensorView shift);
void SwiGlu(TensorView gate_up, TensorView out);
void StoreKv(TensorView k, TensorView v, TensorView k_out, TensorView v_out);
void Attention(const AttentionArgs& args);
void WindowScores(const WindowScoresArgs& args);
void Pool(TensorView scores, const Pooling& pooling, TensorView out);
uint64_t Checksum(TensorView words);  // [n] of a 4-byte dtype
void SumHeads(TensorView scores, TensorView out);
void ArgMax(TensorView x, TensorView out);
// Leaves the logits as they are.
void Sample(TensorView logits, absl::Span<const SampleRule> rules, TensorView out);
void SelectTop(TensorView scores, int k, int tail, TensorView rows);
void GatherRows(TensorView x, TensorView rows, TensorView out);
void GatherKv(TensorView k, TensorView v, TensorView positions, TensorView rows, absl::Span<const int> kept,
              TensorView k_out, TensorView v_out, TensorView positions_out);

// Decode works on plain rows: k, v [len, d] of one KV head, q and out [group, d].
void DecodeAttention(TensorView q, TensorView k, TensorView v, const std::vector<int>& rows, TensorView out);

// The rows that hybrid sparse attention (algorithms.md §3.3) attends to, ascending.
struct HsaChoice {
  std::vector<int> rows;
  std::vector<std::vector<double>> page_scores;  // [group][page], before the temperature
  std::vector<int> channels;
  // Relative distance between the last chosen and the first rejected weight of different pages, and between
  // the last chosen and the first rejected channel: below f32 noise another order of sums may choose
  // otherwise.
  double margin;
};
HsaChoice ChooseHsaRows(TensorView q, TensorView k, int page, int channels, int tokens);

// The rows that the other sparse attentions read, ascending; margins as above, but of scores: a difference
// over the larger of 1 and the score at the cut.
struct RowChoice {
  std::vector<int> rows;
  double margin;
};
// Of one query head, q [1, d].
RowChoice ChooseQuestRows(TensorView q, TensorView k, int page, int tokens);
// Of a query group, q [group, d]; shares: of each head's approximate softmax in these rows.
RowChoice ChooseSparqRows(TensorView q, TensorView k, int channels, int tokens, std::vector<double>* shares);
// By the mean over q [group, d] of the softmax over all rows: of one head, its best rows.
RowChoice ChooseTopRows(TensorView q, TensorView k, int tokens);
// Moves what shares leave of out [group, d] to the mean of v's rows.
void AddMeanValue(TensorView v, const std::vector<double>& shares, TensorView out);

}  // namespace sluice::reference
