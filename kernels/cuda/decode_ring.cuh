// Role: which rows a block of dense decode attention takes, and how a warp gets them: through a ring in
// shared memory by asynchronous copies. Threads: whole warps, each with a ring of its own.
#pragma once

#include <cstdint>

#include "kernels/cuda/decode_tile.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/paged_cache.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace sluice {

constexpr int kDecodeWarps = 4;

// One block a multiprocessor for one long sequence; more parts would only cost merging.
constexpr int kMostDecodeParts = 128;
__host__ __device__ constexpr int MaxDecodeParts(int heads) {
  return heads >= kMostDecodeParts ? 1 : kMostDecodeParts / heads;
}

// What its writer wrote before a __threadfence() and this is visible as well.
__device__ inline int LoadAcquire(const int32_t* p) {
  int x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(x) : "l"(p) : "memory");
  return x;
}

// The rows of one (entry, head), from the page table: whole pages from that of the first row seen. They are
// cut into parts of as many pages, give or take one.
struct DecodeRows {
  const PagedCache& cache;
  int slot, head, first, begin, n;
  int pages = 0, parts = 0;

  __device__ DecodeRows(const PagedCache& of, int of_slot, int kv_head)
      : cache(of), slot(of_slot), head(kv_head) {
    begin = cache.Begin(slot, head);
    first = begin / PagedKv::kPageRows * PagedKv::kPageRows;
  }
  // Whether it is cut otherwise than before.
  __device__ bool EndAt(int length) {
    n = length - first;
    const int before = pages, least = cache.d > 64 ? 4 : 1;  // short rows come with few heads: many parts
    pages = static_cast<int>(CeilDiv(n, PagedKv::kPageRows));
    parts = max(1, min(MaxDecodeParts(cache.heads), pages / least));
    return pages != before;
  }
  __device__ int FirstOf(int part) const { return part * pages / parts * PagedKv::kPageRows; }
  __device__ void Check() const {
    SLUICE_DEVICE_CHECK(begin >= 0 && begin < first + n &&
                        pages + first / PagedKv::kPageRows <= cache.max_pages);
  }
  __device__ bool Seen(int i) const { return i < n && first + i >= begin; }
  __device__ const int32_t* Pages() const {
    return cache.page_table.At(slot, head) + first / PagedKv::kPageRows;
  }
};

// A warp's steps of rows [begin, end) through a ring in shared memory: K of a step, V of it, K of the next,
// by asynchronous copies. Pieces of 16 bytes lie so that the lanes of a fragment meet no bank twice.
template <int kDim, int kRing>
class DecodeRing {
 public:
  static constexpr int kSlotBytes = kStep * kDim * 2, kSlots = kRing / kDecodeWarps / kSlotBytes;
  static_assert(kSlots >= 2);

  __device__ DecodeRing(const DecodeRows& rows, char* ring)
      : rows_(rows), lane_(threadIdx.x % kWarp), ring_(ring + threadIdx.x / kWarp * (kSlots * kSlotBytes)) {}

  // Rows from `begin`, of a page, on, below `limit`, of a page too. Nothing is on its way.
  __device__ void Start(int begin, int limit) {
    begin_ = begin;
    limit_ = limit;
    fetched_ = 0;
    pages_ = PagesOf(0);
    next_pages_ = PagesOf(kWarp);
  }
  // Whole steps of the first n rows, as many as there is room for.
  __device__ void FetchKnown(int n) {
    end_ = min(n, limit_);
    while (fetched_ < kSlots && RowOf(fetched_ / 2) + kStep <= end_) Fetch(fetched_);
  }
  // There are n rows: fills the ring.
  __device__ void Fill(int n) {
    end_ = min(n, limit_);
    while (fetched_ < kSlots) Fetch(fetched_);
  }
  __device__ bool Has(int step) const { return RowOf(step) < end_; }
  __device__ int RowOf(int step) const {
    return begin_ + (threadIdx.x / kWarp + step * kDecodeWarps) * kStep;
  }

  __device__ void TakeKeys(KeyStep<kDim>& k) {
    const char* slot = Wait();
    const int g = lane_ / 4, t = lane_ % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int b = 0; b < kDim / 32; ++b)
        k.x[b][half] = *reinterpret_cast<const uint4*>(slot + KeyOffset(8 * half + g, 4 * b + t));
    Refill();
  }
  __device__ void TakeValues(ValueStep<kDim>& v) {
    const char* slot = Wait();
    const int g = lane_ / 4, t = lane_ % 4;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int c = 0; c < kDim / 64; ++c)
        v.x[j][c] = *reinterpret_cast<const uint4*>(slot + ValueOffset(v.RowOf(j, t), 8 * c + g));
    Refill();
  }

 private:
  static constexpr int kPieces = kDim / 8, kRowsAtOnce = kWarp / kPieces;

  __device__ static uint32_t KeyOffset(int row, int piece) {
    return row * (kDim * 2) + ((piece ^ ((row & 1) << 2)) << 4);
  }
  __device__ static uint32_t ValueOffset(int row, int piece) {
    return row * (kDim * 2) + ((piece ^ ((row & 6))) << 4);
  }
  // The page of the lane's step of 32.
  __device__ int PagesOf(int step) const {
    const int row = RowOf(step + lane_);
    return row < limit_ ? rows_.Pages()[row / PagedKv::kPageRows] : 0;
  }
  __device__ const char* Wait() const {
    WaitAsync<kSlots - 1>();
    __syncwarp();  // all lanes' copies are here
    return ring_ + slot_ * kSlotBytes;
  }
  __device__ void Refill() {
    __syncwarp();  // all lanes have read the slot
    Fetch(slot_);
    if (++slot_ == kSlots) slot_ = 0;
  }
  __device__ void Fetch(int slot) {  // one group of copies, possibly empty
    const int step = fetched_ / 2, row = RowOf(step);
    const bool values = fetched_ % 2;
    if (row < end_) {
      if (!values) {
        if (step % kWarp == 0 && step > 0) {
          pages_ = next_pages_;
          next_pages_ = PagesOf(step + kWarp);
        }
        const int page = __shfl_sync(kAllLanes, pages_, step % kWarp);
        from_ = rows_.cache.K<Bf16>(page * (2 * PagedKv::kPageRows) + row % PagedKv::kPageRows);
      }
      const int first = lane_ / kPieces, piece = lane_ % kPieces;
      const Bf16* from = from_ + (values ? PagedKv::kPageRows * kDim : 0) + first * kDim + piece * 8;
      const uint32_t to = SharedAddress(ring_) + slot * kSlotBytes;
#pragma unroll
      for (int i = 0; i < kStep / kRowsAtOnce; ++i) {
        const int r = first + i * kRowsAtOnce;
        CopyAsync16(to + (values ? ValueOffset(r, piece) : KeyOffset(r, piece)),
                    from + i * kRowsAtOnce * kDim, rows_.Seen(row + r));
      }
    }
    CommitAsync();
    ++fetched_;
  }

  const DecodeRows& rows_;
  const int lane_;
  const char* const ring_;
  int begin_ = 0, limit_ = 0, end_ = 0;
  int pages_ = 0, next_pages_ = 0;  // of the lane's step of this 32 and of the next
  int fetched_ = 0, slot_ = 0;
  const Bf16* from_ = nullptr;
};

}  // namespace sluice
