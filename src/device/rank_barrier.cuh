// All ranks of a group meet. Each rank keeps the number of barriers it has completed in its own
// device memory, so a captured graph can be replayed; all ranks must make the same number of calls.
#pragma once

#include <cstdint>

#include "device/flags.cuh"
#include "device/grid_barrier.cuh"
#include "device/wait.cuh"
#include "xstage/peer_table.hpp"

namespace xstage::device {

// Called by the first `num_threads` threads of ONE CTA of every rank (a multiple of 32, or fewer
// than 32 within one warp: then all of the warp calls). Everything that these threads stored or
// observed before is visible to every rank after; other threads' stores need a CTA barrier before
// and the ordering of memory by the caller. False if the group is dead.
//
// `epoch` is the value before; pass control->epoch, and store epoch + 1 there afterwards.
__device__ inline bool rank_arrive_and_wait(const WaitContext& context, const PeerTable& table,
                                            std::uint32_t epoch, std::uint32_t thread_idx,
                                            std::uint32_t num_threads) {
  RankControl* mine = control_of(table, table.rank);
  const std::uint32_t target = epoch + 1;
  bool fine = true;
  for (int peer = static_cast<int>(thread_idx); peer < table.num_ranks;
       peer += static_cast<int>(num_threads)) {
    if (peer == table.rank) continue;
    store_release_system(&control_of(table, peer)->arrivals[table.rank], target);
  }
  for (int peer = static_cast<int>(thread_idx); peer < table.num_ranks;
       peer += static_cast<int>(num_threads)) {
    if (peer == table.rank) continue;
    fine &= wait_flag(context, &mine->arrivals[peer], target, peer,
                      static_cast<std::uint32_t>(WaitTag::rank_barrier));
  }
  return fine;
}

// One CTA per rank, the same one throughout a kernel: all its threads call it. Orders all their
// accesses before against all accesses of every rank's callers after.
__device__ inline bool rank_barrier_cta(const WaitContext& context, const PeerTable& table) {
  RankControl* mine = control_of(table, table.rank);
  __syncthreads();
  bool fine = true;
  if (threadIdx.x < 32) {
    const std::uint32_t epoch = mine->epoch;
    __syncwarp();
    fine = rank_arrive_and_wait(context, table, epoch, threadIdx.x, 32);
    __syncwarp();
    if (threadIdx.x == 0) mine->epoch = epoch + 1;
  }
  return __syncthreads_and(fine) != 0;
}

// Whole kernels of every rank: all threads of all CTAs call it.
__device__ inline bool rank_barrier_grid(const WaitContext& context, const PeerTable& table,
                                         std::uint32_t cta_idx, std::uint32_t num_ctas) {
  RankControl* mine = control_of(table, table.rank);
  bool fine = grid_barrier(context, &mine->grid_arrivals, cta_idx, num_ctas);
  if (cta_idx == 0) fine &= rank_barrier_cta(context, table);
  fine &= grid_barrier(context, &mine->grid_arrivals, cta_idx, num_ctas);
  return fine;
}

}  // namespace xstage::device
