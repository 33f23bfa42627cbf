// Role: one request's compression as numbers. The router resolves a CompressionSpec once; prefill and decode
// obey these numbers and recompute nothing. Policies are stateless because the numbers come with every call.
#pragma once

#include <string>
#include <vector>

#include "kernels/backend.h"

namespace sluice {

enum class PropagationKind { kNone, kTsp };
enum class RetentionKind { kFull, kSnapKv, kStreamingLlm };
enum class SelectionKind { kDense, kHsa, kQuest, kSparq, kSparqWithoutMean, kExactTopK, kExactTopKGroup };
enum class HistoryKind { kEvict, kKeep };

// Why a gate that was asked for is off.
enum class OffCause { kShortPrompt, kHistoryKeep, kLaterTurn, kUnknownLayer, kSlidingWindow };
const char* OffCauseName(OffCause cause);  // a label of metrics
std::vector<std::string> OffCauseNames();

struct PropagationGate {
  PropagationKind kind = PropagationKind::kNone;
  int layer = 0;   // 0-based: the rows chosen after this layer enter layer + 1
  int rows = 0;    // rows that go on, window included
  int window = 0;  // observation window = last rows, always kept
  Pooling pooling;
  friend bool operator==(const PropagationGate&, const PropagationGate&) = default;
};

struct RetentionGate {
  RetentionKind kind = RetentionKind::kFull;
  int budget = 0;  // rows kept per (layer, KV head), window included; a layer with fewer rows keeps all
  int window = 0;  // kSnapKv: observation window
  int sinks = 0;   // kStreamingLlm: first rows kept
  Pooling pooling;
  friend bool operator==(const RetentionGate&, const RetentionGate&) = default;
};

struct SelectionGate {
  SelectionKind kind = SelectionKind::kDense;
  int page = 0;      // p: rows of a page of bounds; 1: K is kept transposed, 0: neither
  int channels = 0;  // k1: channels of head_dim scored
  int tokens = 0;    // k2: rows attended exactly, by a KV head, or by each query head (quest, exact_topk)
  friend bool operator==(const SelectionGate&, const SelectionGate&) = default;
};

struct ResolvedGates {
  std::string method = "full";  // preset name, or "custom": the label of metrics and reports
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
