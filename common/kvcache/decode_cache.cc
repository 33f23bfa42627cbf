#include "common/kvcache/decode_cache.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/kvcache/sequence_kv.h"

namespace sluice {
namespace {

constexpr size_t kAlign = 64;

int CeilDiv(int a, int b) { return a / b + (a % b != 0); }

// Cuts tables of 4-byte entries one after another out of a buffer that is allocated afterwards.
class TableLayout {
 public:
  void Add(TensorView* view, std::initializer_list<int64_t> shape) {
    *view = TensorView::Contiguous(nullptr, DType::kI32, shape);
    int64_t entries = 1;
    for (int64_t n : shape) entries *= n;
    offsets_.emplace_back(view, bytes_);
    bytes_ += (static_cast<size_t>(entries) * sizeof(int32_t) + kAlign - 1) / kAlign * kAlign;
  }
  size_t bytes() const { return bytes_; }
  void Place(void* base) const {
    for (auto [view, offset] : offsets_) view->data = static_cast<char*>(base) + offset;
  }

 private:
  size_t bytes_ = 0;
  std::vector<std::pair<TensorView*, size_t>> offsets_;
};

// [n_slots, n_layers, ...] -> [n_slots, ...] of one layer.
TensorView OfLayer(TensorView table, LayerId layer) {
  TensorView view = table.Slice(1, layer.value(), layer.value() + 1);
  for (int d = 1; d + 1 < view.rank; ++d) {
    view.shape[d] = view.shape[d + 1];
    view.stride[d] = view.stride[d + 1];
  }
  --view.rank;
  view.shape[view.rank] = view.stride[view.rank] = 0;
  return view;
}

}  // namespace

int DecodeCache::ChunkRows(int hsa_page) {
  // Page size 1 stores K^T once, over both halves of the chunk.
  return hsa_page == 1 ? 2 * PagedKv::kChunkPages : hsa_page * PagedKv::kChunkPages;
}

absl::StatusOr<std::unique_ptr<DecodeCache>> DecodeCache::Create(Backend* backend, const KvShape& shape,
                                                                 const DecodeCacheOptions& options) {
  if (options.n_slots < 1 || options.max_rows < 1) {
    return absl::InvalidArgumentError(absl::StrCat("decode cache: n_slots ", options.n_slots,
                                                   " and max_rows ", options.max_rows, " must be positive"));
  }
  if (!(options.bounds_share >= 0 && options.bounds_share < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("decode cache: bounds_share ", options.bounds_share, " is not in [0, 1)"));
  }
  SLUICE_CHECK(options.sliding_windows.empty() ||
               options.sliding_windows.size() == static_cast<size_t>(shape.n_layers));

  auto cache = absl::WrapUnique(new DecodeCache);
  cache->shape_ = shape;
  cache->options_ = options;
  const int64_t slots = options.n_slots, layers = shape.n_layers, heads = shape.n_kv_heads;
  TableLayout tables;
  tables.Add(&cache->page_table_, {slots, layers, heads, CeilDiv(options.max_rows, PagedKv::kPageRows)});
  // Page size 1 has the smallest chunks, so it needs the most.
  tables.Add(&cache->chunk_table_, {slots, layers, heads, CeilDiv(options.max_rows, ChunkRows(1))});
  tables.Add(&cache->kept_len_, {slots, layers, heads});
  tables.Add(&cache->row_begin_, {slots, layers, heads});
  tables.Add(&cache->staging_, {slots, layers, heads});
  tables.Add(&cache->hsa_, {slots, 4});
  tables.Add(&cache->value_sums_, {slots, layers, heads, shape.head_dim});
  cache->value_sums_.dtype = DType::kF32;

  const size_t page_bytes = 2 * PagedKv::kPageRows * shape.row_bytes();
  const size_t chunk_bytes = 2 * PagedKv::kChunkPages * shape.row_bytes();
  const size_t one_row = tables.bytes() + page_bytes * layers * heads;  // a sequence of one page per head
  if (options.memory_bytes < one_row) {
    return absl::InvalidArgumentError(absl::StrCat(
        "decode cache: memory_bytes ", options.memory_bytes, " is too small: the tables of ", options.n_slots,
        " sequences of ", options.max_rows, " rows take ", tables.bytes(), " bytes and one page in each of ",
        layers, " layers x ", heads, " KV heads ", page_bytes * layers * heads));
  }
  const size_t left = options.memory_bytes - tables.bytes();
  const size_t n_chunks = static_cast<size_t>(static_cast<double>(left) * options.bounds_share) / chunk_bytes;
  const size_t n_pages = (left - n_chunks * chunk_bytes) / page_bytes;

  SLUICE_ASSIGN_OR_RETURN(cache->tables_memory_, backend->Allocate(tables.bytes()));
  tables.Place(cache->tables_memory_.data());
  SLUICE_ASSIGN_OR_RETURN(Buffer pages, backend->Allocate(n_pages * page_bytes));
  cache->pages_ = std::make_unique<PagePool>("kv pages", std::move(pages), page_bytes);
  Buffer chunks;
  if (n_chunks > 0) {
    SLUICE_ASSIGN_OR_RETURN(chunks, backend->Allocate(n_chunks * chunk_bytes));
  }
  cache->chunks_ = std::make_unique<PagePool>("kv bounds", std::move(chunks), chunk_bytes);
  for (int slot = options.n_slots - 1; slot >= 0; --slot) cache->free_slots_.push_back(slot);
  return cache;
}

absl::StatusOr<std::unique_ptr<SequenceKv>> DecodeCache::NewSequence(std::array<int32_t, 4> selection,
                                                                     absl::Span<const int> rows) {
  SLUICE_CHECK(rows.size() == static_cast<size_t>(shape_.n_layers) * shape_.n_kv_heads);
  SLUICE_CHECK(selection[0] >= 0);
  for (int n : rows) {
    if (n < 0 || n > options_.max_rows) {
      return absl::InvalidArgumentError(absl::StrCat("sequence wants ", n,
                                                     " rows in a KV head, the cache holds ", "at most ",
                                                     options_.max_rows, " (the context length)"));
    }
  }
  int slot;
  {
    MutexLock lock(&mu_);
    if (free_slots_.empty()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("sequences: all ", options_.n_slots, " slots are in use"));
    }
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  auto sequence = absl::WrapUnique(new SequenceKv(this, slot, selection));
  SLUICE_RETURN_IF_ERROR(sequence->Reserve(rows));
  return sequence;
}

PagedKv DecodeCache::View(LayerId layer, TensorView slots) const {
  PagedKv view;
  view.pages = pages_->data();
  view.chunks = chunks_->data();
  view.dtype = shape_.dtype;
  view.n_kv_heads = shape_.n_kv_heads;
  view.head_dim = shape_.head_dim;
  view.slots = slots;
  view.page_table = OfLayer(page_table_, layer);
  view.kept_len = OfLayer(kept_len_, layer);
  view.row_begin = OfLayer(row_begin_, layer);
  view.chunk_table = OfLayer(chunk_table_, layer);
  view.hsa = hsa_;
  view.value_sums = OfLayer(value_sums_, layer);
  return view;
}

int DecodeCache::free_slots() const {
  MutexLock lock(&mu_);
  return static_cast<int>(free_slots_.size());
}

void DecodeCache::GiveSlot(int slot) {
  MutexLock lock(&mu_);
  free_slots_.push_back(slot);
}

}  // namespace sluice
