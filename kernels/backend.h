// Role: the only door to a device. A Backend owns memory and weights; an Ops is one in-order queue of
// operations on it. Everything above this line runs on any device without knowing which. Why pure virtual: a
// backend that misses an op does not compile. README.md lists every op with its shapes. Threads: a Backend
// may be used by any thread; an Ops belongs to one thread at a time. Memory passed to an op stays valid until
// Sync(). Errors: ops return nothing; the first failure of a queue is kept and returned by Sync(). Wrong
// shapes are bugs (SLUICE_CHECK), never caused by a request.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/sampling.h"
#include "kernels/tensor_view.h"

namespace sluice {

// Device memory, freed by its owner. Move-only.
class Buffer {
 public:
  using Deleter = std::function<void(void*)>;
  Buffer() = default;
  Buffer(void* data, size_t bytes, Deleter deleter)
      : data_(data), bytes_(bytes), deleter_(std::move(deleter)) {}
  ~Buffer() {
    if (data_ != nullptr) deleter_(data_);
  }
  Buffer(Buffer&& other) noexcept { Swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Swap(other);
    return *this;
  }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  TensorView View(DType dtype, std::initializer_list<int64_t> shape) const {
    return TensorView::Contiguous(data_, dtype, shape);
  }

 private:
  void Swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(deleter_, other.deleter_);
  }
  void* data_ = nullptr;
  size_t bytes_ = 0;
  Deleter deleter_;
};

// A weight matrix [rows = outputs, cols = inputs] in whatever layout its backend likes best. Immutable.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}
  virtual ~Matrix() = default;
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 private:
  int64_t rows_, cols_;
};

// Max and average pooling of an odd width, or fading pooling (algorithms.md §2b):
// s'_i = max over j of s_j * exp(-(i-j)/after) for j <= i, and s_j * exp(-(j-i)/before) for j >= i,
// cut at 32 * after and 32 * before rows. Or every row of a chunk gets the mean of the chunk (ChunkKV, arXiv
// 2502.00299): rows [0, kernel), [kernel, 2 kernel) and so on; the last chunk may be shorter.
struct Pooling {
  enum Kind { kMax, kAvg, kFading, kChunk };
  Kind kind = kMax;
  int kernel = 1;    // kMax, kAvg: odd width in rows. kMax pads with -inf, kAvg with zeros and divides by
                     // `kernel`. kChunk: rows of a chunk
  float after = 16;  // kFading: reach in rows behind a salient row
  float before = 4;  // kFading: reach in rows ahead of it
  friend bool operator==(const Pooling&, const Pooling&) = default;
};

// One sequence's share of a prefill attention call: causal, blockwise with online softmax.
struct AttentionArgs {
  TensorView q;    // [n, n_q_heads, head_dim] f32 after RoPE; query i sees key rows [0, len - n + i]
  TensorView k;    // [n_kv_heads, len, head_dim] KV dtype; the last n rows are the queries' own
  TensorView v;    // same shape as k
  TensorView out;  // [n, n_q_heads, head_dim] f32, or Backend::product_input()
  TensorView lse;  // [n_q_heads, window] f32: log-sum-exp of the scaled scores of the last `window` queries;
                   // may be empty
  TensorView
      positions;  // [n_kv_heads, len] i32 (stride 0 over heads when shared); read only with a sliding window
  int sliding_window = 0;  // 0: none. Else a query at position p sees keys at positions > p - sliding_window
};

// How much the observation window attends to every row (SnapKV, arXiv 2404.14469; RocketKV stage one):
// scores[s, j] = sum over the window's queries i that see row j, and over the query heads h of s, of
// exp(q_hi.k_gj/sqrt(d) - lse_hi). Query i is row len - window + i and sees the rows up to itself.
struct WindowScoresArgs {
  TensorView q;       // [window, n_q_heads, head_dim] f32: the last `window` queries
  TensorView k;       // [n_kv_heads, len, head_dim] KV dtype
  TensorView lse;     // [n_q_heads, window] f32
  TensorView scores;  // [n_kv_heads, n] f32, out: s is a group of query heads; or [n_q_heads, n]: s is one of
                      // them. The first n <= len rows are scored
  TensorView positions;
  int sliding_window = 0;
  bool raw = false;            // sums q_hi.k_gj itself, for which no lse is needed
  bool round_weights = false;  // what is summed is rounded to bf16 first
  bool accumulate = false;     // adds to scores
};

