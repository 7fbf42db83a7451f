// Clusters of thread blocks (sm_90 on): rank, barriers of the cluster, arrivals at and stores to
// another block's shared memory, and copies that land in several blocks at once. One function an
// instruction.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "device/ptx.cuh"

namespace xstage::device {

__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of the cluster; orders their memory accesses before and after.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

// The address that a variable of this block's shared memory has in block `rank` of the cluster.
__device__ __forceinline__ std::uint32_t cluster_address(const void* pointer, std::uint32_t rank) {
  std::uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(shared_address(pointer)), "r"(rank));
  return address;
}

// Arrives at a barrier in any block of the cluster, without ordering what this thread did before: a
// release of cluster scope is a fence of the whole GPU, about a microsecond. Enough to give back
// what has been read, by instructions whose results have been used or waited for.
__device__ __forceinline__ void mbarrier_arrive_cluster(std::uint32_t barrier_address) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier_address)
               : "memory");
}

// The same, and the bytes that are still to come: the copies that bring them order themselves.
__device__ __forceinline__ void mbarrier_arrive_expect_cluster(std::uint32_t barrier_address,
                                                               std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(
                   barrier_address),
               "r"(bytes)
               : "memory");
}

// 16 bytes into a block of the cluster; they are counted on that block's barrier. An illegal
// instruction in a cluster of a single block.
__device__ __forceinline__ void store_cluster_async(std::uint32_t address, uint4 value,
                                                    std::uint32_t barrier_address) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4},"
      " [%5];" ::"r"(address),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier_address)
      : "memory");
}

// Box of a 2-D tensor -> the same place in every block of `block_mask`; each block's own barrier
// counts the bytes.
__device__ __forceinline__ void tensor_load_2d_multicast(void* destination, const CUtensorMap* map,
                                                         std::uint64_t* barrier, int c0, int c1,
                                                         std::uint16_t block_mask,
                                                         std::uint64_t l2_policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(
          shared_address(destination)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(shared_address(barrier)), "r"(c0), "r"(c1),
      "h"(block_mask), "l"(l2_policy)
      : "memory");
}

// The same for 3-D tensors.
__device__ __forceinline__ void tensor_load_3d_multicast(void* destination, const CUtensorMap* map,
                                                         std::uint64_t* barrier, int c0, int c1,
                                                         int c2, std::uint16_t block_mask,
                                                         std::uint64_t l2_policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(
          shared_address(destination)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(shared_address(barrier)), "r"(c0), "r"(c1),
      "r"(c2), "h"(block_mask), "l"(l2_policy)
      : "memory");
}

}  // namespace xstage::device
