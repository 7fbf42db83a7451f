// One function an instruction: the vocabulary of the kernels below CUDA C++. Where CCCL's
// cuda::ptx has the instruction it is used; the rest is our own thin wrapper.
// Functions that need the bulk copy engine (TMA) exist from sm_90 on; on older parts they compile
// to nothing and the host refuses to launch what would call them.
#pragma once

#include <cstdint>
#include <cuda/ptx>

namespace xstage::device {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define XSTAGE_HAS_TMA 1
#else
#define XSTAGE_HAS_TMA 0
#endif

// --- clocks and place ----------------------------------------------------------------------------

// Nanoseconds of a timer shared by all SMs of a GPU. It advances in steps; the probe records them.
__device__ inline std::uint64_t global_time_ns() {
  return cuda::ptx::get_sreg_globaltimer();
}

// Cycles of this SM; not comparable between SMs.
__device__ inline std::uint64_t sm_cycles() {
  return cuda::ptx::get_sreg_clock64();
}

__device__ inline std::uint32_t sm_idx() {
  return cuda::ptx::get_sreg_smid();
}

// --- register stores and loads -------------------------------------------------------------------

__device__ inline void store_global(void* address, uint4 value) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}
__device__ inline void store_global(void* address, uint2 value) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(value.x), "r"(value.y)
               : "memory");
}
__device__ inline void store_global(void* address, std::uint32_t value) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Shared memory by its 32-bit address: never a generic access.
__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ inline void load_shared(std::uint32_t address, uint4& value) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
}
__device__ inline void load_shared(std::uint32_t address, uint2& value) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "r"(address)
               : "memory");
}
__device__ inline void load_shared(std::uint32_t address, std::uint32_t& value) {
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
}

// A load that always goes to memory, never served from a stale line.
__device__ inline uint4 load_global_coherent(const void* address) {
  uint4 value;
  asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address)
               : "memory");
  return value;
}

// Remote add without a result, system scope.
__device__ inline void red_add_system(void* address, std::uint32_t value) {
  asm volatile("red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// --- flags ---------------------------------------------------------------------------------------

__device__ inline void store_release_system(std::uint32_t* flag, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ inline void store_relaxed_system(std::uint32_t* flag, std::uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ inline std::uint32_t load_acquire_system(const std::uint32_t* flag) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
__device__ inline std::uint32_t load_relaxed_system(const std::uint32_t* flag) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
__device__ inline std::uint32_t load_acquire_gpu(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ inline std::uint64_t load_acquire_gpu(const std::uint64_t* word) {
  std::uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
__device__ inline void store_release_gpu(std::uint64_t* word, std::uint64_t value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ inline void store_release_gpu(std::uint32_t* word, std::uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
__device__ inline std::uint32_t add_acq_rel_gpu(std::uint32_t* counter, std::uint32_t value) {
  std::uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(counter), "r"(value)
               : "memory");
  return old;
}

// --- fences --------------------------------------------------------------------------------------

__device__ inline void fence_system() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}

// Orders this thread's ordinary accesses to shared memory with those of the copy engine.
__device__ inline void fence_async_shared() {
#if XSTAGE_HAS_TMA
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// The same for global memory: before the copy engine reads what ordinary stores of this GPU or of
// a peer wrote.
__device__ inline void fence_async_global() {
#if XSTAGE_HAS_TMA
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

// --- barriers in shared memory -------------------------------------------------------------------

__device__ inline void mbarrier_init(std::uint64_t* barrier, std::uint32_t num_arrivals) {
  cuda::ptx::mbarrier_init(barrier, num_arrivals);
}
// Makes initialised barriers visible to the copy engine; follow with a CTA barrier.
__device__ inline void mbarrier_init_fence() {
#if XSTAGE_HAS_TMA
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ inline void mbarrier_arrive(std::uint64_t* barrier) {
  (void)cuda::ptx::mbarrier_arrive(barrier);
}
__device__ inline void mbarrier_arrive_expect_bytes(std::uint64_t* barrier, std::uint32_t bytes) {
#if XSTAGE_HAS_TMA
  (void)cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta,
                                             cuda::ptx::space_shared, barrier, bytes);
#endif
}
// True if the phase of that parity has completed. May sleep for a hardware-defined short time.
__device__ inline bool mbarrier_try_wait(std::uint64_t* barrier, std::uint32_t parity) {
#if XSTAGE_HAS_TMA
  return cuda::ptx::mbarrier_try_wait_parity(barrier, parity);
#else
  return true;
#endif
}

// A barrier of `num_threads` threads of the CTA (a multiple of 32) with an identifier 0..15.
__device__ inline void named_barrier_sync(std::uint32_t barrier_idx, std::uint32_t num_threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(barrier_idx), "r"(num_threads) : "memory");
}

// --- the bulk copy engine ------------------------------------------------------------------------

__device__ inline void bulk_load(void* shared_dst, const void* global_src, std::uint32_t bytes,
                                 std::uint64_t* barrier) {
#if XSTAGE_HAS_TMA
  cuda::ptx::cp_async_bulk(cuda::ptx::space_cluster, cuda::ptx::space_global, shared_dst,
                           global_src, bytes, barrier);
#endif
}
__device__ inline void bulk_store(void* global_dst, const void* shared_src, std::uint32_t bytes) {
#if XSTAGE_HAS_TMA
  cuda::ptx::cp_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, global_dst, shared_src,
                           bytes);
#endif
}
__device__ inline void bulk_reduce_add(std::uint32_t* global_dst, const std::uint32_t* shared_src,
                                       std::uint32_t bytes) {
#if XSTAGE_HAS_TMA
  cuda::ptx::cp_reduce_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared,
                                  cuda::ptx::op_add, global_dst, shared_src, bytes);
#endif
}
// Stores the box of a 2-D tensor map whose first element is (column, row). What lies past the
// tensor's end is clipped. A negative start is legal in loads alone: here it ends the kernel with
// an illegal instruction.
__device__ inline void tensor_store_2d(const void* tensor_map, std::int32_t column,
                                       std::int32_t row, const void* shared_src) {
#if XSTAGE_HAS_TMA
  const std::int32_t coords[2] = {column, row};
  cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_global, cuda::ptx::space_shared, tensor_map,
                                  coords, shared_src);
#endif
}
// Closes the group of this thread's copies issued so far.
__device__ inline void bulk_commit() {
#if XSTAGE_HAS_TMA
  cuda::ptx::cp_async_bulk_commit_group();
#endif
}
// Until at most kPending of this thread's groups still read their source.
template <int kPending>
__device__ inline void bulk_wait_read() {
#if XSTAGE_HAS_TMA
  cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<kPending>{});
#endif
}
// Until at most kPending groups are incomplete; their writes are then visible to this thread.
template <int kPending>
__device__ inline void bulk_wait_complete() {
#if XSTAGE_HAS_TMA
  cuda::ptx::cp_async_bulk_wait_group(cuda::ptx::n32_t<kPending>{});
#endif
}

}  // namespace xstage::device
