// Sizes of the grouped GEMM kernels that host and device share. No CUDA header.
#pragma once

#include <cstdint>

#include "moe/grouped_gemm.hpp"

namespace xstage::moe {

inline constexpr int kNumGroups = 2;  // consumer warpgroups
inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kNumThreads = kWarpgroupThreads * (1 + kNumGroups);

inline constexpr int kBlockRows = 64;     // rows of A that a warpgroup multiplies at once
inline constexpr int kTileColumns = 256;  // weight rows of a tile
inline constexpr int kStepBytes = 128;    // of a row of A or W: one step along K
inline constexpr int kMaxFewRows = 64;    // rows of a tile where weights are the 64-row operand

inline constexpr int kStoreRows = 16;  // rows of one store: those of a warp

constexpr int element_bytes(GemmType type) {
  return type == GemmType::fp8 ? 1 : 2;
}
constexpr int step_elements(GemmType type) {
  return kStepBytes / element_bytes(type);
}
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace xstage::moe
