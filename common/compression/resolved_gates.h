// Role: one request's compression as numbers. The router resolves a CompressionSpec once; prefill and decode
// obey these numbers and recompute nothing. Policies are stateless because the numbers come with every call.
#pragma once

#include <string>
#include <vector>

#include "kernels/backend.h"

namespace sluice {

enum class PropagationKind { kNone, kTsp, kRerun };
enum class RetentionKind { kFull, kSnapKv, kStreamingLlm, kChunkKv, kPyramidKv, kAdaKv, kH2o };
enum class SelectionKind { kDense, kHsa, kQuest, kSparq, kSparqWithoutMean, kExactTopK, kExactTopKGroup };
enum class HistoryKind { kEvict, kKeep };

// As in presets and documents: "tsp".
const char* NameOf(PropagationKind kind);
const char* NameOf(RetentionKind kind);
const char* NameOf(SelectionKind kind);
const char* NameOf(HistoryKind kind);

// Why a gate that was asked for is off.
enum class OffCause { kShortPrompt, kHistoryKeep, kLaterTurn, kUnknownLayer, kSlidingWindow, kDenseIsFaster };
const char* OffCauseName(OffCause cause);  // a label of metrics
std::vector<std::string> OffCauseNames();

// How a gate scores rows by the attention of the last queries (algorithms.md §1).
struct Observation {
  int window = 0;  // last queries that are read
  Pooling pooling;
  bool pool_per_head = false;  // before query heads are summed over a group, instead of after
  bool round_weights = false;  // attention weights are rounded to bf16, as in a model of that dtype
  bool raw = false;            // by q.k itself instead of attention weights
  friend bool operator==(const Observation&, const Observation&) = default;
};

struct PropagationGate {
  PropagationKind kind = PropagationKind::kNone;
  int layer = 0;  // 0-based. What is chosen after it enters layer + 1 (kTsp), or layer 0 (kRerun)
  int rows = 0;   // rows that go on, the window among them
  Observation observation;
  friend bool operator==(const PropagationGate&, const PropagationGate&) = default;
};

struct RetentionGate {
  RetentionKind kind = RetentionKind::kFull;
  int budget = 0;           // rows kept per (layer, KV head) on average; a layer with fewer rows keeps all
  int sinks = 0;            // kStreamingLlm: first rows kept
  int recent = 0;           // kH2o: last rows kept
  int chunk = 0;            // kChunkKv: rows of a chunk
  int reuse = 1;            // kChunkKv: so many layers keep the rows that the first of them chose
  bool one_set = false;     // kChunkKv: all KV heads keep the same rows
  int top = 0;              // kPyramidKv: rows kept in layer 0
  int step = 0;             // kPyramidKv: rows that every layer keeps less than the one below it
  int shorter = 0;          // kPyramidKv: so many lowest layers keep one row less than that
  int most = 0;             // kAdaKv: rows that a head keeps at most
  float floor = 0;          // kAdaKv: share of the budget that every head keeps
  Observation observation;  // kH2o reads every query of the turn
  friend bool operator==(const RetentionGate&, const RetentionGate&) = default;
};

struct SelectionGate {
  SelectionKind kind = SelectionKind::kDense;
  int page = 0;      // p: rows of a page of bounds; 1: K is kept transposed, 0: neither
  int channels = 0;  // k1: channels of head_dim scored
  int tokens = 0;    // k2: rows attended exactly, by a KV head, or by each query head (quest, exact_topk)
  friend bool operator==(const SelectionGate&, const SelectionGate&) = default;
};

inline constexpr char kCustomMethod[] = "custom";  // gates that were set one by one

struct ResolvedGates {
  std::string method = "full";  // preset name, or kCustomMethod: the label of metrics and reports
  PropagationGate propagation;
  RetentionGate retention;
  SelectionGate selection;
  HistoryKind history = HistoryKind::kEvict;
  int budget_tokens = 0;             // t as asked for; 0 where nothing is budgeted
  std::vector<OffCause> off_causes;  // empty: applied as asked
  std::string off_reason;            // the same for people, with numbers
  friend bool operator==(const ResolvedGates&, const ResolvedGates&) = default;
};

}  // namespace sluice
