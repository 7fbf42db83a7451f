// The loader's role in the grouped GEMM: one warp that keeps the stages of A and W full.
#pragma once

#include <cstdint>

#include "moe/gemm_tasks.cuh"

namespace xstage::moe {

// Rows of A that a task multiplies: those of its tokens, rounded up.
template <class Traits>
__device__ __forceinline__ int padded_rows(const GemmTask& task) {
  if constexpr (Traits::kFewRows) {
    return task.num_rows <= 16 ? 16 : (task.num_rows <= 32 ? 32 : 64);
  } else {
    return task.num_rows <= kBlockRows ? kBlockRows : 2 * kBlockRows;
  }
}

// Rows of one step. Those that both blocks of a pair multiply are loaded by halves of each 64, for
// both.
template <class Traits>
__device__ __forceinline__ void load_rows(const GemmParams& params, GemmShared<Traits>& shared,
                                          std::uint32_t stage, int row, int num_rows, int step,
                                          bool is_shared, std::uint32_t rank,
                                          std::uint64_t policy) {
  constexpr int kRows = Traits::kLoadRows;
  const int element = step * Traits::kStepElements;
  if (is_shared) {
    for (int i = static_cast<int>(rank) * kRows; i < num_rows;
         i += kRows * Traits::kClusterBlocks) {
      dev::tensor_load_2d_multicast(shared.a[stage] + i * kStepBytes, &params.a,
                                    &shared.full[stage], element, row + i,
                                    (1 << Traits::kClusterBlocks) - 1, policy);
    }
  } else {
    for (int i = 0; i < num_rows; i += kRows) {
      dev::tensor_load_2d(shared.a[stage] + i * kStepBytes, &params.a, &shared.full[stage], element,
                          row + i, policy);
    }
  }
}

// Weights of one step. Few rows: every warpgroup has half of the task's columns, 64 a pass. A
// pair's block loads half of those that both multiply.
template <class Traits>
__device__ __forceinline__ void load_columns(const GemmParams& params, GemmShared<Traits>& shared,
                                             std::uint32_t stage, int column, int expert, int step,
                                             bool is_shared, std::uint32_t rank,
                                             std::uint64_t policy) {
  constexpr int kNumLoads = Traits::kStageColumns / Traits::kLoadColumns;
  constexpr std::uint32_t kBytes = Traits::kLoadColumns * kStepBytes;
  const int element = step * Traits::kStepElements;
  if (is_shared) {
    dev::tensor_load_3d_multicast(shared.b[stage] + rank * kBytes, &params.w, &shared.full[stage],
                                  element, column + static_cast<int>(rank) * Traits::kLoadColumns,
                                  expert, (1 << Traits::kClusterBlocks) - 1, policy);
    return;
  }
#pragma unroll
  for (int i = 0; i < kNumLoads; ++i) {
    dev::tensor_load_3d(shared.b[stage] + i * kBytes, &params.w, &shared.full[stage], element,
                        column + i * (Traits::kTaskColumns / kNumLoads), expert, policy);
  }
}

template <class Traits>
__device__ __forceinline__ void run_loader(const GemmParams& params, GemmShared<Traits>& shared,
                                           std::uint32_t rank) {
  const bool is_leader = threadIdx.x % 32 == 0;
  const std::uint64_t rows_policy = dev::l2_policy_evict_last();
  const std::uint64_t weights_policy =
      Traits::kFewRows ? dev::l2_policy_evict_first() : dev::l2_policy_evict_last();
  std::uint32_t num_steps = 0;
  for (std::uint32_t task_idx = 0;; ++task_idx) {
    const GemmTask whole = take_task(shared, task_idx);
    if (whole.expert < 0) break;
    const GemmTask task = share_of<Traits>(whole, rank);
    const bool shares_w = shares_weights<Traits>(whole);
    const bool shares_a = Traits::kClusterBlocks > 1 && !shares_w;
    if (is_leader) {
      const int num_rows = padded_rows<Traits>(task);
      const int column = task.column_tile * Traits::kTaskColumns;
      const std::uint32_t scale_bytes =
          Traits::kIsFp8 ? static_cast<std::uint32_t>(num_rows) * sizeof(float) : 0;
      const std::uint32_t bytes =
          static_cast<std::uint32_t>(num_rows) * kStepBytes + Traits::kBBytes + scale_bytes;
      std::uint32_t count = num_steps;
#pragma unroll 1
      for (int pass = 0; pass < Traits::kNumPasses; ++pass) {
        const float* scales = params.a_scales + task.row;
#pragma unroll 1
        for (int step = 0; step < params.num_steps; ++step, ++count) {
          const std::uint32_t stage = count % Traits::kNumStages;
          dev::mbarrier_wait(&shared.empty[stage], (count / Traits::kNumStages + 1) & 1);
          dev::mbarrier_arrive_expect_bytes(&shared.full[stage], bytes);
          load_columns(params, shared, stage, column + pass * Traits::kLoadColumns, task.expert,
                       step, shares_w, rank, weights_policy);
          load_rows(params, shared, stage, task.row, num_rows, step, shares_a, rank, rows_policy);
          if constexpr (Traits::kIsFp8) {
            dev::bulk_load(shared.a_scales[stage], scales, scale_bytes, &shared.full[stage]);
            scales += params.a_scale_stride;
          }
        }
      }
    }
    num_steps += static_cast<std::uint32_t>(params.num_steps * Traits::kNumPasses);
    __syncwarp();
  }
}

}  // namespace xstage::moe
