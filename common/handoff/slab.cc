#include "common/handoff/slab.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

// K row, V row, position.
size_t RowBytes(const KvShape& shape) { return 2 * shape.row_bytes() + sizeof(int32_t); }

}  // namespace

SlabLayout LayoutOf(const SlabHeader& header, const KvShape& shape) {
  size_t rows = static_cast<size_t>(header.total_rows());
  return {rows * shape.row_bytes(), 2 * rows * shape.row_bytes(), rows * RowBytes(shape)};
}

absl::StatusOr<std::vector<SlabHeader>> CutLayer(LayerId layer, absl::Span<const int> kept,
                                                 const KvShape& shape, size_t slot_bytes) {
  int64_t room = static_cast<int64_t>(slot_bytes / RowBytes(shape));
  if (room == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot_bytes: ", slot_bytes, " cannot hold one row of ", RowBytes(shape), " bytes"));
  }
  std::vector<SlabHeader> slabs;
  int64_t left = 0;  // room in the last slab
  for (int head = 0; head < static_cast<int>(kept.size()); ++head) {
    for (int row = 0; row < kept[head];) {
      if (left == 0) {
        slabs.push_back({layer, head, {}, {}});
        left = room;
      }
      SlabHeader& slab = slabs.back();
      // Heads without rows in between keep their place, so that an index is a head.
      while (slab.head_begin + static_cast<int>(slab.rows.size()) < head) {
        slab.row_begin.push_back(0);
        slab.rows.push_back(0);
      }
      int n = static_cast<int>(std::min<int64_t>(left, kept[head] - row));
      slab.row_begin.push_back(row);
      slab.rows.push_back(n);
      row += n;
      left -= n;
    }
  }
  return slabs;
}

std::vector<SlabRun> RunsOf(const SlabHeader& header, const KvShape& shape, const char* slab,
                            absl::Span<const int32_t> positions) {
  const SlabLayout layout = LayoutOf(header, shape);
  std::vector<SlabRun> runs;
  size_t row = 0;
  for (size_t i = 0; i < header.rows.size(); ++i) {
    size_t n = static_cast<size_t>(header.rows[i]);
    if (n == 0) continue;
    runs.push_back({header.head_begin + static_cast<int>(i), header.row_begin[i], header.rows[i],
                    slab + row * shape.row_bytes(), slab + layout.v_offset + row * shape.row_bytes(),
                    positions.subspan(row, n)});
    row += n;
  }
  return runs;
}

namespace {

template <class... What>
absl::Status Bad(const SlabHeader& header, const What&... what) {
  return absl::InvalidArgumentError(absl::StrCat("slab of layer ", header.layer.value(), ": ", what...));
}

}  // namespace

absl::Status CheckHeader(const SlabHeader& header, const KvShape& shape, size_t slot_bytes) {
  if (header.layer.value() < 0 || header.layer.value() >= shape.n_layers)
    return Bad(header, "the model has ", shape.n_layers, " layers");
  const int heads = shape.n_kv_heads;
  if (header.rows.empty() || header.rows.size() != header.row_begin.size())
    return Bad(header, header.rows.size(), " row counts, ", header.row_begin.size(), " row begins");
  if (header.head_begin < 0 || header.head_begin >= heads ||
      header.rows.size() > static_cast<size_t>(heads - header.head_begin))
    return Bad(header, "heads ", header.head_begin, " + ", header.rows.size(), " of ", heads);
  for (size_t i = 0; i < header.rows.size(); ++i) {
    if (header.rows[i] < 0)
      return Bad(header, "head ", header.head_begin + static_cast<int>(i), " has ", header.rows[i], " rows");
  }
  if (header.total_rows() == 0) return Bad(header, "no rows");
  if (LayoutOf(header, shape).bytes > slot_bytes)
    return Bad(header, LayoutOf(header, shape).bytes, " bytes in a slot of ", slot_bytes);
  return absl::OkStatus();
}

absl::Status CheckFollows(const SlabHeader& header, const LayerProgress& layer) {
  for (size_t i = 0; i < header.rows.size(); ++i) {
    const int head = header.head_begin + static_cast<int>(i);
    if (header.rows[i] > 0 && header.row_begin[i] != layer.kept[head])
      return Bad(header, "head ", head, " begins at row ", header.row_begin[i], ", expected ",
                 layer.kept[head]);
    if (header.rows[i] > layer.ceiling[head] - layer.kept[head])
      return Bad(header, "head ", head, " gets ", layer.kept[head], " + ", header.rows[i], " rows, ceiling ",
                 layer.ceiling[head]);
  }
  return absl::OkStatus();
}

absl::Status CheckAndAdvance(const SlabHeader& header, absl::Span<const int32_t> positions, LogicalLen limit,
                             LayerProgress* progress) {
  size_t row = 0;
  for (size_t i = 0; i < header.rows.size(); ++i) {
    const int head = header.head_begin + static_cast<int>(i);
    int32_t last = progress->last_position[head];
    for (int32_t position : positions.subspan(row, static_cast<size_t>(header.rows[i]))) {
      if (position <= last || position >= limit.value()) {
        return absl::DataLossError(absl::StrCat("slab of layer ", header.layer.value(), ", head ", head,
                                                ": position ", position, " after ", last, ", limit ",
                                                limit.value()));
      }
      last = position;
    }
    row += static_cast<size_t>(header.rows[i]);
  }
  row = 0;
  for (size_t i = 0; i < header.rows.size(); ++i) {
    if (header.rows[i] == 0) continue;
    const int head = header.head_begin + static_cast<int>(i);
    row += static_cast<size_t>(header.rows[i]);
    progress->last_position[head] = positions[row - 1];
    progress->kept[head] += header.rows[i];
  }
  return absl::OkStatus();
}

}  // namespace sluice
