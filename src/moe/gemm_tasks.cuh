// Tasks of the grouped GEMM: what a task is, the order in which a launch hands them out, and the
// ring through which a scheduler hands them to the other roles of its thread block or cluster.
//
// The order is a parameter of the scheduler's role: anything with `GemmTask next()`, called by a
// converged warp, whose last task has expert -1.
#pragma once

#include <cstdint>

#include "moe/gemm_order.hpp"
#include "moe/gemm_traits.cuh"

namespace xstage::moe {

struct GemmTask {
  std::int32_t expert = -1;      // -1: no work is left
  std::int32_t row = 0;          // first row in the pool
  std::int32_t num_rows = 0;     // that hold tokens, up to the rows of a tile (a pair: of two)
  std::int32_t column_tile = 0;  // of kTaskColumns
};
static_assert(sizeof(GemmTask) == sizeof(uint4));

// Expert after expert, inside an expert as ExpertOrder says. Handed out by a counter to whoever is
// ready, because tiles of 64 rows and of 128 take different times; who computes a tile does not
// change its bits.
template <int kTileRows, bool kIsPair>
class GroupedOrder {
 public:
  __device__ GroupedOrder(const GemmParams& params, std::uint32_t scheduler_idx,
                          std::uint32_t num_schedulers)
      : params_(params),
        lane_(static_cast<int>(threadIdx.x % 32)),
        num_schedulers_(num_schedulers),
        ticket_(static_cast<std::int32_t>(scheduler_idx)) {}

  __device__ GemmTask next() {
    GemmTask task;
    position_ = __shfl_sync(~0u, ticket_, 0);
    if (find_window()) task = make_task();
    if (lane_ == 0) {
      if (task.expert >= 0) {
        // Known when it is asked for, not before this task is handed out.
        ticket_ = static_cast<std::int32_t>(num_schedulers_ + atomicAdd(params_.num_taken, 1));
      } else if (atomicInc(params_.num_done, num_schedulers_ - 1) == num_schedulers_ - 1) {
        // The last scheduler to see the end leaves the counters as it found them.
        *params_.num_taken = 0;
      }
    }
    return task;
  }

 private:
  // Moves the window of 32 experts, one a lane, to the one that holds the position.
  __device__ bool find_window() {
    while (position_ >= window_end_) {
      window_ += 32;
      if (window_ >= params_.num_experts) return false;
      const int expert = window_ + lane_;
      const bool exists = expert < params_.num_experts;
      rows_ = exists ? params_.num_rows[expert] : 0;
      first_row_ = exists ? params_.first_row[expert] : 0;
      const std::int32_t tiles = num_tiles();
      std::int32_t end = tiles;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const std::int32_t below = __shfl_up_sync(~0u, end, distance);
        if (lane_ >= distance) end += below;
      }
      first_tile_ = window_end_ + end - tiles;
      window_end_ += __shfl_sync(~0u, end, 31);
    }
    return true;
  }

  __device__ std::int32_t num_tiles() const {
    return ExpertOrder<kTileRows, kIsPair>(rows_, params_.num_column_tiles).num_tasks();
  }

  __device__ GemmTask make_task() const {
    const std::int32_t mine = position_ - first_tile_;
    const int owner =
        __ffs(static_cast<int>(__ballot_sync(~0u, mine >= 0 && mine < num_tiles()))) - 1;
    const std::int32_t tile = __shfl_sync(~0u, mine, owner);
    const std::int32_t rows = __shfl_sync(~0u, rows_, owner);
    const TileTask local =
        ExpertOrder<kTileRows, kIsPair>(rows, params_.num_column_tiles).task(tile);
    GemmTask task;
    task.expert = window_ + owner;
    task.row = __shfl_sync(~0u, first_row_, owner) + local.row;
    task.num_rows = local.num_rows;
    task.column_tile = local.column_tile;
    return task;
  }

  const GemmParams& params_;
  int lane_;
  std::uint32_t num_schedulers_;
  std::int32_t ticket_;  // lane 0: the position of the next task
  std::int32_t position_ = 0;
  std::int32_t window_ = -32;
  std::int32_t window_end_ = 0;  // tiles of all experts up to the window's last
  // Of the lane's expert.
  std::int32_t rows_ = 0;
  std::int32_t first_row_ = 0;
  std::int32_t first_tile_ = 0;
};

// How long roles sleep between looks that are in no hurry.
inline constexpr int kLoaderSleepNs = 32;
inline constexpr int kSchedulerSleepNs = 200;

