// The route kernel: which row of which pool each slot of each token goes to. One CTA sorts this
// rank's entries by expert, tells all ranks its counts, meets them and numbers all rows. Nothing in
// it depends on the order in which threads run, so neither do the rows.
#pragma once

#include <cstdint>

#include "device/flags.cuh"
#include "device/ptx.cuh"
#include "device/rank_barrier.cuh"
#include "moe/layout.hpp"
#include "xstage/peer_table.hpp"

namespace xstage::moe {

inline constexpr std::uint32_t kRouteThreads = 1024;
inline constexpr std::uint32_t kRouteWarps = kRouteThreads / 32;
static_assert(kMaxExperts <= static_cast<int>(kRouteThreads));

struct RouteParams {
  PeerTable table;
  WaitContext wait;
  Geometry geometry;
  PeerLayout layout;
  const void* topk_ids;
  bool ids_are_64_bit;
  std::int32_t num_tokens;
  std::uint32_t agreement;
  RouteTables* tables;
  BadInputNote* note;  // pinned host memory
};

// Dynamic shared memory: a counter per warp and expert.
[[nodiscard]] constexpr std::size_t route_shared_bytes(std::int32_t num_experts) noexcept {
  return std::size_t{4} * kRouteWarps * static_cast<std::size_t>(num_experts);
}

__device__ inline void leave_note(const RouteParams& p, BadInput what, std::int64_t value,
                                  std::int32_t peer, std::uint32_t entry) {
  if (atomicExch(&p.tables->bad_claimed, 1u) != 0) return;
  volatile BadInputNote* note = p.note;
  note->value = value;
  note->peer = peer;
  note->entry = entry;
  device::fence_system();
  note->what = static_cast<std::uint32_t>(what);
}

// -1: the slot is empty.
__device__ inline std::int32_t load_expert(const RouteParams& p, std::uint32_t entry) {
  const std::int64_t id = p.ids_are_64_bit ? static_cast<const std::int64_t*>(p.topk_ids)[entry]
                                           : static_cast<const std::int32_t*>(p.topk_ids)[entry];
  if (id == -1) return -1;
  if (id >= 0 && id < p.geometry.experts.num_experts) return static_cast<std::int32_t>(id);
  leave_note(p, BadInput::expert_id, id, -1, entry);
  return -1;
}

// Counts the entries [begin, end) of one warp in its own counters, 32 at a time and in order;
// visit(entry, expert, ordinal) sees the counter before each.
template <typename Visit>
__device__ inline void count_entries(const RouteParams& p, std::uint32_t begin, std::uint32_t end,
                                     std::uint32_t* counters, Visit visit) {
  constexpr int kAhead = 4;  // loads in flight
  const std::uint32_t lane = threadIdx.x % 32;
  for (std::uint32_t base = begin; base < end; base += 32 * kAhead) {
    std::int32_t experts[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::uint32_t entry = base + 32 * i + lane;
      experts[i] = entry < end ? load_expert(p, entry) : -1;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int32_t expert = experts[i];
      const std::uint32_t same = __match_any_sync(0xffffffffu, expert);
      const auto rank = static_cast<std::uint32_t>(__popc(same & ((1u << lane) - 1)));
      const std::uint32_t before = expert >= 0 ? counters[expert] : 0;
      __syncwarp();
      if (expert >= 0 && rank == 0) counters[expert] = before + __popc(same);
      __syncwarp();
      const std::uint32_t entry = base + 32 * i + lane;
      if (entry < end) visit(entry, expert, before + rank);
    }
  }
}

// Sorts this rank's entries: writes them with their ordinals where peers read them. Returns to
// thread e the number of entries of expert e.
__device__ inline std::uint32_t sort_entries(const RouteParams& p, std::uint32_t* counters) {
  const auto num_experts = static_cast<std::uint32_t>(p.geometry.experts.num_experts);
  const std::uint32_t num_entries = static_cast<std::uint32_t>(p.num_tokens * p.geometry.top_k);
  const std::uint32_t run = (num_entries + kRouteThreads - 1) / kRouteThreads * 32;
  const std::uint32_t warp = threadIdx.x / 32;
  const std::uint32_t begin = min(warp * run, num_entries);
  const std::uint32_t end = min(begin + run, num_entries);
  std::uint32_t* mine = counters + warp * num_experts;

  for (std::uint32_t i = threadIdx.x; i < kRouteWarps * num_experts; i += kRouteThreads) {
    counters[i] = 0;
  }
  __syncthreads();
  count_entries(p, begin, end, mine, [](std::uint32_t, std::int32_t, std::uint32_t) {});
  __syncthreads();
  std::uint32_t total = 0;
  if (threadIdx.x < num_experts) {
#pragma unroll 8
    for (std::uint32_t w = 0; w < kRouteWarps; ++w) {
      std::uint32_t& counter = counters[w * num_experts + threadIdx.x];
      const std::uint32_t count = counter;
      counter = total;
      total += count;
    }
  }
  __syncthreads();
  auto* entries = device::at_rank<std::uint32_t>(p.table, p.table.rank, p.layout.entries);
  count_entries(
      p, begin, end, mine, [&](std::uint32_t entry, std::int32_t expert, std::uint32_t ordinal) {
        entries[entry] =
            expert < 0 ? kEmptyEntry : pack_entry(static_cast<std::uint32_t>(expert), ordinal);
      });
  return total;
}

__device__ inline void tell_counts(const RouteParams& p, std::uint32_t total) {
  const auto num_experts = static_cast<std::uint32_t>(p.geometry.experts.num_experts);
  const auto rank = static_cast<std::uint32_t>(p.table.rank);
  if (threadIdx.x < num_experts) {
    const std::uint64_t at = p.layout.counts + 4ull * (rank * num_experts + threadIdx.x);
    for (int peer = 0; peer < p.table.num_ranks; ++peer) {
      device::store_global(device::at_rank<void>(p.table, peer, at), total);
    }
  }
  if (static_cast<int>(threadIdx.x) < p.table.num_ranks) {
    const std::uint64_t at = p.layout.headers + sizeof(CallHeader) * rank;
    device::store_global(device::at_rank<void>(p.table, static_cast<int>(threadIdx.x), at),
                         make_uint4(static_cast<std::uint32_t>(p.num_tokens), p.agreement, 0u, 0u));
  }
}

// Sum of `value` over the threads before, in order. All threads of the CTA call it.
__device__ inline std::int32_t exclusive_scan(std::int32_t value, std::int32_t* warp_sums) {
  const std::uint32_t lane = threadIdx.x % 32;
  std::int32_t sum = value;
#pragma unroll
  for (std::uint32_t step = 1; step < 32; step *= 2) {
    const std::int32_t below = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += below;
  }
  if (lane == 31) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    std::int32_t warp_sum = warp_sums[threadIdx.x];
#pragma unroll
    for (std::uint32_t step = 1; step < 32; step *= 2) {
      const std::int32_t below = __shfl_up_sync(0xffffffffu, warp_sum, step);
      if (lane >= step) warp_sum += below;
    }
    warp_sums[threadIdx.x] = warp_sum;
  }
  __syncthreads();
  const std::int32_t before = threadIdx.x < 32 ? 0 : warp_sums[threadIdx.x / 32 - 1];
  return before + sum - value;
}

