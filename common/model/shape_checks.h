// Role: the checks and the table that both configuration readers share.
// Threads: pure functions.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/model/model_shape.h"

namespace sluice {

// Consistency between numbers that are each in range. Names are the configuration's own, for the message.
struct ShapeFieldNames {
  absl::string_view n_q_heads;
  absl::string_view n_kv_heads;
  absl::string_view head_dim;
};
absl::Status CheckShape(const ModelShape& shape, absl::string_view where, const ShapeFieldNames& names);

// The propagation layer of a model known by its geometry.
std::optional<int> KnownTspLayer(const ModelShape& shape);

// Ranges of single fields: generous for any real model, small enough that products fit int64.
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxWidth = 1 << 20;  // hidden, intermediate
inline constexpr int kMaxHeads = 4096;
inline constexpr int kMaxHeadDim = 1024;
inline constexpr int kMaxVocab = 1 << 24;
inline constexpr int kMaxContext = 1 << 28;

}  // namespace sluice
