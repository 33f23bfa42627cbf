#include "common/kvcache/sequence_kv.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

// Pieces of `rows_per_piece` rows that hold `rows`; none where no bounds are kept.
size_t Pieces(int rows, int rows_per_piece) {
  return rows_per_piece == 0 ? 0 : (rows + rows_per_piece - 1) / rows_per_piece;
}

// Moves ids from the end of `from` to `to` until `to` holds n.
void Refill(std::vector<PageId>& to, size_t n, std::vector<PageId>& from) {
  while (to.size() < n) {
    to.push_back(from.back());
    from.pop_back();
  }
}

}  // namespace

SequenceKv::SequenceKv(DecodeCache* cache, int slot, std::array<int32_t, 4> selection)
    : cache_(cache),
      slot_(slot),
      selection_(selection),
      heads_(static_cast<size_t>(cache->shape_.n_layers) * cache->shape_.n_kv_heads),
      row_begin_(heads_.size(), 0) {}

SequenceKv::~SequenceKv() {
  for (const Head& head : heads_) {
    cache_->pages_->Give(head.pages);
    cache_->chunks_->Give(head.chunks);
  }
  cache_->GiveSlot(slot_);
}

int SequenceKv::pages() const {
  size_t held = 0;
  for (const Head& head : heads_) held += head.pages.size();
  return static_cast<int>(held);
}

int SequenceKv::kept(LayerId layer, int kv_head) const {
  return heads_[layer.value() * cache_->shape_.n_kv_heads + kv_head].rows;
}

absl::Status SequenceKv::Reserve(absl::Span<const int> rows) {
  const int chunk_rows = DecodeCache::ChunkRows(selection_[0]);
  size_t need_pages = 0, need_chunks = 0;
  for (size_t i = 0; i < heads_.size(); ++i) {
    const size_t n_pages = Pieces(rows[i], PagedKv::kPageRows), n_chunks = Pieces(rows[i], chunk_rows);
    need_pages += std::max(n_pages, heads_[i].pages.size()) - heads_[i].pages.size();
    need_chunks += std::max(n_chunks, heads_[i].chunks.size()) - heads_[i].chunks.size();
  }
  SLUICE_ASSIGN_OR_RETURN(std::vector<PageId> pages, cache_->pages_->Take(static_cast<int>(need_pages)));
  absl::StatusOr<std::vector<PageId>> chunks = cache_->chunks_->Take(static_cast<int>(need_chunks));
  if (!chunks.ok()) {
    cache_->pages_->Give(pages);
    return chunks.status();
  }
  for (size_t i = 0; i < heads_.size(); ++i) {
    Refill(heads_[i].pages, Pieces(rows[i], PagedKv::kPageRows), pages);
    Refill(heads_[i].chunks, Pieces(rows[i], chunk_rows), *chunks);
  }
  return absl::OkStatus();
}

absl::Status SequenceKv::Write(LayerId layer, int kv_head, int row_begin, TensorView k, TensorView v,
                               absl::Span<const int32_t> positions, Ops& ops) {
  const KvShape& shape = cache_->shape_;
  const auto Where = [&] { return absl::StrCat("layer ", layer.value(), " KV head ", kv_head, ": "); };
  if (layer.value() < 0 || layer.value() >= shape.n_layers || kv_head < 0 || kv_head >= shape.n_kv_heads) {
    return absl::InvalidArgumentError(absl::StrCat(Where(), "the model has ", shape.n_layers, " layers and ",
                                                   shape.n_kv_heads, " KV heads"));
  }
  const int n = static_cast<int>(positions.size());
  SLUICE_CHECK(k.rank == 2 && k.shape[0] == n && k.shape[1] == shape.head_dim && k.dtype == shape.dtype);
  SLUICE_CHECK(v.rank == 2 && v.shape[0] == n && v.shape[1] == shape.head_dim && v.dtype == shape.dtype);
  Head& rows = head(layer.value(), kv_head);
  if (row_begin != rows.rows) {
    return absl::InvalidArgumentError(
        absl::StrCat(Where(), "rows start at ", row_begin, ", expected ", rows.rows));
  }
  const size_t reserved = rows.pages.size() * PagedKv::kPageRows;
  if (static_cast<size_t>(row_begin) + n > reserved) {
    return absl::InvalidArgumentError(
        absl::StrCat(Where(), "rows end at ", row_begin + n, ", reserved ", reserved));
  }
  int32_t last = rows.last_position;
  for (int32_t position : positions) {
    if (position <= last) {
      return absl::InvalidArgumentError(
          absl::StrCat(Where(), "position ", position, " follows ", last, ", positions must ascend"));
    }
    last = position;
  }
  if (n == 0) return absl::OkStatus();

  if (!uploaded_) UploadSlot(ops);
  ops.ScatterKv(k, v, cache_->View(layer, TensorView()), slot_, kv_head, row_begin);
  rows.rows += n;
  rows.last_position = last;
  if (cache_->sliding_window(layer.value()) > 0) {
    rows.positions.insert(rows.positions.end(), positions.begin(), positions.end());
  }
  return absl::OkStatus();
}

