// Dispatch: rows of x travel from the tokens' ranks into the pools of the experts' owners. A warp
// takes a token at a time: the copy engine loads its row into shared memory and stores it into
// every row of a pool that wants it, one lane a slot of the token.
//
//   pull   at the experts' rank: tokens of all ranks, rows of its own pool
//   push   at the tokens' rank: its own tokens, rows of all pools
#pragma once

#include <cstdint>

#include "device/flags.cuh"
#include "device/ptx.cuh"
#include "device/wait.cuh"
#include "moe/layout.hpp"
#include "xstage/peer_table.hpp"

namespace xstage::moe {

inline constexpr std::uint32_t kRowBuffers = 3;  // of a warp: one loading, one or two being stored
inline constexpr std::uint32_t kMaxCopyWarps = 16;

struct DispatchParams {
  PeerTable table;
  WaitContext wait;
  Geometry geometry;
  PeerLayout layout;
  const RouteTables* tables;
  char* pool;              // pull: rows of my pool
  float* pool_scales;      // pull: [num_scales][pool_rows]
  std::uint32_t* origins;  // pull: null if nobody asks
  bool wants_origins;
  bool send_once;
};

// A warp's buffers; the barriers of all warps come first.
[[nodiscard]] constexpr std::size_t dispatch_shared_bytes(std::uint32_t num_warps,
                                                          std::size_t x_pitch) noexcept {
  return kMaxCopyWarps * kRowBuffers * 8 + 128 + num_warps * kRowBuffers * x_pitch;
}

// What a lane knows of its slot of the token.
struct LaneSlot {
  std::int32_t row = -1;  // in the pool of `owner`; -1: nothing to do
  std::int32_t owner = 0;
  std::uint32_t origin = 0;
};

// Tokens one after the other: of all ranks in turn, beginning with the next one, so that not
// everybody asks the same rank (pull), or this rank's own (push).
template <bool kPush>
struct TokenWalk {
  const DispatchParams& p;
  std::uint32_t num_units;

