// Attention without the attention: the data movement and the rhythm of a fused kernel, so that the
// worth of pacing and of ownership is known before any attention kernel exists. Each SM
//   - streams 40 KB of "keys and values" a step from local memory through two stages (bulk loads),
//   - multiplies on the tensor cores for the length of a step,
//   - after `steps_per_tile` steps hands a 32 KB tile to the outbox, and goes on at once.
// The outbox belongs to a spare warp or to the consumers; how it sends is a run-time `Send`.
#pragma once

#include <cstdint>

#include "device/outbox.cuh"
#include "device/wait.cuh"
#include "probe/burst_kernel.cuh"
#include "probe/tensor_gap.cuh"

namespace xstage::probing {

inline constexpr std::uint32_t kStepBytes = 40 * 1024;
inline constexpr std::uint32_t kTileBytes = 32 * 1024;
inline constexpr int kNumConsumers = 256;
inline constexpr int kMockThreads = kNumConsumers + 64;  // + a loader warp and a sender warp
inline constexpr std::uint32_t kMaxTiles = 64;

enum class Owner : std::uint32_t { spare_warp, consumers, none };

struct MockArgs {
  char* destination;
  std::uint64_t producer_stride_bytes;  // a producer's tiles lie one after another
  const char* source;                   // local memory, kGapSourceBytesPerSm a SM
  std::uint32_t num_tiles;              // of each SM
  std::uint32_t steps_per_tile;
  std::uint32_t rounds_per_step;  // tensor-core rounds: the length of a step
  Send send;
  Owner owner;
  std::uint32_t seed;
  std::uint32_t* num_arrived;
  std::uint64_t* start_times_ns;
  std::uint32_t* tile_cycles;  // [producer][tile]: length of the tile's main loop
  // [producer][4]: cycles of all main loops; from the common start until the last tile was handed
  // over; until every byte had arrived; ns until then.
  std::uint64_t* times;
  device::WaitContext wait;
};

struct MockShared {
  std::uint64_t full[2];    // a stage has been loaded
  std::uint64_t empty[2];   // a stage has been used
  std::uint64_t filled[2];  // a tile slot holds a tile
  std::uint64_t free[2];    // a tile slot may be written
  std::uint32_t tile_cycles[kMaxTiles];
  std::uint64_t main_loop_cycles;
  std::uint64_t handed_over_cycles;
  std::uint64_t sent_cycles;    // by the sender: everything has arrived
  volatile std::uint32_t step;  // main-loop steps done, for a sender that is not a consumer
};

// How long an idle sender sleeps between looks: short against a step of the main loop.
inline constexpr std::uint32_t kSenderNap_ns = 200;

using MockOutbox = device::Outbox<device::BulkStore<>, 2>;

__device__ inline void run_mock_loader(const MockArgs& args, MockShared& shared, char* stages) {
  const char* source = args.source + static_cast<std::uint64_t>(blockIdx.x) * kGapSourceBytesPerSm;
  const std::uint32_t num_steps = args.num_tiles * args.steps_per_tile;
  constexpr std::uint32_t kStepsInSource = kGapSourceBytesPerSm / kStepBytes;
  for (std::uint32_t step = 0; step < num_steps; ++step) {
    const std::uint32_t stage = step % 2;
    if (step >= 2) device::wait_barrier(args.wait, &shared.empty[stage], (step / 2 - 1) % 2);
    device::mbarrier_arrive_expect_bytes(&shared.full[stage], kStepBytes);
    device::bulk_load(stages + stage * kStepBytes, source + step % kStepsInSource * kStepBytes,
                      kStepBytes, &shared.full[stage]);
  }
}

__device__ inline device::LinearDestination mock_destination(const MockArgs& args,
                                                             std::uint32_t tile) {
  return {args.destination + blockIdx.x * args.producer_stride_bytes +
          static_cast<std::uint64_t>(tile) * kTileBytes};
}

// One thread of the spare warp: takes filled slots, sends as the pacer allows. A slot goes back to
// the consumers once its parcel has been sent and read; that is due one whole tile after it was
// posted.
__device__ inline void run_mock_sender(const MockArgs& args, MockShared& shared, char* slots,
                                       MockOutbox::Storage& parcels) {
  const device::Role role{0, 1, 0};
  MockOutbox outbox(role, args.send, parcels);
  std::uint32_t seen_steps = 0;
  for (std::uint32_t tile = 0; tile < args.num_tiles; ++tile) {
    const bool filled = device::wait_until(args.wait, [&] {
      for (const std::uint32_t step = shared.step; seen_steps < step; ++seen_steps) outbox.step();
      if (device::mbarrier_try_wait(&shared.filled[tile % 2], tile / 2 % 2)) return true;
      if (!outbox.pump()) __nanosleep(kSenderNap_ns);  // leave the issue slots to the consumers
      return false;
    });
    if (!filled) break;
    outbox.post(slots + tile % 2 * kTileBytes, kTileBytes, mock_destination(args, tile));
    if (tile + 1 < args.num_tiles && tile >= 1) {
      outbox.acquire();
      device::mbarrier_arrive(&shared.free[(tile + 1) % 2]);
    }
  }
  outbox.drain();
  outbox.make_visible();
  shared.sent_cycles = device::sm_cycles();
}

__device__ inline void write_tile(const MockArgs& args, char* slot, std::uint32_t tile) {
  auto* words = reinterpret_cast<std::uint32_t*>(slot);
  for (std::uint32_t i = threadIdx.x; i < kTileBytes / 4; i += kNumConsumers) {
    words[i] = payload(args.seed, blockIdx.x * kMaxTiles + tile, i);
  }
}

__device__ inline void run_mock_consumers(const MockArgs& args, MockShared& shared, char* stages,
                                          char* slots, MockOutbox::Storage& parcels) {
  const device::Role role{threadIdx.x, kNumConsumers, 1};
  MockOutbox outbox(role, args.send, parcels);
  float sums[4][4] = {};
  std::uint64_t main_loop = 0;
  std::uint32_t step = 0;
  for (std::uint32_t tile = 0; tile < args.num_tiles; ++tile) {
    const std::uint64_t began = device::sm_cycles();
    for (std::uint32_t i = 0; i < args.steps_per_tile; ++i, ++step) {
      device::wait_barrier(args.wait, &shared.full[step % 2], step / 2 % 2);
      multiply_stage(stages + step % 2 * kStepBytes, static_cast<int>(args.rounds_per_step), sums);
      device::mbarrier_arrive(&shared.empty[step % 2]);
      if (threadIdx.x == 0) shared.step = step + 1;
      if (args.owner == Owner::consumers) {
        outbox.step();
        outbox.pump();
      }
    }
    const std::uint64_t ended = device::sm_cycles();
    main_loop += ended - began;
    if (threadIdx.x == 0) shared.tile_cycles[tile] = static_cast<std::uint32_t>(ended - began);
    char* slot = slots + tile % 2 * kTileBytes;
    if (args.owner == Owner::spare_warp && tile >= 2) {
      device::wait_barrier(args.wait, &shared.free[tile % 2], (tile / 2 - 1) % 2);
    }
    if (args.owner == Owner::consumers) outbox.acquire();
    write_tile(args, slot, tile);
    if (args.owner == Owner::spare_warp) {
      device::fence_async_shared();
      device::mbarrier_arrive(&shared.filled[tile % 2]);
    } else if (args.owner == Owner::consumers) {
      outbox.post(slot, kTileBytes, mock_destination(args, tile));
      outbox.pump();
    }
  }
  if (threadIdx.x == 0) shared.handed_over_cycles = device::sm_cycles();
  if (args.owner == Owner::consumers) {
    outbox.drain();
    outbox.make_visible();
    if (threadIdx.x == 0) shared.sent_cycles = device::sm_cycles();
  }
  if (sums[0][0] + sums[1][1] + sums[2][2] + sums[3][3] == -1.0e30f) __nanosleep(1);
  if (threadIdx.x == 0) shared.main_loop_cycles = main_loop;
}

__global__ void __launch_bounds__(kMockThreads, 1) mock_attention_kernel(const MockArgs args);

}  // namespace xstage::probing
