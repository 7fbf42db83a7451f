// The push kernel: strided rows out of this GPU's memory into their owners' buffers.
//
// A mover is one warp. Tasks (PushPlan) are dealt out round robin in the plan's order, so that all
// movers store to the same peer at a time, the next one to that of everybody else, and to this GPU
// last. Bulk movers keep a ring of stages in shared memory: the copy engine fills them ahead and
// empties them; nobody's registers hold a row. Register movers load and store 16 bytes a lane.
#pragma once

#include <cstdint>

#include "attention/push_tasks.hpp"
#include "device/wait.cuh"

namespace xstage::attention {

namespace dev = xstage::device;

inline constexpr int kBulkMovers = 4;       // warps a CTA
inline constexpr int kRegisterMovers = 16;  // warps a CTA
inline constexpr int kPushStages = 4;       // of a bulk mover
inline constexpr int kPushLead = 2;         // tasks whose loads run ahead of their stores
inline constexpr std::uint32_t kPushTag = static_cast<std::uint32_t>(WaitTag::flag);

struct PushFlags {
  WaitContext wait;
  std::uint32_t* epoch;
  std::uint32_t* last_use;
  std::uint32_t* counter;
  std::int32_t num_owners;
};

template <int kMaxParts_, int kMaxOwners_>
struct PushParams {
  static constexpr int kMaxParts = kMaxParts_;
  static constexpr int kMaxOwners = kMaxOwners_;
  PushPart parts[kMaxParts];
  std::uint32_t* arrived[kMaxOwners];
  const std::uint32_t* released[kMaxOwners];
  PushFlags flags;
  std::int32_t num_parts;
  std::int32_t num_tasks;
};

// Before the first store of a call: every owner has released the destinations. All lanes call.
template <class Params>
__device__ inline void wait_for_release(const Params& params) {
  if (params.flags.epoch == nullptr) return;
  const std::uint32_t last_use = *params.flags.last_use;
  for (int owner = static_cast<int>(threadIdx.x % 32); owner < params.flags.num_owners;
       owner += 32) {
    const std::uint32_t* released = params.released[owner];
    if (released != nullptr) {
      (void)dev::wait_flag(params.flags.wait, released, last_use, owner, kPushTag);
    }
  }
  __syncwarp();
  dev::fence_async_global();
}

// All rows of the call are visible to whoever calls: the owners are told, the call has ended.
template <class Params>
__device__ inline void publish_rows(const Params& params) {
  const std::uint32_t epoch = *params.flags.epoch + 1;
  for (int owner = static_cast<int>(threadIdx.x % 32); owner < params.flags.num_owners;
       owner += 32) {
    if (params.arrived[owner] != nullptr) dev::store_release_system(params.arrived[owner], epoch);
  }
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    *params.flags.last_use = epoch;
    *params.flags.epoch = epoch;
  }
}

// A mover's last act. Each lane has made its own stores visible; the last mover of all publishes.
template <class Params>
__device__ inline void end_mover(const Params& params, std::uint32_t num_movers) {
  dev::fence_system();
  if (params.flags.epoch == nullptr) return;
  __syncwarp();
  std::uint32_t before = 0;
  if (threadIdx.x % 32 == 0) before = dev::add_acq_rel_gpu(params.flags.counter, 1);
  before = __shfl_sync(0xffffffffu, before, 0);
  if (before != num_movers - 1) return;
  if (threadIdx.x % 32 == 0) *params.flags.counter = 0;
  publish_rows(params);
}

struct PushShared {
  alignas(128) char stage[kBulkMovers][kPushStages][kPushTaskBytes];
  std::uint64_t full[kBulkMovers][kPushStages];
};

// Rows that follow each other without gaps are one copy, otherwise each lane takes rows.
__device__ inline void load_task(const PushTask& task, char* stage, std::uint64_t* full) {
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t bytes = static_cast<std::uint32_t>(task.num_rows) * task.unit_bytes;
  if (lane == 0) dev::mbarrier_arrive_expect_bytes(full, bytes);
  __syncwarp();
  if (task.in_one_move && task.part->source_row == task.unit_bytes) {
    if (lane == 0) {
      dev::bulk_load(stage, task.source + task.from * task.part->source_row, bytes, full);
    }
    return;
  }
  for (std::int32_t row = static_cast<std::int32_t>(lane); row < task.num_rows; row += 32) {
    const char* from;
    char* to;
    task.locate(row, from, to);
    dev::bulk_load(stage + row * task.unit_bytes, from, task.unit_bytes, full);
  }
}

