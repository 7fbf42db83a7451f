// Sizes of the attention forward kernel that host and device share. No CUDA header.
#pragma once

#include <algorithm>
#include <cstdint>

namespace xstage::attention {

inline constexpr int kGroupRows = 64;  // query rows of a consumer warpgroup
inline constexpr int kNumGroups = 2;   // consumer warpgroups
inline constexpr int kTileRows = kGroupRows * kNumGroups;
inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kNumThreads = kWarpgroupThreads * (1 + kNumGroups);

// Key blocks as large as registers (O 64 + S block/2 + P block/4 a thread at D = 128) and shared
// memory allow with an output buffer of its own for every consumer warpgroup.
constexpr int block_keys(int head_dim, bool causal) {
  if (causal) return 128;
  return head_dim == 128 ? 160 : 192;
}

// KV heads whose K and V fit 32 MB of the L2 cache together; causal tiles are walked in such
// sections.
constexpr std::int64_t kv_heads_in_cache(std::int64_t num_keys, std::int64_t head_dim) {
  const std::int64_t bytes = std::max<std::int64_t>(1, num_keys * head_dim * 4);
  return std::max<std::int64_t>(1, (std::int64_t{32} << 20) / bytes);
}

}  // namespace xstage::attention