// Whether all ranks speak of the same layer; then their tokens are in the tables. False on every
// thread if not.
__device__ inline bool read_headers(const RouteParams& p, bool alive) {
  bool fine = alive;
  std::int32_t num_tokens = 0;
  const auto rank = static_cast<int>(threadIdx.x);
  if (alive && rank < p.table.num_ranks) {
    const auto* header =
        device::at_rank<CallHeader>(p.table, p.table.rank, p.layout.headers) + rank;
    const std::uint32_t agreement = device::load_relaxed_system(&header->agreement);
    num_tokens = static_cast<std::int32_t>(device::load_relaxed_system(&header->num_tokens));
    if (agreement != p.agreement) {
      leave_note(p, BadInput::agreement, agreement, rank, 0);
      fine = false;
    } else if (num_tokens < 0 || num_tokens > p.geometry.max_tokens) {
      leave_note(p, BadInput::num_tokens, num_tokens, rank, 0);
      fine = false;
    }
  }
  fine = __syncthreads_and(fine) != 0;
  if (rank < p.table.num_ranks) p.tables->num_tokens[rank] = fine ? num_tokens : 0;
  return fine;
}

// place_rows() of the layout by all threads, one expert each.
__device__ inline void number_rows(const RouteParams& p, bool fine, std::int32_t* starts,
                                   std::int32_t* warp_sums) {
  const Partition& experts = p.geometry.experts;
  const auto expert = static_cast<std::int32_t>(threadIdx.x);
  const bool is_expert = expert < experts.num_experts;
  const std::uint32_t* counts =
      device::at_rank<std::uint32_t>(p.table, p.table.rank, p.layout.counts);
  const auto count = [&](int source) {
    return static_cast<std::int32_t>(
        device::load_relaxed_system(counts + source * experts.num_experts + expert));
  };
  std::int32_t total = 0;
  std::int32_t before_me = 0;
  if (is_expert && fine) {
    for (int source = 0; source < experts.num_ranks; ++source) {
      if (source == p.table.rank) before_me = total;
      total += count(source);
    }
  }
  const std::int32_t start = exclusive_scan(is_expert ? align_rows(total) : 0, warp_sums);
  starts[threadIdx.x] = start;
  if (threadIdx.x == kRouteThreads - 1) {
    starts[kRouteThreads] = start + (is_expert ? align_rows(total) : 0);
  }
  __syncthreads();
  const int me = p.table.rank;
  if (is_expert) {
    const int owner = experts.owner(expert);
    const std::int32_t first = start - starts[experts.first(owner)];
    p.tables->my_row[expert] = first + before_me;
    if (owner == me) {
      const std::int32_t local = expert - experts.first(me);
      p.tables->first_row[local] = first;
      p.tables->num_rows[local] = total;
      std::int32_t at = first;
      for (int source = 0; source < experts.num_ranks; ++source) {
        p.tables->rank_row[source * experts.max_count() + local] = at;
        if (fine) at += count(source);
      }
    }
  }
  if (expert < p.geometry.num_shared) {
    const std::int32_t num_tokens = fine ? p.num_tokens : 0;
    const std::int32_t local = experts.count(me) + expert;
    p.tables->first_row[local] =
        starts[experts.first(me + 1)] - starts[experts.first(me)] + expert * align_rows(num_tokens);
    p.tables->num_rows[local] = num_tokens;
  }
}

// One CTA. When it has ended, all ranks' x, entries and counts of this call are there, and nobody
// reads or writes those of the call before.
static __global__ void __launch_bounds__(kRouteThreads)
    route_kernel(const __grid_constant__ RouteParams p) {
  extern __shared__ std::uint32_t counters[];
  __shared__ std::int32_t starts[kRouteThreads + 1];
  __shared__ std::int32_t warp_sums[32];
  const std::uint32_t total = sort_entries(p, counters);
  tell_counts(p, total);
  const bool alive = device::rank_barrier_cta(p.wait, p.table);
  const bool fine = read_headers(p, alive);
  number_rows(p, fine, starts, warp_sums);
}

// Everything that all ranks stored in earlier kernels is visible to later ones.
static __global__ void __launch_bounds__(32)
    meet_kernel(const __grid_constant__ PeerTable table, WaitContext wait) {
  (void)device::rank_barrier_cta(wait, table);
}

}  // namespace xstage::moe