__device__ inline void store_task(const PushTask& task, const char* stage) {
  const std::uint32_t lane = threadIdx.x % 32;
  if (task.in_one_move && task.part->destination_row == task.unit_bytes) {
    if (lane == 0) {
      dev::bulk_store(task.destination + task.to * task.part->destination_row, stage,
                      static_cast<std::uint32_t>(task.num_rows) * task.unit_bytes);
    }
  } else {
    for (std::int32_t row = static_cast<std::int32_t>(lane); row < task.num_rows; row += 32) {
      const char* from;
      char* to;
      task.locate(row, from, to);
      dev::bulk_store(to, stage + row * task.unit_bytes, task.unit_bytes);
    }
  }
  dev::bulk_commit();  // of every lane, so that all count alike
}

template <class Params>
__global__ void __launch_bounds__(kBulkMovers * 32, 1)
    push_bulk_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) char shared_bytes[];
  auto& shared = *reinterpret_cast<PushShared*>(shared_bytes);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto& stages = shared.stage[warp];
  std::uint64_t* full = shared.full[warp];
  if (threadIdx.x % 32 == 0) {
    for (int i = 0; i < kPushStages; ++i) dev::mbarrier_init(&full[i], 1);
    dev::mbarrier_init_fence();
  }
  __syncwarp();
  const int num_movers = static_cast<int>(gridDim.x) * kBulkMovers;
  const int first = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  const int num_mine =
      first < params.num_tasks ? (params.num_tasks - 1 - first) / num_movers + 1 : 0;
  PushTasks loads(params.parts, params.num_parts);
  PushTasks stores(params.parts, params.num_parts);
  for (int i = 0; i < num_mine + kPushLead; ++i) {
    if (i < num_mine) {
      // The stage's last user is kPushStages tasks back; newer stores may still be read.
      dev::bulk_wait_read<kPushStages - 1 - kPushLead>();
      __syncwarp();
      const int stage = i % kPushStages;
      load_task(loads.at(first + i * num_movers), shared.stage[warp][stage], &full[stage]);
    }
    if (i == kPushLead) wait_for_release(params);
    const int idx = i - kPushLead;
    if (idx < 0) continue;
    const int stage = idx % kPushStages;
    while (!dev::mbarrier_try_wait(&full[stage], idx / kPushStages & 1)) {
    }
    store_task(stores.at(first + idx * num_movers), stages[stage]);
  }
  dev::bulk_wait_complete<0>();
  end_mover(params, static_cast<std::uint32_t>(num_movers));
}

template <class Params>
__global__ void __launch_bounds__(kRegisterMovers * 32, 1)
    push_register_kernel(const __grid_constant__ Params params) {
  constexpr int kUnroll = 4;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::uint32_t lane = threadIdx.x % 32;
  const int num_movers = static_cast<int>(gridDim.x) * kRegisterMovers;
  const int first = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  if (first < params.num_tasks) wait_for_release(params);
  PushTasks tasks(params.parts, params.num_parts);
  for (int idx = first; idx < params.num_tasks; idx += num_movers) {
    const PushTask task = tasks.at(idx);
    const std::uint32_t row_words = task.unit_bytes / 16;
    const std::uint32_t num_words = static_cast<std::uint32_t>(task.num_rows) * row_words;
    for (std::uint32_t word = lane; word < num_words; word += 32 * kUnroll) {
      uint4 values[kUnroll];
      char* to[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const std::uint32_t at = word + 32 * i;
        if (at >= num_words) continue;
        const std::uint32_t row = at / row_words;
        const std::uint32_t offset = (at - row * row_words) * 16;
        const char* from;
        task.locate(static_cast<std::int32_t>(row), from, to[i]);
        values[i] = *reinterpret_cast<const uint4*>(from + offset);
        to[i] += offset;
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        if (word + 32 * i < num_words) dev::store_global(to[i], values[i]);
      }
    }
  }
  end_mover(params, static_cast<std::uint32_t>(num_movers));
}

// Around copies that are no kernel of ours: one warp.
template <class Params>
__global__ void wait_for_release_kernel(const __grid_constant__ Params params) {
  wait_for_release(params);
}
template <class Params>
__global__ void publish_rows_kernel(const __grid_constant__ Params params) {
  dev::fence_system();
  publish_rows(params);
}

static __global__ void wait_for_rows_kernel(WaitContext wait, const std::uint32_t* epoch,
                                            const std::uint32_t* arrived, int num_ranks) {
  const std::uint32_t expected = *epoch;
  for (int rank = static_cast<int>(threadIdx.x); rank < num_ranks; rank += 32) {
    (void)dev::wait_flag(wait, arrived + rank, expected, rank, kPushTag);
  }
}

}  // namespace xstage::attention
