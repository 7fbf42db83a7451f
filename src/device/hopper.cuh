// Instructions of Hopper that its compute kernels need beside those of ptx.cuh: waiting on
// mbarriers inside a CTA, register reallocation, 4-D tensor copies, matrix stores. One function an
// instruction; sm_90a only.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "device/ptx.cuh"

namespace xstage::device {

// Waits for a phase that threads or copies of this CTA complete; it has no deadline because the CTA
// depends on nobody else.
__device__ __forceinline__ void mbarrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

// Whether the phase has completed, without any wait.
__device__ __forceinline__ bool mbarrier_test_wait(std::uint64_t* barrier, std::uint32_t parity) {
  return cuda::ptx::mbarrier_test_wait_parity(barrier, parity);
}

// mbarrier_wait() for a role that waits long and is in no hurry: between looks it sleeps, so that
// its polling does not take issue slots from the warps that compute.
template <int kSleepNs>
__device__ __forceinline__ void mbarrier_wait_asleep(std::uint64_t* barrier, std::uint32_t parity) {
  while (!mbarrier_try_wait(barrier, parity)) __nanosleep(kSleepNs);
}

// Counts towards a named barrier without waiting at it.
__device__ __forceinline__ void named_barrier_arrive(std::uint32_t barrier_idx,
                                                     std::uint32_t num_threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(barrier_idx), "r"(num_threads) : "memory");
}

// Registers of each thread of the calling warpgroup from here on.
template <int kRegisters>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(map)) : "memory");
}

__device__ __forceinline__ std::uint64_t l2_policy_evict_first() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ std::uint64_t l2_policy_evict_last() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Box of a 4-D tensor -> shared memory; its bytes are counted on `barrier`.
__device__ __forceinline__ void tensor_load_4d(void* destination, const CUtensorMap* map,
                                               std::uint64_t* barrier, int c0, int c1, int c2,
                                               int c3, std::uint64_t l2_policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(destination)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(shared_address(barrier)), "r"(c0), "r"(c1),
      "r"(c2), "r"(c3), "l"(l2_policy)
      : "memory");
}

// The same for 2-D and 3-D tensors.
__device__ __forceinline__ void tensor_load_2d(void* destination, const CUtensorMap* map,
                                               std::uint64_t* barrier, int c0, int c1,
                                               std::uint64_t l2_policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(destination)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(shared_address(barrier)), "r"(c0), "r"(c1),
      "l"(l2_policy)
      : "memory");
}
__device__ __forceinline__ void tensor_load_3d(void* destination, const CUtensorMap* map,
                                               std::uint64_t* barrier, int c0, int c1, int c2,
                                               std::uint64_t l2_policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(destination)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(shared_address(barrier)), "r"(c0), "r"(c1),
      "r"(c2), "l"(l2_policy)
      : "memory");
}

// Brings a box of a 4-D tensor into the L2 cache.
__device__ __forceinline__ void tensor_prefetch_4d(const CUtensorMap* map, int c0, int c1, int c2,
                                                   int c3) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(
                   reinterpret_cast<std::uint64_t>(map)),
               "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}

// Shared memory -> box of a 4-D tensor; joins the thread's current bulk group. What lies outside
// the tensor is clipped.
__device__ __forceinline__ void tensor_store_4d(const CUtensorMap* map, const void* source, int c0,
                                                int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          reinterpret_cast<std::uint64_t>(map)),
      "r"(shared_address(source)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l%8 of matrix l/8.
__device__ __forceinline__ void store_matrix_x4(std::uint32_t row_address, std::uint32_t m0,
                                                std::uint32_t m1, std::uint32_t m2,
                                                std::uint32_t m3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address),
      "r"(m0), "r"(m1), "r"(m2), "r"(m3)
      : "memory");
}

// The same with each matrix transposed; the addresses are those of the transposed rows.
__device__ __forceinline__ void store_matrix_x4_transposed(std::uint32_t row_address,
                                                           std::uint32_t m0, std::uint32_t m1,
                                                           std::uint32_t m2, std::uint32_t m3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address),
      "r"(m0), "r"(m1), "r"(m2), "r"(m3)
      : "memory");
}

// 2^x; results below the normal range are 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace xstage::device
