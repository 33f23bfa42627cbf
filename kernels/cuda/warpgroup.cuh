// Role: matrix products of a warpgroup (128 threads) with operands in shared memory, asynchronous. A tile of
// 64 columns is rows of 128 bytes whose 16-byte pieces are swizzled: piece p of row r lies at p ^ (r % 8).
// Tiles start at multiples of 1024 bytes. C fragments of a warp's 16 rows are those of tensor_core.cuh, one
// for every eight columns.
#pragma once

#include <cstdint>

namespace sluice {

constexpr int kWarpgroup = 128;
constexpr int kTileColumns = 64;  // bf16 values of a 128-byte row

__device__ inline uint32_t SwizzledPiece(uint32_t tile, int row, int piece) {
  return tile + row * 128 + ((piece ^ (row & 7)) << 4);
}

// Describes an operand: `address` of its first row (and column, in steps of 16 values along a row). Groups of
// eight rows follow each other every 1024 bytes. tile_bytes: from one tile of 64 columns to the next, used
// where columns are not the direction that is summed over.
__device__ inline uint64_t Operand(uint32_t address, uint32_t tile_bytes) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{(tile_bytes >> 4) & 0x3fff} << 16 |
         uint64_t{(address >> 4) & 0x3fff};
}

// Before the first product that reads registers or shared memory written so far; after ordinary stores (or
// cp.async) to shared memory, PublishShared() comes first, then a barrier.
__device__ inline void WarpgroupFence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void WarpgroupCommit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int kPending>
__device__ inline void WarpgroupWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
__device__ inline void PublishShared() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// Barriers other than __syncthreads' own: some threads wait, others only arrive.
__device__ inline void NamedBarrierSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void NamedBarrierArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// Keeps the compiler from moving uses of registers across an asynchronous product.
template <int kN>
__device__ inline void Pin(float (&c)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) asm volatile("" : "+f"(c[i])::"memory");
}

// Operands %0 to %31 or %63 of a product, and the floats behind them.
#define SLUICE_REGISTERS_32                                                \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SLUICE_REGISTERS_64                                                            \
  SLUICE_REGISTERS_32                                                                  \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SLUICE_FLOATS_8(c, i)                                                                 \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])
#define SLUICE_FLOATS_32(c, i) \
  SLUICE_FLOATS_8(c, i), SLUICE_FLOATS_8(c, i + 8), SLUICE_FLOATS_8(c, i + 16), SLUICE_FLOATS_8(c, i + 24)

// c [64, 128] (+)= a [64, 16] b^T, a and b [128, 16] along rows of shared memory; set when not `add`.
__device__ inline void MultiplyRows(float (&c)[64], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SLUICE_REGISTERS_64
      "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
      : SLUICE_FLOATS_32(c, 0), SLUICE_FLOATS_32(c, 32)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// c [64, 64] += a [64, 16] b, a in registers as an A fragment of each warp, b [16, 64] with its columns along
// rows of shared memory.
__device__ inline void MultiplyValues(float (&c)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SLUICE_REGISTERS_32
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
      : SLUICE_FLOATS_32(c, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// c [64, 128] += a [64, 16] b, a in registers as an A fragment of each warp, b [16, 128] with its columns
// along rows of shared memory.
__device__ inline void MultiplyValues(float (&c)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SLUICE_REGISTERS_64
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
      : SLUICE_FLOATS_32(c, 0), SLUICE_FLOATS_32(c, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef SLUICE_REGISTERS_32
#undef SLUICE_REGISTERS_64
#undef SLUICE_FLOATS_8
#undef SLUICE_FLOATS_32

}  // namespace sluice
