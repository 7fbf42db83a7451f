// What stores do to the loads of the same SM. One warp streams bulk loads from local memory with
// one or four in flight and times each; an outbox owner sends bursts beside it, aligned or
// drifting.
#pragma once

#include <cstdint>

#include "device/outbox.cuh"
#include "device/wait.cuh"
#include "probe/burst_kernel.cuh"

namespace xstage::probing {

inline constexpr std::uint32_t kLoadBytes = 16 * 1024;
inline constexpr std::uint32_t kMaxLoadsInFlight = 4;
inline constexpr std::uint32_t kMaxLoadBursts = 128;

struct LoadArgs {
  BurstArgs burst;              // bytes 0: no stores, num_bursts gaps only
  std::uint32_t num_in_flight;  // 1..4
  // Outputs, [producer][burst]: loads that ended during the burst and the gap after it.
  std::uint32_t* num_loads;
  std::uint64_t* sum_cycles;
  std::uint32_t* max_cycles;
  std::uint64_t* loop_cycles;  // [producer]: of the whole loop
};

struct LoadShared {
  std::uint64_t full[kMaxLoadsInFlight];
  std::uint32_t num_loads[kMaxLoadBursts];
  std::uint64_t sum_cycles[kMaxLoadBursts];
  std::uint32_t max_cycles[kMaxLoadBursts];
  volatile std::uint32_t burst;  // written by the owner's leader, read by the loader
  volatile std::uint32_t done;
};

// One thread. Ends when the owner says so; every load issued is waited for.
__device__ inline void run_loader(const LoadArgs& args, LoadShared& shared, char* stages) {
  const char* source =
      args.burst.gap_source + static_cast<std::uint64_t>(blockIdx.x) * kGapSourceBytesPerSm;
  std::uint64_t issued_at[kMaxLoadsInFlight];
  std::uint32_t num_issued = 0;
  const auto issue = [&](std::uint32_t slot) {
    device::mbarrier_arrive_expect_bytes(&shared.full[slot], kLoadBytes);
    const std::uint64_t now = device::sm_cycles();
#pragma unroll
    for (std::uint32_t i = 0; i < kMaxLoadsInFlight; ++i) {
      if (i == slot) issued_at[i] = now;
    }
    device::bulk_load(stages + slot * kLoadBytes,
                      source + num_issued * kLoadBytes % kGapSourceBytesPerSm, kLoadBytes,
                      &shared.full[slot]);
    ++num_issued;
  };
  for (std::uint32_t slot = 0; slot < args.num_in_flight; ++slot) issue(slot);
  std::uint32_t slot = 0;
  std::uint32_t parity = 0;
  for (std::uint32_t waited = 0; waited < num_issued; ++waited) {
    if (!device::wait_barrier(args.burst.wait, &shared.full[slot], parity)) return;
    std::uint64_t began = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kMaxLoadsInFlight; ++i) {
      if (i == slot) began = issued_at[i];
    }
    const auto latency = static_cast<std::uint32_t>(device::sm_cycles() - began);
    const std::uint32_t burst = shared.burst;
    ++shared.num_loads[burst];
    shared.sum_cycles[burst] += latency;
    if (latency > shared.max_cycles[burst]) shared.max_cycles[burst] = latency;
    if (shared.done == 0) issue(slot);
    if (++slot == args.num_in_flight) {
      slot = 0;
      parity ^= 1;
    }
  }
}

template <class Store>
__device__ inline void run_sender(const LoadArgs& args, LoadShared& shared, const char* source,
                                  typename device::Outbox<Store, 1>::Storage& parcels,
                                  std::uint32_t producer_idx) {
  const std::uint32_t thread_idx = threadIdx.x - 32;
  const device::Role owner{thread_idx, Store::kUsesCopyEngine ? 1u : kNumThreads, 1};
  if (thread_idx >= owner.num_threads) return;
  device::Outbox<Store, 1> outbox(owner, args.burst.send, parcels);
  const std::uint64_t first = device::sm_cycles();
  for (std::uint32_t burst = 0; burst < args.burst.num_bursts; ++burst) {
    if (owner.is_leader()) {
      if (args.burst.aligned) aligned_start(args.burst, burst);
      shared.burst = burst;
    }
    owner.sync();
    if (args.burst.bytes != 0) {
      outbox.acquire();
      outbox.post(source, args.burst.bytes,
                  MakeDestination<typename Store::Destination>::make(
                      args.burst, nullptr, producer_idx, burst % args.burst.num_slices));
      outbox.drain();
      outbox.wait_read();
      owner.sync();
    }
    const std::uint64_t until = device::sm_cycles() + args.burst.gap_cycles;
    while (device::sm_cycles() < until) {
    }
  }
  outbox.make_visible();
  if (owner.is_leader()) {
    args.loop_cycles[producer_idx] = device::sm_cycles() - first;
    shared.done = 1;
  }
}

template <class Store>
__global__ void __launch_bounds__(kNumThreads + 32, 1) load_kernel(const LoadArgs args) {
  extern __shared__ __align__(1024) char dynamic[];
  __shared__ typename device::Outbox<Store, 1>::Storage parcels;
  __shared__ LoadShared shared;

  const std::int32_t producer = args.burst.producer_of_sm[device::sm_idx()];
  if (producer < 0) return;
  const auto producer_idx = static_cast<std::uint32_t>(producer);
  char* const stages = dynamic;
  char* const source = dynamic + kMaxLoadsInFlight * kLoadBytes;
  if (threadIdx.x < kNumThreads) {
    fill_source(source, args.burst.bytes, args.burst.seed, producer_idx);
  }
  for (std::uint32_t i = threadIdx.x; i < kMaxLoadBursts; i += blockDim.x) {
    shared.num_loads[i] = 0;
    shared.sum_cycles[i] = 0;
    shared.max_cycles[i] = 0;
  }
  if (threadIdx.x == 0) {
    for (auto& barrier : shared.full) device::mbarrier_init(&barrier, 1);
    device::mbarrier_init_fence();
    shared.burst = 0;
    shared.done = 0;
  }
  __syncthreads();
  if (threadIdx.x == 0) run_loader(args, shared, stages);
  if (threadIdx.x >= 32) run_sender<Store>(args, shared, source, parcels, producer_idx);
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < args.burst.num_bursts; i += blockDim.x) {
    const std::uint32_t at = producer_idx * args.burst.num_bursts + i;
    args.num_loads[at] = shared.num_loads[i];
    args.sum_cycles[at] = shared.sum_cycles[i];
    args.max_cycles[at] = shared.max_cycles[i];
  }
}

}  // namespace xstage::probing
