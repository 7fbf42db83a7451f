// Grouped GEMM for Hopper: out[rows of expert e] = epilogue(A[rows] * W_e^T), one persistent block
// an SM.
//
// Roles of a block (384 threads):
//   loader      one warp; tensor copies of A and W into a ring of stages
//   scheduler   one warp (of the cluster's first block); takes tasks from an order, hands them on
//   consumers   two warpgroups on the tensor cores, each with its epilogue; they share stages and
//               nothing else, so that one may compute while the other stores
// Nobody waits at a tile's end: the loader is a ring of stages ahead, across tiles.
#pragma once

#include <cstdint>

#include "moe/gemm_consumer.cuh"
#include "moe/gemm_few_rows.cuh"

namespace xstage::moe {

template <class Traits>
__device__ __forceinline__ void init_barriers(GemmShared<Traits>& shared) {
  constexpr std::uint32_t kWarps = kNumGroups * kWarpgroupThreads / 32;
  for (int i = 0; i < Traits::kNumStages; ++i) {
    dev::mbarrier_init(&shared.full[i], 1);
    dev::mbarrier_init(&shared.empty[i], kWarps * Traits::kClusterBlocks);
  }
  for (int i = 0; i < kNumTaskSlots; ++i) {
    dev::mbarrier_init(&shared.task_full[i], 1);
    dev::mbarrier_init(&shared.task_empty[i], (kWarps + 1) * Traits::kClusterBlocks);
  }
  dev::mbarrier_init_fence();
}

template <class Traits>
__device__ __forceinline__ void sync_all() {
  if constexpr (Traits::kClusterBlocks == 1) {
    __syncthreads();
  } else {
    dev::cluster_sync();
  }
}

template <class Traits>
__device__ __forceinline__ void run_consumer(const GemmParams& params, GemmShared<Traits>& shared,
                                             int group, int thread, std::uint32_t rank) {
  if constexpr (Traits::kFewRows) {
    FewRowsConsumer<Traits>(params, shared, group, thread, rank).run();
  } else {
    std::conditional_t<Traits::kIsSwiglu, SwigluEpilogue<Traits>, PlainEpilogue<Traits>> epilogue;
    Consumer<Traits>(params, shared, group, thread, rank).run(epilogue);
  }
}

template <class Traits>
__global__ void __launch_bounds__(kNumThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ GemmParams params) {
  extern __shared__ __align__(1024) char shared_bytes[];
  auto& shared = *reinterpret_cast<GemmShared<Traits>*>(shared_bytes);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const std::uint32_t rank = Traits::kClusterBlocks == 1 ? 0 : dev::cluster_rank();
  if (threadIdx.x == 0) {
    init_barriers(shared);
    dev::prefetch_tensor_map(&params.a);
    dev::prefetch_tensor_map(&params.w);
    dev::prefetch_tensor_map(&params.out);
  }
  sync_all<Traits>();
  if (warp < kWarpgroupThreads / 32) {
    dev::shrink_registers<Traits::kProducerRegisters>();
    if (warp == 0) {
      run_loader(params, shared, rank);
    } else if (warp == 1 && rank == 0) {
      GroupedOrder<Traits::kTileRows, (Traits::kClusterBlocks > 1)> order(
          params, blockIdx.x / Traits::kClusterBlocks, gridDim.x / Traits::kClusterBlocks);
      run_scheduler(shared, order);
    }
  } else {
    dev::grow_registers<Traits::kConsumerRegisters>();
    run_consumer(params, shared, warp / 4 - 1, static_cast<int>(threadIdx.x) % kWarpgroupThreads,
                 rank);
  }
  // A block's shared memory must outlive what its cluster still sends to it.
  if constexpr (Traits::kClusterBlocks > 1) dev::cluster_sync();
}

}  // namespace xstage::moe
