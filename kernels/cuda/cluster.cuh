// Role: what the blocks of a thread block cluster share: a barrier in two halves, and each other's shared
// memory. Threads: all threads of all blocks of a cluster call the barrier together.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace sluice {

__device__ inline int ClusterRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return static_cast<int>(rank);
}

// What a thread wrote before it arrives, anywhere, is seen by all threads of the cluster after they waited.
__device__ inline void ClusterArrive() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory");
}
__device__ inline void ClusterWait() {
  __syncwarp();
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}

// Where block `rank` of the cluster has what this block has at `shared`.
__device__ inline uint32_t RemoteAddress(const void* shared, int rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(address) : "r"(SharedAddress(shared)), "r"(rank));
  return address;
}

__device__ inline int LoadRemote(uint32_t address) {
  int x;
  asm volatile("ld.shared::cluster.s32 %0, [%1];\n" : "=r"(x) : "r"(address) : "memory");
  return x;
}
__device__ inline void StoreRemote(uint32_t address, uint32_t x) {
  asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(address), "r"(x) : "memory");
}
__device__ inline void StoreRemote(uint32_t address, float x) { StoreRemote(address, __float_as_uint(x)); }
__device__ inline void StoreRemote(uint32_t address, float2 x) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1,%2};\n" ::"r"(address), "f"(x.x), "f"(x.y) : "memory");
}
__device__ inline void StoreRemote(uint32_t address, float4 x) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"r"(address), "f"(x.x), "f"(x.y),
               "f"(x.z), "f"(x.w)
               : "memory");
}

}  // namespace sluice
