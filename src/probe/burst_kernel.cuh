// The kernel behind every burst experiment. One CTA an SM; a CTA whose SM is no producer leaves at
// once. The owner of the outbox is the whole CTA for register kinds and one thread for the copy
// engine. Samples stay in shared memory until the loop has ended: a sample written to global memory
// would queue behind the very stores that are measured.
#pragma once

#include <cstdint>

#include "device/outbox.cuh"
#include "device/wait.cuh"
#include "probe/pattern.hpp"
#include "probe/tensor_gap.cuh"

namespace xstage::probing {

inline constexpr int kNumThreads = 256;
inline constexpr std::uint32_t kMaxBursts = 512;
inline constexpr std::uint32_t kNumTimes = 5;  // accept, read, complete, visible, start

struct BurstArgs {
  char* destination;
  char* const* destinations;  // contiguous layout: producer i sends to entry i mod their number
  std::uint32_t num_destinations;    // 0: all send to `destination`
  const std::uint32_t* row_order;    // null: ascending
  std::uint64_t block_stride_bytes;  // between blocks of rows of neighbouring producers
  std::uint32_t num_columns;         // producers that share a block of rows, side by side
  std::uint32_t row_shift;
  std::uint32_t pitch_bytes;
  std::uint32_t bytes;
  std::uint32_t num_bursts;
  std::uint32_t num_slices;  // contiguous layout: bursts rotate over so many slices
  bool aligned;
  bool measure_visible;
  Send send;
  std::uint64_t idle_ns;
  std::uint64_t gap_cycles;
  std::uint32_t gap_steps;
  const char* gap_source;  // local memory that the tensor-core gap loads
  std::uint32_t seed;
  const std::int32_t* producer_of_sm;  // -1: this SM does not store
  std::uint32_t num_producers;
  std::uint32_t* num_arrived;      // of the start barrier, zero before the launch
  std::uint64_t* start_times_ns;   // one a round, zero before the launch
  std::uint32_t* cycles;           // [burst][producer][kNumTimes]
  std::uint32_t* producer_sm;      // [producer]
  std::uint64_t* calibration;      // [producer][3]: cycles and ns over the loop, its start in ns
  std::uint32_t* num_wrong_loads;  // remote loads only: words that differ from the pattern
  device::WaitContext wait;
};

// Where producer `idx`'s parcel of round `burst` begins.
XSTAGE_HOST_DEVICE inline std::uint64_t parcel_offset(
    std::uint64_t block_stride_bytes, std::uint32_t num_columns, std::uint32_t row_shift,
    std::uint32_t producer_idx, std::uint32_t slice_idx, std::uint32_t bytes) {
  return producer_idx / num_columns * block_stride_bytes +
         (static_cast<std::uint64_t>(producer_idx % num_columns) << row_shift) +
         static_cast<std::uint64_t>(slice_idx) * bytes;
}

template <typename Destination>
struct MakeDestination;

template <>
struct MakeDestination<device::LinearDestination> {
  static __device__ device::LinearDestination make(const BurstArgs& args, const CUtensorMap*,
                                                   std::uint32_t producer_idx,
                                                   std::uint32_t slice_idx) {
    char* base = args.num_destinations == 0
                     ? args.destination
                     : args.destinations[producer_idx % args.num_destinations];
    return {base +
            parcel_offset(args.block_stride_bytes, 1, 0, producer_idx, slice_idx, args.bytes)};
  }
};

template <>
struct MakeDestination<device::RowsDestination> {
  static __device__ device::RowsDestination make(const BurstArgs& args, const CUtensorMap*,
                                                 std::uint32_t producer_idx, std::uint32_t) {
    return {args.destination + parcel_offset(args.block_stride_bytes, args.num_columns,
                                             args.row_shift, producer_idx, 0, args.bytes),
            args.row_order, args.row_shift, args.pitch_bytes};
  }
};

template <>
struct MakeDestination<device::TensorDestination> {
  static __device__ device::TensorDestination make(const BurstArgs& args, const CUtensorMap* map,
                                                   std::uint32_t producer_idx, std::uint32_t) {
    const std::uint32_t rows = args.bytes >> args.row_shift;
    const std::uint32_t elements = (1u << args.row_shift) / 2;
    return {map, static_cast<std::int32_t>(producer_idx % args.num_columns * elements),
            static_cast<std::int32_t>(producer_idx / args.num_columns * rows), args.row_shift};
  }
};

// All producers leave at one instant of the global timer, after the link has been idle.
__device__ inline void aligned_start(const BurstArgs& args, std::uint32_t round) {
  constexpr std::uint64_t kLead_ns = 4000;  // from the last arrival to the common start
  const std::uint64_t idle_until = device::global_time_ns() + args.idle_ns;
  while (device::global_time_ns() < idle_until) {
  }
  const std::uint32_t old = device::add_acq_rel_gpu(args.num_arrived, 1);
  if (old + 1 == (round + 1) * args.num_producers) {
    device::store_release_gpu(args.start_times_ns + round, device::global_time_ns() + kLead_ns);
  }
  std::uint64_t start = 0;
  device::wait_until(args.wait, [&] {
    start = device::load_acquire_gpu(args.start_times_ns + round);
    return start != 0;
  });
  while (device::global_time_ns() < start) {
  }
}

// Fills the source with the payload of this producer.
__device__ inline void fill_source(char* source, std::uint32_t bytes, std::uint32_t seed,
                                   std::uint32_t producer_idx) {
  auto* words = reinterpret_cast<std::uint32_t*>(source);
  for (std::uint32_t i = threadIdx.x; i < bytes / 4; i += kNumThreads) {
    words[i] = payload(seed, producer_idx, i);
  }
  device::fence_async_shared();
}

__device__ inline void count_wrong_loads(const BurstArgs& args, const char* source,
                                         std::uint32_t producer_idx) {
  const auto* words = reinterpret_cast<const std::uint32_t*>(source);
  std::uint32_t wrong = 0;
  for (std::uint32_t i = threadIdx.x; i < args.bytes / 4; i += kNumThreads) {
    wrong += words[i] != payload(args.seed, producer_idx, i);
  }
  if (wrong != 0) atomicAdd(args.num_wrong_loads, wrong);
}

template <class Store, bool kIsLoad = false>
__global__ void __launch_bounds__(kNumThreads, 1)
    burst_kernel(const BurstArgs args, const __grid_constant__ CUtensorMap tensor_map) {
  using Box = device::Outbox<Store, 1>;
  extern __shared__ __align__(1024) char shared[];
  __shared__ typename Box::Storage parcels;
  __shared__ std::uint32_t cycles[kMaxBursts][kNumTimes];
  __shared__ TensorGapShared gap_shared;

  const std::int32_t producer = args.producer_of_sm[device::sm_idx()];
  if (producer < 0) return;
  const auto producer_idx = static_cast<std::uint32_t>(producer);
  char* const source = shared;
  if constexpr (!kIsLoad) fill_source(source, args.bytes, args.seed, producer_idx);
  TensorGap gap(gap_shared, shared + (args.bytes + 1023) / 1024 * 1024, args.gap_source);
  __syncthreads();

  const device::Role owner{threadIdx.x, Store::kUsesCopyEngine ? 1u : kNumThreads, 1};
  const bool owns = threadIdx.x < owner.num_threads;
  Box outbox(owner, args.send, parcels);
  const std::uint64_t first_cycles = device::sm_cycles();
  const std::uint64_t first_ns = device::global_time_ns();

  for (std::uint32_t burst = 0; burst < args.num_bursts; ++burst) {
    if (args.aligned) {
      if (threadIdx.x == 0) aligned_start(args, burst);
    }
    __syncthreads();
    if (owns) {
      const auto destination = MakeDestination<typename Store::Destination>::make(
          args, &tensor_map, producer_idx, burst % args.num_slices);
      outbox.acquire();
      const std::uint64_t start = device::sm_cycles();
      outbox.post(source, args.bytes, destination);
      outbox.drain();
      const std::uint64_t accepted = device::sm_cycles();
      outbox.wait_read();
      const std::uint64_t read = device::sm_cycles();
      std::uint64_t complete = read;
      std::uint64_t visible = read;
      if (args.measure_visible) {
        outbox.wait_complete();
        complete = device::sm_cycles();
        outbox.make_visible();
        visible = device::sm_cycles();
      }
      if (owner.is_leader()) {
        cycles[burst][0] = static_cast<std::uint32_t>(accepted - start);
        cycles[burst][1] = static_cast<std::uint32_t>(read - start);
        cycles[burst][2] = static_cast<std::uint32_t>(complete - start);
        cycles[burst][3] = static_cast<std::uint32_t>(visible - start);
        cycles[burst][4] = static_cast<std::uint32_t>(start - first_cycles);
      }
    }
    __syncthreads();
    if (args.gap_steps != 0) {
      gap.run(args.gap_steps, args.wait);
    } else if (args.gap_cycles != 0) {
      const std::uint64_t until = device::sm_cycles() + args.gap_cycles;
      while (device::sm_cycles() < until) {
      }
    }
  }

  const std::uint64_t last_cycles = device::sm_cycles();
  const std::uint64_t last_ns = device::global_time_ns();
  if (owns) outbox.make_visible();
  __syncthreads();
  if constexpr (kIsLoad) count_wrong_loads(args, source, producer_idx);
  for (std::uint32_t i = threadIdx.x; i < args.num_bursts * kNumTimes; i += kNumThreads) {
    const std::uint32_t burst = i / kNumTimes;
    const std::uint32_t what = i % kNumTimes;
    args.cycles[(burst * args.num_producers + producer_idx) * kNumTimes + what] =
        cycles[burst][what];
  }
  if (threadIdx.x == 0) {
    args.producer_sm[producer_idx] = device::sm_idx();
    args.calibration[producer_idx * 3] = last_cycles - first_cycles;
    args.calibration[producer_idx * 3 + 1] = last_ns - first_ns;
    args.calibration[producer_idx * 3 + 2] = first_ns;
  }
}

}  // namespace xstage::probing
