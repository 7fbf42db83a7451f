// Attention forward for Hopper: out = softmax(scale * Q K^T) V, one persistent CTA an SM.
//
// Roles of a CTA (384 threads):
//   loader        one warp of the producer warpgroup; tensor copies of Q, K and V
//   senders       one producer warp for each consumer warpgroup; store finished output rows
//   consumers     two warpgroups of 64 query rows; they take turns on the tensor cores: while one
//                 runs its softmax the other's products are issued. Inside a warpgroup the softmax
//                 of key block n runs beside the P V product of block n + 1.
// Key blocks are walked from the last to the first, so that only the first steps need masks.
// Each consumer warpgroup has its own output buffer and there is no barrier of the whole CTA at a
// tile's end: the next tile's loads never wait for a store, and the turns survive the boundary.
#pragma once

#include <cstdint>

#include "attention/forward_consumer.cuh"
#include "attention/forward_producer.cuh"

namespace xstage::attention {

template <class Traits>
__device__ __forceinline__ void init_barriers(ForwardShared<Traits>& shared) {
  constexpr std::uint32_t kGroupWarps = kWarpgroupThreads / 32;
  for (int i = 0; i < kNumGroups; ++i) {
    dev::mbarrier_init(&shared.q_full[i], 1);
    dev::mbarrier_init(&shared.q_empty[i], kGroupWarps);
    dev::mbarrier_init(&shared.o_full[i], kGroupWarps);
    dev::mbarrier_init(&shared.o_empty[i], 1);
  }
  for (int i = 0; i < kNumStages; ++i) {
    dev::mbarrier_init(&shared.k_full[i], 1);
    dev::mbarrier_init(&shared.k_empty[i], kNumGroups * kGroupWarps);
    dev::mbarrier_init(&shared.v_full[i], 1);
    dev::mbarrier_init(&shared.v_empty[i], kNumGroups * kGroupWarps);
  }
  for (int i = 0; i < kNumItemSlots; ++i) {
    dev::mbarrier_init(&shared.item_full[i], 1);
    dev::mbarrier_init(&shared.item_empty[i], kNumGroups * kGroupWarps + kNumGroups);
  }
  dev::mbarrier_init_fence();
}

template <class Traits>
__global__ void __launch_bounds__(kNumThreads, 1)
    attention_forward_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) char shared_bytes[];
  auto& shared = *reinterpret_cast<ForwardShared<Traits>*>(shared_bytes);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    init_barriers(shared);
    dev::prefetch_tensor_map(&params.q);
    dev::prefetch_tensor_map(&params.k);
    dev::prefetch_tensor_map(&params.v);
    dev::prefetch_tensor_map(&params.out);
  }
  __syncthreads();
  if (warp < kWarpgroupThreads / 32) {
    dev::shrink_registers<Traits::kProducerRegisters>();
    if (threadIdx.x % 32 == 0) {
      if (warp == 0) {
        run_loader(params, shared);
      } else if (warp <= kNumGroups) {
        run_sender(params, shared, warp - 1);
      }
    }
  } else {
    dev::grow_registers<Traits::kConsumerRegisters>();
    const int group = warp / 4 - 1;
    Consumer<Traits>(params, shared, group, static_cast<int>(threadIdx.x) % kWarpgroupThreads)
        .run();
  }
}

}  // namespace xstage::attention
