// Shapes of the grouped GEMM kernels that are fixed at compile time, and their shared memory.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/cluster.cuh"
#include "device/hopper.cuh"
#include "device/wgmma.cuh"
#include "moe/gemm_shape.hpp"

namespace xstage::moe {

namespace dev = xstage::device;

inline constexpr int kNumTaskSlots = 4;

// Whether pairs of blocks share the rows that they load. By measurement.
template <GemmType kType>
inline constexpr int kManyRowsClusterBlocks = kType == GemmType::bf16 ? 2 : 1;

// kClusterBlocks 2: pairs of thread blocks share a task, and each loads half of what both need:
// weights or rows, see ExpertOrder.
template <GemmType kType_, GemmOutput kOutput_, bool kFewRows_, int kClusterBlocks_>
struct GemmTraits {
  static constexpr GemmType kType = kType_;
  static constexpr GemmOutput kOutput = kOutput_;
  static constexpr bool kFewRows = kFewRows_;
  static constexpr int kClusterBlocks = kClusterBlocks_;
  static constexpr bool kIsFp8 = kType == GemmType::fp8;
  static constexpr bool kIsSwiglu = kOutput == GemmOutput::swiglu;
  using Element = std::conditional_t<kIsFp8, __nv_fp8_e4m3, __nv_bfloat16>;

  static constexpr int kTileRows = kFewRows ? kMaxFewRows : 2 * kBlockRows;
  static constexpr int kStepElements = step_elements(kType);
  static constexpr int kInstructionsPerStep = 4;  // of 32 bytes along K
  // Few rows: 128 columns at a time over all of K, so that more of each weight row is under way at
  // once and the last tasks are short. SwiGLU needs 256 columns for 128 of its output.
  static constexpr int kTaskColumns = kFewRows && !kIsSwiglu ? 128 : kTileColumns;
  static constexpr int kNumPasses = kFewRows && kIsSwiglu ? 2 : 1;
  static constexpr int kNumStages = kFewRows ? 8 : 4;
  // Rows of one load of A.
  static constexpr int kLoadRows = kFewRows ? 16 : kBlockRows / kClusterBlocks;
  static constexpr std::uint32_t kABytes = kTileRows * kStepBytes;
  // Weight rows of one load, and of a stage.
  static constexpr int kLoadColumns = kFewRows ? 64 : kTileColumns / kClusterBlocks;
  static constexpr int kStageColumns = kTaskColumns / kNumPasses;
  static constexpr std::uint32_t kBBytes = kStageColumns * kStepBytes;
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
  // Where a warpgroup (many rows: each of its warps, on its own) hands results to the copy engine.
  static constexpr std::uint32_t kOutBytes = kFewRows ? 8192 : 16384;

  static_assert(kClusterBlocks == 1 || (kClusterBlocks == 2 && !kFewRows));
};

// Rows of a and b are 128 bytes with the 128-byte swizzle: 16-byte unit u of row r lies at
// u ^ (r % 8).
template <class Traits>
struct alignas(1024) GemmShared {
  alignas(1024) char a[Traits::kNumStages][Traits::kABytes];
  alignas(1024) char b[Traits::kNumStages][Traits::kBBytes];
  alignas(1024) char out[kNumGroups][Traits::kOutBytes];
  // Of fp8 alone: scales of the rows at each step; maxima that warpgroups exchange.
  float a_scales[Traits::kNumStages][Traits::kIsFp8 ? Traits::kTileRows : 4];
  float row_max[Traits::kIsFp8 && Traits::kIsSwiglu ? (Traits::kFewRows ? 8 : 2) : 1][kBlockRows];
  // Tasks, from the scheduler to the other roles.
  alignas(16) uint4 tasks[kNumTaskSlots];
  // Full: bytes have landed. Empty: all readers are done, of all blocks of the cluster.
  std::uint64_t full[Traits::kNumStages];
  std::uint64_t empty[Traits::kNumStages];
  std::uint64_t task_full[kNumTaskSlots];
  std::uint64_t task_empty[kNumTaskSlots];
};

template <class Traits>
inline constexpr std::size_t kGemmSharedBytes = sizeof(GemmShared<Traits>);

// What one launch is given.
struct GemmParams {
  CUtensorMap a;    // [row, element], boxes of kLoadRows rows
  CUtensorMap w;    // [expert, row, element], boxes of kLoadColumns rows
  CUtensorMap out;  // [row, element], boxes of 16 rows x 128 bytes (64 for e4m3)
  const float* a_scales;
  const float* w_scales;
  float* out_scales;
  const float* row_weights;
  const std::int32_t* first_row;
  const std::int32_t* num_rows;
  std::int64_t a_scale_stride;
  std::int64_t out_scale_stride;
  std::int32_t num_experts;
  std::int32_t n;
  std::int32_t num_steps;          // along K
  std::int32_t num_column_tiles;   // of kTaskColumns
  std::int32_t num_scale_columns;  // 128-row blocks of a weight matrix (swiglu: of its gate half)
  float clamp;
  // Counters, 0 before and after a launch.
  std::uint32_t* num_taken;
  std::uint32_t* num_done;
};

}  // namespace xstage::moe