// The paged cache of one layer as a decode batch sees it. Tables are indexed by slot, so that a step needs no
// per-step upload but `slots`.
struct PagedKv {
  static constexpr int kPageRows =
      64;  // rows of one (layer, KV head) in a page: K [64, head_dim], then V [64, head_dim]
  static constexpr int kChunkPages = 64;  // HSA pages in a chunk of bounds: [min|max][head_dim][64] KV dtype.
                                          // With page size 1 the two halves hold K^T of 128 successive rows.
  void* pages = nullptr;                  // page i at pages + i * 2 * 64 * head_dim * dtype size
  void* chunks = nullptr;                 // chunk i at chunks + i * 2 * head_dim * 64 * dtype size
  DType dtype = DType::kBF16;
  int n_kv_heads = 0;
  int head_dim = 0;
  TensorView slots;       // [batch] i32
  TensorView page_table;  // [n_slots, n_kv_heads, max_pages] i32
  TensorView kept_len;    // [n_slots, n_kv_heads] i32 rows in the cache
  TensorView
      row_begin;  // [n_slots, n_kv_heads] i32 first row that attention may read (sliding window), else 0
  TensorView chunk_table;  // [n_slots, n_kv_heads, max_chunks] i32
  TensorView hsa;  // [n_slots, 4] i32, how the slot selects: page size p (0: it keeps no bounds), channels
                   // k1, tokens k2, 1 where it keeps value sums
  TensorView
      value_sums;  // [n_slots, n_kv_heads, head_dim] f32: the sum of a head's V rows, of slots that keep it
};

struct CopyArgs {
  TensorView from, to;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // Waits for everything queued; returns the queue's first error, then forgets it.
  virtual absl::Status Sync() = 0;

  // Mark remembers how far the queue is; Await is as Sync, but waits only until it is past there: what was
  // queued since runs on.
  virtual void Mark() {}
  virtual absl::Status Await() { return Sync(); }

  // Queues what `enqueue` queues. A later call with the same key may replay what an earlier one queued
  // without asking `enqueue`: the same ops on the same memory, with whatever that memory then holds.
  // `enqueue` queues ops only, no CopyIn, CopyOut or Sync. Its error is returned, and what it queued is not
  // replayed.
  virtual absl::Status Replay(const std::vector<int>& key, const std::function<absl::Status()>& enqueue) = 0;

  virtual void CopyIn(const void* host, TensorView dst) = 0;  // dst contiguous; host may be reused on return
  virtual void CopyOut(TensorView src, void* host) = 0;       // src contiguous; host holds it after Sync()
  virtual void Copy(TensorView src, TensorView dst) = 0;      // same shape and dtype, any strides, rank <= 3

  // Copies that touch none of each other's memory.
  virtual void CopyEach(absl::Span<const CopyArgs> copies) {
    for (const CopyArgs& copy : copies) Copy(copy.from, copy.to);
  }

  // out[i] = table row ids[i]. ids [n] i32, out [n, cols] f32.
  virtual void Embed(const Matrix& table, TensorView ids, TensorView out) = 0;

  // out = x / sqrt(mean(x^2) + eps) * weight over the last dimension. x, out [n, c] or [n, heads, c] f32;
  // weight [c] f32. out [n, c] may be Backend::product_input() as well.
  virtual void RmsNorm(TensorView x, TensorView weight, float eps, TensorView out) = 0;

  // out (+)= x w^T + bias. x [n, cols] f32, or Backend::product_input() where cols is a multiple of 64 and
  // rows have no gaps between them; out [n, rows] f32, bias [rows] f32 or empty; accumulate adds to out.
  virtual void MatMul(TensorView x, const Matrix& w, TensorView bias, bool accumulate, TensorView out) = 0;

  // Rotates pairs (i, i + d/2) in place, then subtracts shift. x [n, heads, d] f32; positions [n] i32;
  // cos_sin [context, d] f32: d/2 cosines, then d/2 sines of each position; shift [heads, d] f32 or empty.
  virtual void Rope(TensorView x, TensorView positions, TensorView cos_sin, TensorView shift) = 0;

