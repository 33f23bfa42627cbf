// Role: one decode step of a batch: one token per sequence through all layers. Sequences whose selection
// gates are of one kind share attention calls; everything else is shared by all. Threads: one loop (the
// decode loop).
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/compression/resolved_gates.h"
#include "common/kvcache/decode_cache.h"
#include "common/kvcache/sequence_kv.h"
#include "common/model/model.h"
#include "kernels/sampling.h"

namespace sluice {

struct DecodeRow {
  SequenceKv* kv = nullptr;  // of the stepper's cache, with room for one more row (ReserveAppend)
  SelectionKind selection = SelectionKind::kDense;
  int32_t token = 0;    // the last sampled token, whose K,V this step adds
  LogicalLen position;  // its RoPE position: the tokens seen before it, however few rows were kept
  const SampleRule* rule = nullptr;  // how the next token is drawn, whatever its row; null: the best one
  bool wants_logits = true;
};

struct DecodeResult {
  int32_t token = -1;              // the next one; -1: the logits are not finite
  absl::Span<const float> logits;  // [vocab] where the row wants them, valid until the next call
};

class DecodeStepper {
 public:
  DecodeStepper(const Model* model, DecodeCache* cache);  // both outlive it
  ~DecodeStepper();

  // The queue of the steps. SequenceKv::ReserveAppend takes it, so that a step sees the new pages.
  Ops& ops();

  // Of each row. No sequence twice. On an error no row's K,V counts as added. InvalidArgument, OutOfRange:
  // rows[i] is named.
  absl::StatusOr<std::vector<DecodeResult>> Run(absl::Span<const DecodeRow> rows);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