  __device__ explicit TokenWalk(const DispatchParams& params) : p(params) {
    std::int32_t most = 0;
    if (kPush) {
      most = p.tables->num_tokens[p.table.rank];
    } else {
      for (int rank = 0; rank < p.table.num_ranks; ++rank) {
        most = max(most, p.tables->num_tokens[rank]);
      }
    }
    num_units = static_cast<std::uint32_t>(most * (kPush ? 1 : p.table.num_ranks));
  }
  [[nodiscard]] __device__ int source(std::uint32_t unit) const {
    const auto num_ranks = static_cast<std::uint32_t>(p.table.num_ranks);
    return kPush ? p.table.rank
                 : static_cast<int>((unit + static_cast<std::uint32_t>(p.table.rank) + 1) %
                                    num_ranks);
  }
  [[nodiscard]] __device__ std::int32_t token(std::uint32_t unit) const {
    return static_cast<std::int32_t>(kPush ? unit
                                           : unit / static_cast<std::uint32_t>(p.table.num_ranks));
  }
  // The entry of this lane, or empty. A token that a rank does not have has none.
  [[nodiscard]] __device__ std::uint32_t entry(std::uint32_t unit, std::int32_t lane) const {
    if (unit >= num_units || lane >= p.geometry.num_slots()) return kEmptyEntry;
    const int from = source(unit);
    const std::int32_t t = token(unit);
    if (t >= p.tables->num_tokens[from]) return kEmptyEntry;
    if (lane >= p.geometry.top_k) return static_cast<std::uint32_t>(t);  // a shared expert
    const auto* entries = device::at_rank<std::uint32_t>(p.table, from, p.layout.entries);
    return device::load_relaxed_system(entries + t * p.geometry.top_k + lane);
  }
  [[nodiscard]] __device__ LaneSlot slot(std::uint32_t unit, std::int32_t lane,
                                         std::uint32_t entry) const {
    LaneSlot slot;
    if (entry == kEmptyEntry) return slot;
    const Geometry& g = p.geometry;
    const int me = p.table.rank;
    const int from = source(unit);
    const std::int32_t t = token(unit);
    slot.origin = pack_origin(from, static_cast<std::uint32_t>(t * g.num_slots() + lane));
    slot.owner = me;
    if (lane >= g.top_k) {
      if (from == me) slot.row = p.tables->first_row[g.experts.count(me) + lane - g.top_k] + t;
      return slot;
    }
    const std::int32_t expert = entry_expert(entry);
    const int owner = g.experts.owner(expert);
    if (kPush) {
      slot.owner = owner;
      slot.row = p.tables->my_row[expert] + entry_ordinal(entry);
    } else if (owner == me) {
      slot.row = p.tables->rank_row[from * g.experts.max_count() + expert - g.experts.first(me)] +
                 entry_ordinal(entry);
    }
    return slot;
  }
};

// Stores a row that lies in shared memory where the lanes of `mask` want it.
template <bool kPush>
__device__ inline void store_row(const DispatchParams& p, const LaneSlot& slot, std::uint32_t mask,
                                 const char* row, std::int32_t lane) {
  const Geometry& g = p.geometry;
  const bool is_wanted = (mask >> lane & 1u) != 0;
  if (is_wanted) {
    const auto at = static_cast<std::uint64_t>(slot.row);
    if (kPush) {
      const auto to = [&](std::uint64_t offset, std::uint64_t bytes) {
        return device::at_rank<char>(p.table, slot.owner, offset + at * bytes);
      };
      device::bulk_store(to(p.layout.pool, g.row_bytes), row, g.row_bytes);
      if (g.num_scales > 0) {
        device::bulk_store(to(p.layout.pool_scales, g.scale_bytes()), row + g.row_bytes,
                           g.scale_bytes());
      }
      if (p.wants_origins) device::store_global(to(p.layout.origins, 4), slot.origin);
    } else {
      device::bulk_store(p.pool + at * g.row_bytes, row, g.row_bytes);
      if (p.wants_origins) p.origins[at] = slot.origin;
    }
  }
  device::bulk_commit();
  if (kPush || g.num_scales == 0) return;
  const auto* scales = reinterpret_cast<const float*>(row + g.row_bytes);
  for (std::uint32_t left = mask; left != 0; left &= left - 1) {
    const std::int32_t to = __shfl_sync(0xffffffffu, slot.row, __ffs(left) - 1);
    for (std::int32_t block = lane; block < g.num_scales; block += 32) {
      p.pool_scales[block * g.pool_rows + to] = scales[block];
    }
  }
}

template <bool kPush>
static __global__ void __launch_bounds__(kMaxCopyWarps * 32)
    dispatch_kernel(const __grid_constant__ DispatchParams p) {
  extern __shared__ __align__(128) char shared[];
  const Geometry& g = p.geometry;
  const std::uint32_t warp = threadIdx.x / 32;
  const std::uint32_t num_warps = blockDim.x / 32;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  auto* barriers = reinterpret_cast<std::uint64_t*>(shared) + warp * kRowBuffers;
  char* buffers = shared + kMaxCopyWarps * kRowBuffers * 8 +
                  static_cast<std::size_t>(warp) * kRowBuffers * g.x_pitch;
  if (lane == 0) {
    for (std::uint32_t i = 0; i < kRowBuffers; ++i) device::mbarrier_init(&barriers[i], 1);
    device::mbarrier_init_fence();
    // Peers' and earlier kernels' ordinary stores before the copy engine's loads.
    device::fence_async_global();
  }
  __syncwarp();

  std::uint32_t num_loads = 0;
  LaneSlot loading;                // of the row whose load is under way
  std::uint32_t loading_mask = 0;  // 0: none
  const auto finish = [&] {
    if (loading_mask == 0) return;
    const std::uint32_t idx = num_loads - 1;
    (void)device::wait_barrier(p.wait, &barriers[idx % kRowBuffers], idx / kRowBuffers & 1u);
    store_row<kPush>(p, loading, loading_mask, buffers + idx % kRowBuffers * g.x_pitch, lane);
  };

  const TokenWalk<kPush> walk(p);
  const std::uint32_t stride = gridDim.x * num_warps;
  // Neighbouring tokens go to different SMs: a short call uses all of them.
  std::uint32_t unit = warp * gridDim.x + blockIdx.x;
  std::uint32_t entry = walk.entry(unit, lane);
  for (; unit < walk.num_units; unit += stride) {
    const LaneSlot slot = walk.slot(unit, lane, entry);
    entry = walk.entry(unit + stride, lane);  // a round trip to a peer, hidden behind this row
    const char* row = device::at_rank<char>(
        p.table, walk.source(unit),
        p.layout.x + static_cast<std::uint64_t>(walk.token(unit)) * g.x_pitch);
    std::uint32_t mask = __ballot_sync(0xffffffffu, slot.row >= 0);
    while (mask != 0) {
      const std::uint32_t taken = p.send_once ? mask : mask & (~mask + 1);
      mask &= ~taken;
      // The buffer's last row was stored two groups ago or earlier.
      device::bulk_wait_read<1>();
      __syncwarp();
      const std::uint32_t buffer = num_loads % kRowBuffers;
      if (lane == 0) {
        device::mbarrier_arrive_expect_bytes(&barriers[buffer], g.x_pitch);
        device::bulk_load(buffers + buffer * g.x_pitch, row, g.x_pitch, &barriers[buffer]);
      }
      finish();
      ++num_loads;
      loading = slot;
      loading_mask = taken;
    }
  }
  finish();
  device::bulk_wait_complete<0>();
}

// Scales that arrived by push, row by row, into the order of the GEMM.
struct TransposeParams {
  Geometry geometry;
  const RouteTables* tables;
  const char* row_scales;  // [pool_rows][scale_bytes]
  float* pool_scales;      // [num_scales][pool_rows]
  std::int32_t num_local;  // experts, shared ones included
};

static __global__ void __launch_bounds__(256)
    transpose_scales_kernel(const __grid_constant__ TransposeParams p) {
  const Geometry& g = p.geometry;
  for (std::int32_t local = static_cast<std::int32_t>(blockIdx.x); local < p.num_local;
       local += static_cast<std::int32_t>(gridDim.x)) {
    const std::int32_t first = p.tables->first_row[local];
    const std::int32_t num_values = p.tables->num_rows[local] * g.num_scales;
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < num_values; i += 256) {
      const std::int64_t row = first + i / g.num_scales;
      const std::int32_t block = i % g.num_scales;
      const auto* scales = reinterpret_cast<const float*>(p.row_scales + row * g.scale_bytes());
      p.pool_scales[block * g.pool_rows + row] = scales[block];
    }
  }
}