  // out = silu(gate) * up. gate_up [n, 2c] f32: c gate columns, then c up columns; out [n, c] f32 or
  // Backend::product_input().
  virtual void SwiGlu(TensorView gate_up, TensorView out) = 0;

  // Two ops in a row that a backend may run as one: MatMul, and Rope of `heads`, the first columns of `out`.
  virtual void RotatedMatMul(TensorView x, const Matrix& w, TensorView bias, TensorView out, TensorView heads,
                             TensorView positions, TensorView cos_sin, TensorView shift) {
    MatMul(x, w, bias, /*accumulate=*/false, out);
    Rope(heads, positions, cos_sin, shift);
  }
  // The same of MatMul and SwiGlu. gate_up: where the product may go.
  virtual void GatedMatMul(TensorView x, const Matrix& w, TensorView gate_up, TensorView out) {
    MatMul(x, w, TensorView(), /*accumulate=*/false, gate_up);
    SwiGlu(gate_up, out);
  }

  // Rounds new K,V rows to the KV dtype. k, v [n, n_kv_heads, d] f32; k_out, v_out [n_kv_heads, n, d].
  virtual void StoreKv(TensorView k, TensorView v, TensorView k_out, TensorView v_out) = 0;

  virtual void Attention(absl::Span<const AttentionArgs> sequences) = 0;

  virtual void WindowScores(const WindowScoresArgs& args) = 0;

  // scores, out [heads, n] f32; not in place.
  virtual void Pool(TensorView scores, const Pooling& pooling, TensorView out) = 0;

  // Of n 4-byte words: the sum of word i times (2 i + 1 mod 2^32), mod 2^64: changes with any one word and
  // with the order of unequal words. words [n] of a 4-byte dtype; out [2] i32: the low half, then the high
  // one.
  virtual void Checksum(TensorView words, TensorView out) = 0;

  // out[j] = sum over heads of scores[h, j]. scores [heads, n], out [n] f32.
  virtual void SumHeads(TensorView scores, TensorView out) = 0;

  // Where the backend is one rank of several (backend_group.h): x = the sum of all ranks' x, the same bits on
  // all. Else nothing. Every rank calls it as often, with the same shapes, from one loop at a time. x f32, no
  // gaps.
  virtual void AllReduce(TensorView x) = 0;

  // out[i] = the column of row i's largest value, the lowest one of equals; -1 when the row has a NaN or
  // +inf, or nothing above -inf. x [n, c] f32, out [n] i32.
  virtual void ArgMax(TensorView x, TensorView out) = 0;

  // out[rule.row] = the token that each rule draws from its row, as SampleFrom: -1 where there is none, and
  // penalties and masks are written into that row. No row twice. logits [n, c] f32, out [n] i32.
  virtual void Sample(TensorView logits, absl::Span<const SampleRule> rules, TensorView out) = 0;

  // rows[h] = the k best rows of scores[h] ascending, then rows [n, n + tail). Equal scores: the lowest row
  // wins. scores [heads, n] f32 (no NaN), rows [heads, k + tail] i32; k <= n.
  virtual void SelectTop(TensorView scores, int k, int tail, TensorView rows) = 0;

  // out[i] = x[rows[i]]. x [n, c], out [m, c] of one 4-byte dtype; rows [m] i32.
  virtual void GatherRows(TensorView x, TensorView rows, TensorView out) = 0;

  // Compacts the kept rows, heads one after another: k_out, v_out [sum kept, d], positions_out [sum kept]
  // i32. k, v [n_kv_heads, len, d]; positions [n_kv_heads, len] i32; rows [n_kv_heads, capacity] i32; kept
  // [n_kv_heads] host lengths.
  virtual void GatherKv(TensorView k, TensorView v, TensorView positions, TensorView rows,
                        absl::Span<const int> kept, TensorView k_out, TensorView v_out,
                        TensorView positions_out) = 0;

  // Rows [row_begin, row_begin + n) of one (slot, KV head): writes pages and, where the slot keeps bounds,
  // rebuilds the bounds of the HSA pages it touches. Rows of a head arrive in ascending order. k, v [n, d] KV
  // dtype.
  virtual void ScatterKv(TensorView k, TensorView v, const PagedKv& cache, int slot, int kv_head,
                         int row_begin) = 0;

