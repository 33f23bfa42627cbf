#include "common/handoff/slab_work.h"

#include "common/base/status.h"

namespace sluice {

absl::Status SlabWork::QueueChecksum(const SlabHeader& header, const char* slab, uint64_t* checksum) {
  if (sum_.data() == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(sum_, backend_->Allocate(sizeof(uint64_t)));
  }
  const auto words = static_cast<int64_t>(LayoutOf(header, shape_).bytes / 4);
  const TensorView sum = sum_.View(DType::kI32, {2});
  ops_->Checksum(TensorView::Contiguous(const_cast<char*>(slab), DType::kI32, {words}), sum);
  ops_->CopyOut(sum, checksum);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SlabWork::Fill(const KeptLayer& source, const SlabHeader& header, char* slot) {
  // KeptLayer has its heads one after another, so a slab is one run of its rows.
  int64_t first = header.row_begin[0];
  for (int head = 0; head < header.head_begin; ++head) first += source.kept[head];
  const int64_t rows = header.total_rows();
  const SlabLayout layout = LayoutOf(header, shape_);
  auto copy = [&](const Buffer& from, size_t offset) {
    ops_->Copy(from.View(shape_.dtype, {source.total(), shape_.head_dim}).Slice(0, first, first + rows),
               TensorView::Contiguous(slot + offset, shape_.dtype, {rows, shape_.head_dim}));
  };
  copy(source.k, 0);
  copy(source.v, layout.v_offset);
  ops_->Copy(source.positions.View(DType::kI32, {source.total()}).Slice(0, first, first + rows),
             TensorView::Contiguous(slot + layout.positions_offset, DType::kI32, {rows}));
  uint64_t checksum = 0;
  absl::Status queued = QueueChecksum(header, slot, &checksum);
  SLUICE_RETURN_IF_ERROR(ops_->Sync());
  SLUICE_RETURN_IF_ERROR(queued);
  return checksum;
}

absl::StatusOr<SlabFacts> SlabWork::Inspect(const SlabHeader& header, const char* slab) {
  SlabFacts facts;
  const SlabLayout layout = LayoutOf(header, shape_);
  facts.positions.resize(static_cast<size_t>(header.total_rows()));
  ops_->CopyOut(TensorView::Contiguous(const_cast<char*>(slab) + layout.positions_offset, DType::kI32,
                                       {header.total_rows()}),
                facts.positions.data());
  absl::Status queued = QueueChecksum(header, slab, &facts.checksum);
  SLUICE_RETURN_IF_ERROR(ops_->Sync());
  SLUICE_RETURN_IF_ERROR(queued);
  return facts;
}

}  // namespace sluice
