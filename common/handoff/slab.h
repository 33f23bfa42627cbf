// Role: how a layer's kept rows travel. A slab is a run of rows of one layer's KeptLayer, small enough for
// one ring slot: its K rows, then its V rows, then its i32 positions. Why: few large messages instead of a
// fragment per page, and a cut that both ends can check. Threads: none, pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/strong_id.h"
#include "common/kvcache/kept_layer.h"
#include "common/kvcache/kv_shape.h"

namespace sluice {

// Rows of heads [head_begin, head_begin + rows.size()) of one layer, heads one after another. Rows
// [row_begin[i], row_begin[i] + rows[i]) are counted inside head head_begin + i; only the first head may
// begin above 0.
struct SlabHeader {
  LayerId layer;
  int head_begin = 0;
  std::vector<int> row_begin;  // [heads of the slab]
  std::vector<int> rows;       // [heads of the slab]

  int64_t total_rows() const {
    int64_t sum = 0;
    for (int n : rows) sum += n;
    return sum;
  }
  friend bool operator==(const SlabHeader&, const SlabHeader&) = default;
};

// Where a slab's parts lie: K at 0, V and positions at these offsets.
struct SlabLayout {
  size_t v_offset = 0;
  size_t positions_offset = 0;
  size_t bytes = 0;
};
SlabLayout LayoutOf(const SlabHeader& header, const KvShape& shape);

// Cuts a layer into slabs of at most slot_bytes, the same way every time. A layer without rows has none.
// kept: [n_kv_heads] rows. InvalidArgument when slot_bytes cannot hold one row.
absl::StatusOr<std::vector<SlabHeader>> CutLayer(LayerId layer, absl::Span<const int> kept,
                                                 const KvShape& shape, size_t slot_bytes);

// One head's share of a slab; pointers into its bytes, which only ops read.
struct SlabRun {
  int kv_head = 0;
  int row_begin = 0;
  int n_rows = 0;
  const char* k = nullptr;  // [n_rows, head_dim] KV dtype
  const char* v = nullptr;
  absl::Span<const int32_t> positions;  // [n_rows], of the positions given
};
// positions: [header.total_rows()] on the host.
std::vector<SlabRun> RunsOf(const SlabHeader& header, const KvShape& shape, const char* slab,
                            absl::Span<const int32_t> positions);

// What the receiver knows of one layer so far; rows of a head must arrive in order, without gaps.
struct LayerProgress {
  std::vector<int> ceiling;            // [n_kv_heads] rows reserved
  std::vector<int> kept;               // [n_kv_heads] rows received
  std::vector<int32_t> last_position;  // [n_kv_heads] of the last row received, -1: none
};

// Counts and bounds of a header that came from a peer, before anything is read or allocated by it.
// InvalidArgument says what is wrong.
absl::Status CheckHeader(const SlabHeader& header, const KvShape& shape, size_t slot_bytes);
// Its rows follow the layer's rows before and stay below the ceilings. The header has been checked.
absl::Status CheckFollows(const SlabHeader& header, const LayerProgress& layer);

// Positions of a slab: strictly ascending inside a head, above the rows received before, below `limit`. On
// OK, `progress` is advanced past the slab; on error it is unchanged. positions: [header.total_rows()].
absl::Status CheckAndAdvance(const SlabHeader& header, absl::Span<const int32_t> positions, LogicalLen limit,
                             LayerProgress* progress);

}  // namespace sluice