  // Sets the value sums of one slot that keeps them from the rows of all its KV heads.
  virtual void SumValues(const PagedKv& cache, int slot) = 0;

  // Appends one row per batch entry and head at kept_len, updates bounds and value sums, then adds 1 to
  // kept_len. k, v [batch, n_kv_heads, d] f32.
  virtual void AppendKv(TensorView k, TensorView v, const PagedKv& cache) = 0;

  // Decode attention over rows [row_begin, kept_len). q [batch, n_q_heads, d] f32; out of the same shape, f32
  // or Backend::product_input().
  virtual void PagedAttention(TensorView q, const PagedKv& cache, TensorView out) = 0;

  // Hybrid sparse attention (RocketKV, arXiv 2502.14051, stage two; algorithms.md §3.3). Same shapes; every
  // slot of the batch keeps bounds and has no sliding window.
  virtual void HsaAttention(TensorView q, const PagedKv& cache, TensorView out) = 0;

  // The next three have the same shapes, and no slot of the batch has a sliding window. Equal scores: the
  // lowest page or row wins.

  // Quest (arXiv 2406.10774; algorithms.md §7): every query head reads the k2 / p whole pages, at least one,
  // whose bounds allow the largest scores. Slots keep bounds of pages of several rows.
  virtual void QuestAttention(TensorView q, const PagedKv& cache, TensorView out) = 0;

  // SparQ (arXiv 2312.04985; algorithms.md §8): a group reads k2 rows: the latest k2 / 4 + 1, and those that
  // score best in the k1 channels where its queries are largest. With mean_value each head gives what its
  // approximate softmax has elsewhere to the mean of all V rows. Slots keep bounds with p = 1, and with
  // mean_value value sums.
  virtual void SparqAttention(TensorView q, const PagedKv& cache, bool mean_value, TensorView out) = 0;

  // Exact top-k (algorithms.md §15): every query head reads its k2 best rows; with per_group a group reads
  // the k2 rows of the largest mean over its heads of the softmax over all rows.
  virtual void TopKAttention(TensorView q, const PagedKv& cache, bool per_group, TensorView out) = 0;
};

struct DeviceMemory {
  size_t total_bytes = 0;
  size_t available_bytes = 0;
};

class Backend {
 public:
  // Fills rows [begin, end) of a matrix into out, f32 row-major. Called in ascending order from one thread.
  using ReadRows = std::function<absl::Status(int64_t begin, int64_t end, float* out)>;

  virtual ~Backend() = default;
  virtual std::string description() const = 0;  // "cpu, avx2, 2 threads"
  virtual DeviceMemory memory() const = 0;
  // 64-byte aligned, contents undefined. Freed only when every op that uses it has been synced.
  virtual absl::StatusOr<Buffer> Allocate(size_t bytes) = 0;
  // Memory that other processes and devices may be let into. Else as Allocate.
  virtual absl::StatusOr<Buffer> AllocateExposed(size_t bytes) = 0;
  // Its memory is a GPU's: host code cannot read it.
  virtual bool is_gpu() const = 0;
  // Makes the device the calling thread's, for libraries that ask the thread.
  virtual void Enter() = 0;
  // Waits for everything this process gave the device to do, from whichever library.
  virtual absl::Status Drain() = 0;
  // Lets ops read and write host memory, at its own address, while the Buffer lives; the memory outlives it.
  virtual absl::StatusOr<Buffer> MapHost(void* data, size_t bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Matrix>> PackMatrix(int64_t rows, int64_t cols,
                                                             const ReadRows& read) = 0;
  virtual std::unique_ptr<Ops> NewOps() = 0;
  // What products read fastest: kBF16 where they round their inputs to it anyway, else kF32.
  virtual DType product_input() const = 0;
  // Rows of hidden states that should go through a product at a time: as many as keep the device busy.
  virtual int64_t rows_at_once() const = 0;
  // How long the longest wait for the device under way has lasted: one that hangs is known by it. Zero where
  // ops run inside their calls.
  virtual absl::Duration waiting() const = 0;
};

}  // namespace sluice
