// All CTAs of one rank's kernel meet. The kernel must be launched cooperatively, or with a grid
// that the caller knows to be resident as a whole. The counter returns to a state from which a grid
// of any size may use it next, so it needs no reset between launches, also in graph replays.
#pragma once

#include <cstdint>

#include "device/ptx.cuh"
#include "device/wait.cuh"
#include "xstage/peer_table.hpp"

namespace xstage::device {

inline constexpr std::uint32_t kGridFlip = 0x80000000u;

// How many of `num_ctas` CTAs have arrived in the current round, from the counter's lower bits.
__host__ __device__ constexpr std::uint32_t num_arrived(std::uint32_t counter,
                                                        std::uint32_t num_ctas) {
  const std::uint32_t low = counter & ~kGridFlip;
  return low < kGridFlip / 2 ? low : num_ctas - (kGridFlip - low);
}

// One thread of each of `num_ctas` CTAs calls it, between two CTA barriers. The top bit of the
// counter flips when the last one has come: CTA 0 adds what the others leave open.
__device__ inline bool grid_arrive_and_wait(const WaitContext& context, std::uint32_t* counter,
                                            std::uint32_t cta_idx, std::uint32_t num_ctas) {
  const std::uint32_t share = cta_idx == 0 ? kGridFlip - (num_ctas - 1) : 1u;
  const std::uint32_t before = add_acq_rel_gpu(counter, share);
  FailedWait failed{-1, static_cast<std::uint32_t>(WaitTag::grid_barrier), num_ctas};
  return wait_recorded(context, failed, [&] {
    const std::uint32_t seen = load_acquire_gpu(counter);
    failed.seen = num_arrived(seen, num_ctas);
    return ((seen ^ before) & kGridFlip) != 0;
  });
}

// All threads of all CTAs call it. True on every thread if everybody has come.
__device__ inline bool grid_barrier(const WaitContext& context, std::uint32_t* counter,
                                    std::uint32_t cta_idx, std::uint32_t num_ctas) {
  bool fine = true;
  __syncthreads();
  if (threadIdx.x == 0) fine = grid_arrive_and_wait(context, counter, cta_idx, num_ctas);
  return __syncthreads_and(fine) != 0;
}

}  // namespace xstage::device
