// Combine: the experts' rows come back to their tokens and are summed in the order of the slots, in
// float32, each times its weight; the sum is rounded once. Whoever moves the rows, the sum is the
// same to the last bit.
//
//   pull   sum_kernel reads the rows from the pools of the experts' owners
//   push   scatter_kernel, at the experts' rank, stores each row into its slot at the token's rank;
//          sum_kernel then reads slots
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "device/flags.cuh"
#include "device/outbox.cuh"
#include "device/ptx.cuh"
#include "device/wait.cuh"
#include "moe/layout.hpp"
#include "xstage/peer_table.hpp"
#include "xstage/send.hpp"

namespace xstage::moe {

// --- the sum -------------------------------------------------------------------------------------

struct SumParams {
  PeerTable table;
  Geometry geometry;
  PeerLayout layout;
  const RouteTables* tables;
  bool reads_slots;  // combine by push
  std::int32_t num_tokens;
  const float* topk_weights;
  char* y;
};

// Where the row of this lane's slot lies, null if the slot is empty; and its weight.
struct SlotRow {
  const char* row = nullptr;
  float weight = 0.f;
};

__device__ inline SlotRow find_slot(const SumParams& p, std::int32_t token, std::int32_t lane) {
  const Geometry& g = p.geometry;
  SlotRow slot;
  if (lane >= g.num_slots()) return slot;
  const int me = p.table.rank;
  int owner = me;
  std::uint64_t row = 0;
  slot.weight = 1.f;
  if (lane < g.top_k) {
    const std::uint32_t at = static_cast<std::uint32_t>(token * g.top_k + lane);
    const auto* entries = device::at_rank<std::uint32_t>(p.table, me, p.layout.entries);
    const std::uint32_t entry = entries[at];
    if (entry == kEmptyEntry) return slot;
    slot.weight = p.topk_weights[at];
    const std::int32_t expert = entry_expert(entry);
    owner = g.experts.owner(expert);
    row = static_cast<std::uint64_t>(p.tables->my_row[expert] + entry_ordinal(entry));
  } else {
    const std::int32_t local = g.experts.count(me) + lane - g.top_k;
    row = static_cast<std::uint64_t>(p.tables->first_row[local] + token);
  }
  if (p.reads_slots) {
    owner = me;
    row = static_cast<std::uint64_t>(token) * g.num_slots() + lane;
  }
  slot.row = device::at_rank<char>(
      p.table, owner,
      (p.reads_slots ? p.layout.slots : p.layout.outputs) + row * g.output_row_bytes());
  return slot;
}

__device__ inline void add_weighted(float (&sum)[8], uint4 values, float weight) {
  const std::uint32_t words[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[2 * i] = fmaf(weight, __uint_as_float(words[i] << 16), sum[2 * i]);
    sum[2 * i + 1] = fmaf(weight, __uint_as_float(words[i] & 0xffff0000u), sum[2 * i + 1]);
  }
}

__device__ inline uint4 round_to_bf16(const float (&sum)[8]) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
    words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

inline constexpr std::uint32_t kSumThreads = 256;
inline constexpr std::int32_t kSumColumns = 32 * 8;  // of a warp at a time
inline constexpr int kSlotsInFlight = 8;             // loads of a lane before the first addition

// A warp sums 256 columns of a token at a time; its lanes look up one slot each.
static __global__ void __launch_bounds__(kSumThreads)
    sum_kernel(const __grid_constant__ SumParams p) {
  const Geometry& g = p.geometry;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const std::uint32_t num_warps = gridDim.x * (kSumThreads / 32);
  const auto parts = static_cast<std::uint32_t>((g.hidden + kSumColumns - 1) / kSumColumns);
  const std::uint32_t num_items = static_cast<std::uint32_t>(p.num_tokens) * parts;
  for (std::uint32_t item = blockIdx.x * (kSumThreads / 32) + threadIdx.x / 32; item < num_items;
       item += num_warps) {
    const auto token = static_cast<std::int32_t>(item / parts);
    const std::int32_t column = static_cast<std::int32_t>(item % parts) * kSumColumns + lane * 8;
    const SlotRow mine = find_slot(p, token, lane);
    const bool is_inside = column < g.hidden;
    float sum[8] = {};
    for (std::int32_t first = 0; first < g.num_slots(); first += kSlotsInFlight) {
      uint4 values[kSlotsInFlight];
      float weights[kSlotsInFlight];
      bool is_full[kSlotsInFlight];
#pragma unroll
      for (int i = 0; i < kSlotsInFlight; ++i) {
        const auto address = __shfl_sync(0xffffffffu, reinterpret_cast<std::uintptr_t>(mine.row),
                                         first + i);  // beyond the last lane: an empty slot's lane
        weights[i] = __shfl_sync(0xffffffffu, mine.weight, first + i);
        is_full[i] = address != 0 && first + i < g.num_slots();
        if (is_full[i] && is_inside) {
          values[i] = *reinterpret_cast<const uint4*>(address + 2ull * column);
        }
      }
#pragma unroll
      for (int i = 0; i < kSlotsInFlight; ++i) {
        if (is_full[i] && is_inside) add_weighted(sum, values[i], weights[i]);
      }
    }
    if (is_inside) {
      device::store_global(p.y + token * g.output_row_bytes() + 2ull * column, round_to_bf16(sum));
    }
  }
}

// --- the pushing side ----------------------------------------------------------------------------

struct ScatterParams {
  PeerTable table;
  WaitContext wait;
  Geometry geometry;
  PeerLayout layout;
  const RouteTables* tables;
  const char* outputs;  // bf16 [pool_rows][hidden]
  const std::uint32_t* origins;
  std::int32_t num_local;  // experts, shared ones included
  Send send;
};

using ScatterOutbox = device::Outbox<device::BulkStore<>, 2>;
inline constexpr std::uint32_t kMaxScatterWarps = 16;

struct ScatterStorage {
  std::uint64_t barriers[kMaxScatterWarps][2];
  ScatterOutbox::Storage parcels[kMaxScatterWarps];
};
inline constexpr std::size_t kScatterStorageBytes = (sizeof(ScatterStorage) + 127) / 128 * 128;

[[nodiscard]] constexpr std::size_t scatter_shared_bytes(std::uint32_t num_warps,
                                                         std::size_t row_bytes) noexcept {
  return kScatterStorageBytes + num_warps * 2 * row_bytes;
}

// One thread a warp owns an outbox: it loads rows of this rank's outputs into its slots and sends
// them to the tokens' ranks.
static __global__ void __launch_bounds__(kMaxScatterWarps * 32)
    scatter_kernel(const __grid_constant__ ScatterParams p) {
  extern __shared__ __align__(128) char shared[];
  if (threadIdx.x % 32 != 0) return;
  auto& storage = *reinterpret_cast<ScatterStorage*>(shared);
  const std::uint32_t warp = threadIdx.x / 32;
  const std::uint32_t num_warps = blockDim.x / 32;
  const auto row_bytes = static_cast<std::uint32_t>(p.geometry.output_row_bytes());
  char* rows = shared + kScatterStorageBytes + static_cast<std::size_t>(warp) * 2 * row_bytes;
  std::uint64_t* barriers = storage.barriers[warp];
  for (int i = 0; i < 2; ++i) device::mbarrier_init(&barriers[i], 1);
  device::mbarrier_init_fence();
  device::fence_async_global();
  ScatterOutbox outbox(device::Role{0, 1, 0}, p.send, storage.parcels[warp]);

  const std::uint32_t num_senders = gridDim.x * num_warps;
  const std::uint32_t sender = warp * gridDim.x + blockIdx.x;
  std::uint32_t num_rows_before = 0;
  std::uint32_t num_sent = 0;
  for (std::int32_t local = 0; local < p.num_local; ++local) {
    const std::int32_t first = p.tables->first_row[local];
    const auto num_rows = static_cast<std::uint32_t>(p.tables->num_rows[local]);
    // Rows are dealt in turn over all experts.
    std::uint32_t row = (sender + num_senders - num_rows_before % num_senders) % num_senders;
    for (; row < num_rows; row += num_senders) {
      const std::uint64_t at = static_cast<std::uint64_t>(first) + row;
      const std::uint32_t origin = p.origins[at];
      outbox.acquire();
      const std::uint32_t slot = num_sent % 2;
      device::mbarrier_arrive_expect_bytes(&barriers[slot], row_bytes);
      device::bulk_load(rows + slot * row_bytes, p.outputs + at * row_bytes, row_bytes,
                        &barriers[slot]);
      (void)device::wait_barrier(p.wait, &barriers[slot], num_sent / 2 & 1u);
      const std::uint64_t to = origin & ((1u << kSlotBits) - 1);
      outbox.post(rows + slot * row_bytes, row_bytes,
                  {device::at_rank<char>(p.table, static_cast<int>(origin >> kSlotBits),
                                         p.layout.slots + to * row_bytes)});
      outbox.drain();
      ++num_sent;
    }
    num_rows_before += num_rows;
  }
  // The next kernel's release covers what is complete here.
  outbox.wait_complete();
}

}  // namespace xstage::moe
