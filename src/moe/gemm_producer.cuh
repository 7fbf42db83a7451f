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

// Rows of one step. In a cluster every block loads its share of each 64 rows, for all blocks.
template <class Traits>
__device__ __forceinline__ void load_rows(const GemmParams& params, GemmShared<Traits>& shared,
                                          std::uint32_t stage, const GemmTask& task, int num_rows,
                                          int step, std::uint32_t rank, std::uint64_t policy) {
  constexpr std::uint32_t kLoadBytes = Traits::kLoadRows * kStepBytes;
  char* const destination = shared.a[stage] + rank * kLoadBytes;
  const int element = step * Traits::kStepElements;
  const int row = task.row + static_cast<int>(rank) * Traits::kLoadRows;
  constexpr int kStride = Traits::kLoadRows * Traits::kClusterBlocks;
  for (int i = 0; i < num_rows / kStride; ++i) {
    if constexpr (Traits::kClusterBlocks > 1) {
      dev::tensor_load_2d_multicast(destination + i * kStride * kStepBytes, &params.a,
                                    &shared.full[stage], element, row + i * kStride,
                                    (1 << Traits::kClusterBlocks) - 1, policy);
    } else {
      dev::tensor_load_2d(destination + i * kStride * kStepBytes, &params.a, &shared.full[stage],
                          element, row + i * kStride, policy);
    }
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
    const GemmTask task = take_task(shared, task_idx);
    if (task.expert < 0) break;
    if (is_leader) {
      const int num_rows = padded_rows<Traits>(task);
      const int column =
          (task.column_tile * Traits::kClusterBlocks + static_cast<int>(rank)) * kTileColumns;
      const std::uint32_t scale_bytes =
          Traits::kIsFp8 ? static_cast<std::uint32_t>(num_rows) * sizeof(float) : 0;
      const std::uint32_t bytes =
          static_cast<std::uint32_t>(num_rows) * kStepBytes + Traits::kBBytes + scale_bytes;
      const float* scales = params.a_scales + task.row;
      std::uint32_t count = num_steps;
#pragma unroll 1
      for (int step = 0; step < params.num_steps; ++step, ++count) {
        const std::uint32_t stage = count % Traits::kNumStages;
        dev::mbarrier_wait(&shared.empty[stage], (count / Traits::kNumStages + 1) & 1);
        dev::mbarrier_arrive_expect_bytes(&shared.full[stage], bytes);
        load_rows(params, shared, stage, task, num_rows, step, rank, rows_policy);
        dev::tensor_load_3d(shared.b[stage], &params.w, &shared.full[stage],
                            step * Traits::kStepElements, column, task.expert, weights_policy);
        if constexpr (Traits::kIsFp8) {
          dev::bulk_load(shared.a_scales[stage], scales, scale_bytes, &shared.full[stage]);
          scales += params.a_scale_stride;
        }
      }
    }
    num_steps += static_cast<std::uint32_t>(params.num_steps);
    __syncwarp();
  }
}

}  // namespace xstage::moe
