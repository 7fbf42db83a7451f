// What the exchange benchmark puts around the work that it times: a common start, times by the
// rank's own GPU, the SM clock behind each replay.
#pragma once

#include <cstdint>

#include "device/rank_barrier.cuh"

namespace xstage::attention {

struct Stamp {
  std::uint64_t start;
  std::uint64_t sent;
  std::uint64_t done;
  std::uint64_t clock_cycles;  // in clock_ns
  std::uint64_t clock_ns;
};

inline constexpr int kMaxStamps = 512;

struct StampLog {
  std::uint32_t count;  // complete ones
  std::uint32_t reserved;
  Stamp stamps[kMaxStamps];
};

static __global__ void start_kernel(WaitContext wait, const __grid_constant__ PeerTable table,
                                    StampLog* log) {
  (void)device::rank_barrier_cta(wait, table);
  if (threadIdx.x == 0) log->stamps[log->count % kMaxStamps].start = device::global_time_ns();
}

static __global__ void sent_kernel(StampLog* log) {
  log->stamps[log->count % kMaxStamps].sent = device::global_time_ns();
}

static __global__ void done_kernel(StampLog* log) {
  constexpr std::uint64_t kClockNs = 10'000;
  Stamp& stamp = log->stamps[log->count % kMaxStamps];
  stamp.done = device::global_time_ns();
  const std::uint64_t begin_cycles = device::sm_cycles();
  const std::uint64_t begin = device::global_time_ns();
  std::uint64_t end = begin;
  while (end - begin < kClockNs) end = device::global_time_ns();
  stamp.clock_cycles = device::sm_cycles() - begin_cycles;
  stamp.clock_ns = end - begin;
  log->count = log->count + 1;
}

}  // namespace xstage::attention