// To all blocks of the cluster, by a converged warp.
template <class Traits>
__device__ __forceinline__ void publish_task(GemmShared<Traits>& shared, std::uint32_t slot,
                                             const GemmTask& task) {
  const std::uint32_t lane = threadIdx.x % 32;
  const uint4 words = make_uint4(
      static_cast<std::uint32_t>(task.expert), static_cast<std::uint32_t>(task.row),
      static_cast<std::uint32_t>(task.num_rows), static_cast<std::uint32_t>(task.column_tile));
  if constexpr (Traits::kClusterBlocks == 1) {
    // A store into a cluster of one block is an illegal instruction.
    if (lane == 0) {
      shared.tasks[slot] = words;
      dev::mbarrier_arrive(&shared.task_full[slot]);
    }
  } else if (lane < Traits::kClusterBlocks) {
    const std::uint32_t full = dev::cluster_address(&shared.task_full[slot], lane);
    dev::mbarrier_arrive_expect_cluster(full, sizeof(GemmTask));
    dev::store_cluster_async(dev::cluster_address(&shared.tasks[slot], lane), words, full);
  }
}

// The scheduler's role: one warp, in the first block of a cluster. Publishes to all its blocks.
template <class Traits, class Order>
__device__ __forceinline__ void run_scheduler(GemmShared<Traits>& shared, Order& order) {
  for (std::uint32_t task_idx = 0;; ++task_idx) {
    const GemmTask task = order.next();
    const std::uint32_t slot = task_idx % kNumTaskSlots;
    dev::mbarrier_wait_asleep<kSchedulerSleepNs>(&shared.task_empty[slot],
                                                 (task_idx / kNumTaskSlots + 1) & 1);
    publish_task(shared, slot, task);
    __syncwarp();
    if (task.expert < 0) break;
  }
}

// Whether the blocks of a pair share the weights of a task, not the rows.
template <class Traits>
__device__ __forceinline__ bool shares_weights(const GemmTask& task) {
  return Traits::kClusterBlocks > 1 && task.num_rows > Traits::kTileRows;
}
// What block `rank` of its cluster has of a task.
template <class Traits>
__device__ __forceinline__ GemmTask share_of(GemmTask task, std::uint32_t rank) {
  if constexpr (Traits::kClusterBlocks > 1) {
    const int mine = static_cast<int>(rank);
    if (shares_weights<Traits>(task)) {
      task.row += mine * Traits::kTileRows;
      task.num_rows = mine == 0 ? Traits::kTileRows : task.num_rows - Traits::kTileRows;
    } else {
      task.column_tile += mine;
    }
  }
  return task;
}

// A task that is there, read and given back.
template <class Traits>
__device__ __forceinline__ GemmTask read_task(GemmShared<Traits>& shared, std::uint32_t slot) {
  uint4 words;
  dev::load_shared(dev::shared_address(&shared.tasks[slot]), words);
  // Every lane uses what it read before the slot is given back.
  words.x = __shfl_sync(~0u, words.x, 0);
  if (threadIdx.x % 32 == 0) {
    if constexpr (Traits::kClusterBlocks == 1) {
      dev::mbarrier_arrive(&shared.task_empty[slot]);
    } else {
      dev::mbarrier_arrive_cluster(dev::cluster_address(&shared.task_empty[slot], 0));
    }
  }
  return {static_cast<std::int32_t>(words.x), static_cast<std::int32_t>(words.y),
          static_cast<std::int32_t>(words.z), static_cast<std::int32_t>(words.w)};
}

// Task number `task_idx`, by a converged warp that reads every task once.
template <class Traits>
__device__ __forceinline__ GemmTask take_task(GemmShared<Traits>& shared, std::uint32_t task_idx) {
  const std::uint32_t slot = task_idx % kNumTaskSlots;
  dev::mbarrier_wait(&shared.task_full[slot], task_idx / kNumTaskSlots & 1);
  return read_task(shared, slot);
}

// The same if the task is there already. A warp must never wait for a later task before it has
// finished an earlier one: somebody's task may depend on that.
template <class Traits>
__device__ __forceinline__ bool try_take_task(GemmShared<Traits>& shared, std::uint32_t task_idx,
                                              GemmTask& task) {
  const std::uint32_t slot = task_idx % kNumTaskSlots;
  const bool is_there =
      dev::mbarrier_test_wait(&shared.task_full[slot], task_idx / kNumTaskSlots & 1);
  if (!__all_sync(~0u, is_there)) return false;
  task = read_task(shared, slot);
  return true;
}

}  // namespace xstage::moe