void SequenceKv::FinishWrites(int growth, Ops& ops) {
  const int chunk_rows = DecodeCache::ChunkRows(selection_[0]);
  const auto Trim = [](PagePool& pool, std::vector<PageId>& ids, size_t n) {
    if (ids.size() <= n) return;
    pool.Give(absl::MakeConstSpan(ids).subspan(n));
    ids.resize(n);
  };
  for (Head& head : heads_) {
    Trim(*cache_->pages_, head.pages, Pieces(head.rows + growth, PagedKv::kPageRows));
    Trim(*cache_->chunks_, head.chunks, Pieces(head.rows + growth, chunk_rows));
  }
  // The tables are megabytes where the context is long, and the request waits. Nobody reads what a head gave
  // back there; where it grows again, ReserveAppend writes the column.
  uploaded_ ? UploadLengths(ops) : UploadSlot(ops);
  if (selection_[3] == 0) return;
  for (int layer = 0; layer < cache_->shape_.n_layers; ++layer)
    ops.SumValues(cache_->View(LayerId(layer), TensorView()), slot_);
}

absl::Status SequenceKv::ReserveAppend(Ops& ops) {
  std::vector<int> rows;
  rows.reserve(heads_.size());
  // Columns of each table in which some head grows: usually none, or one where heads are equally long.
  std::vector<size_t> page_columns, chunk_columns;
  const int chunk_rows = DecodeCache::ChunkRows(selection_[0]);
  const auto NoteGrowth = [](std::vector<size_t>& columns, size_t have, size_t need) {
    if (need > have && std::find(columns.begin(), columns.end(), have) == columns.end()) {
      columns.push_back(have);
    }
  };
  for (const Head& head : heads_) {
    const int need = head.rows + 1;
    if (need > cache_->options_.max_rows) {
      return absl::OutOfRangeError(absl::StrCat("sequence is full: the cache holds at most ",
                                                cache_->options_.max_rows,
                                                " rows in a KV head (the context length)"));
    }
    rows.push_back(need);
    NoteGrowth(page_columns, head.pages.size(), Pieces(need, PagedKv::kPageRows));
    NoteGrowth(chunk_columns, head.chunks.size(), Pieces(need, chunk_rows));
  }
  SLUICE_RETURN_IF_ERROR(Reserve(rows));
  for (size_t column : page_columns) UploadColumn(cache_->page_table_, &Head::pages, column, ops);
  for (size_t column : chunk_columns) UploadColumn(cache_->chunk_table_, &Head::chunks, column, ops);
  return absl::OkStatus();
}

void SequenceKv::AdvanceWindows(int32_t position, Ops& ops) {
  const KvShape& shape = cache_->shape_;
  bool changed = false;
  for (int layer = 0; layer < shape.n_layers; ++layer) {
    const int window = cache_->sliding_window(layer);
    if (window == 0) continue;
    for (int h = 0; h < shape.n_kv_heads; ++h) {
      const std::vector<int32_t>& positions = head(layer, h).positions;
      const auto first = std::upper_bound(positions.begin(), positions.end(), position - window);
      const int32_t begin = static_cast<int32_t>(std::distance(positions.begin(), first));
      int32_t& current = row_begin_[layer * shape.n_kv_heads + h];
      changed |= begin != current;
      current = begin;
    }
  }
  if (changed) UploadRowBegin(ops);
}

void SequenceKv::Appended(int32_t position) {
  for (size_t i = 0; i < heads_.size(); ++i) {
    Head& head = heads_[i];
    SLUICE_CHECK(position > head.last_position);
    head.last_position = position;
    ++head.rows;
    if (cache_->sliding_window(static_cast<int>(i) / cache_->shape_.n_kv_heads) > 0) {
      head.positions.push_back(position);
    }
  }
}

void SequenceKv::UploadSlot(Ops& ops) {
  const auto UploadIds = [&](TensorView table, std::vector<PageId> Head::*ids) {
    const int64_t columns = table.shape[3];
    std::vector<int32_t> entries(heads_.size() * columns, -1);
    for (size_t i = 0; i < heads_.size(); ++i) {
      int32_t* out = entries.data() + i * columns;
      for (PageId id : heads_[i].*ids) *out++ = id.value();
    }
    ops.CopyIn(entries.data(), table.At(slot_));
  };
  UploadIds(cache_->page_table_, &Head::pages);
  UploadIds(cache_->chunk_table_, &Head::chunks);
  UploadLengths(ops);
  UploadRowBegin(ops);
  ops.CopyIn(selection_.data(), cache_->hsa_.At(slot_));
  uploaded_ = true;
}

void SequenceKv::UploadLengths(Ops& ops) {
  std::vector<int32_t> lengths;
  lengths.reserve(heads_.size());
  for (const Head& head : heads_) lengths.push_back(head.rows);
  ops.CopyIn(lengths.data(), cache_->kept_len_.At(slot_));
}

// One column is strided in the table: it travels densely and is spread on the device.
void SequenceKv::UploadColumn(TensorView table, std::vector<PageId> Head::*ids, size_t column, Ops& ops) {
  std::vector<int32_t> entries;
  entries.reserve(heads_.size());
  for (const Head& head : heads_) {
    const std::vector<PageId>& own = head.*ids;
    entries.push_back(column < own.size() ? own[column].value() : -1);
  }
  const TensorView staging = cache_->staging_.At(slot_);
  ops.CopyIn(entries.data(), staging);
  TensorView target = table.At(slot_).Slice(2, column, column + 1);
  target.rank = 2;  // [n_layers, n_kv_heads], one entry each
  target.shape[2] = target.stride[2] = 0;
  ops.Copy(staging, target);
}

void SequenceKv::UploadRowBegin(Ops& ops) { ops.CopyIn(row_begin_.data(), cache_->row_begin_.At(slot_)); }

}  // namespace sluice