// x and its scales into the rows that peers read.
struct StageParams {
  Geometry geometry;
  std::int32_t num_tokens;
  const char* x;
  const float* x_scales;
  char* staged;
};

static __global__ void __launch_bounds__(256) stage_kernel(const __grid_constant__ StageParams p) {
  const Geometry& g = p.geometry;
  const std::int32_t row_vectors = g.row_bytes / 16;
  const std::int32_t scale_words = g.scale_bytes() / 4;
  const std::int32_t row_items = row_vectors + scale_words;
  // 64 bits: 65536 rows of 2048 vectors and more.
  const std::int64_t num_items = static_cast<std::int64_t>(p.num_tokens) * row_items;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < num_items; i += stride) {
    const std::int64_t token = i / row_items;
    const auto item = static_cast<std::int32_t>(i - token * row_items);
    char* row = p.staged + token * g.x_pitch;
    if (item < row_vectors) {
      const auto* from = reinterpret_cast<const uint4*>(p.x + token * g.row_bytes);
      device::store_global(row + item * 16, from[item]);
    } else {
      const std::int32_t block = item - row_vectors;
      float* to = reinterpret_cast<float*>(row + g.row_bytes);
      to[block] = block < g.num_scales ? p.x_scales[token * g.num_scales + block] : 0.f;
    }
  }
}

}  // namespace xstage::moe
