// Kernels of the peer tests. Each exchanges words whose value says who sent what to whom when, so a
// byte that is late, lost or misplaced cannot look right.
#pragma once

#include <cstdint>

#include "device/flags.cuh"
#include "device/rank_barrier.cuh"
#include "xstage/peer_table.hpp"

namespace xstage::gpu_test {

using namespace xstage::device;

__host__ __device__ inline std::uint32_t mix(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

__host__ __device__ inline uint4 payload(std::uint32_t seed, int from, int to, std::uint32_t idx) {
  const std::uint32_t base =
      mix(seed ^ mix(static_cast<std::uint32_t>(from) * 73u + static_cast<std::uint32_t>(to))) +
      idx;
  return make_uint4(mix(base), base, ~base, mix(base ^ 0x5bd1e995u));
}

__device__ inline bool same(uint4 a, uint4 b) {
  return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w;
}

struct ExchangeArgs {
  std::uint32_t seed = 0;
  std::uint32_t num_rounds = 0;
  std::uint32_t section_vectors = 0;  // room of each sender at each receiver, 16-byte vectors
  bool stop_when_dead = true;         // else all rounds are run with garbage
  std::uint32_t* round = nullptr;     // device memory: rounds done so far, so that replays differ
  unsigned long long* num_wrong = nullptr;    // device memory
  unsigned long long* num_checked = nullptr;  // device memory, bytes
};

// How many vectors rank `from` sends to `to` in a round: random, the same for both.
__device__ inline std::uint32_t round_vectors(const ExchangeArgs& args, std::uint32_t round,
                                              int from, int to) {
  const std::uint32_t dice =
      mix(args.seed + round * 977u + static_cast<std::uint32_t>(from * 131 + to));
  return 1 + dice % args.section_vectors;
}

__device__ inline void send_round(const PeerTable& table, const ExchangeArgs& args,
                                  std::uint32_t round) {
  const std::uint32_t first = blockIdx.x * blockDim.x + threadIdx.x;
  for (int to = 0; to < table.num_ranks; ++to) {
    const std::uint32_t count = round_vectors(args, round, table.rank, to);
    uint4* section =
        at_rank<uint4>(table, to, 16ull * args.section_vectors * static_cast<unsigned>(table.rank));
    for (std::uint32_t i = first; i < count; i += gridDim.x * blockDim.x) {
      store_global(&section[i], payload(args.seed + round, table.rank, to, i));
    }
  }
}

__device__ inline void check_round(const PeerTable& table, const ExchangeArgs& args,
                                   std::uint32_t round, int num_senders) {
  const std::uint32_t first = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned long long num_wrong = 0;
  unsigned long long num_bytes = 0;
  for (int from = 0; from < num_senders; ++from) {
    const std::uint32_t count = round_vectors(args, round, from, table.rank);
    const uint4* section = at_rank<uint4>(
        table, table.rank, 16ull * args.section_vectors * static_cast<unsigned>(from));
    for (std::uint32_t i = first; i < count; i += gridDim.x * blockDim.x) {
      const uint4 got = load_global_coherent(&section[i]);
      num_wrong += same(got, payload(args.seed + round, from, table.rank, i)) ? 0 : 1;
      num_bytes += 16;
    }
  }
  if (num_wrong != 0) atomicAdd(args.num_wrong, num_wrong);
  atomicAdd(args.num_checked, num_bytes);
}

// Every rank sends to every rank, all meet, everybody checks every byte, all meet again.
static __global__ void __launch_bounds__(256)
    exchange_kernel(const __grid_constant__ PeerTable table, WaitContext context, ExchangeArgs args,
                    int num_senders) {
  const std::uint32_t done = *args.round;
  for (std::uint32_t i = 0; i < args.num_rounds; ++i) {
    send_round(table, args, done + i);
    bool alive = rank_barrier_grid(context, table, blockIdx.x, gridDim.x);
    check_round(table, args, done + i, num_senders);
    alive &= rank_barrier_grid(context, table, blockIdx.x, gridDim.x);
    if (!alive && args.stop_when_dead) return;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) *args.round = done + args.num_rounds;
}

// One CTA per rank meets all others `num_rounds` times; cycles of each barrier, then ns of all.
static __global__ void barrier_kernel(const __grid_constant__ PeerTable table, WaitContext context,
                                      std::uint32_t num_rounds, std::uint32_t* cycles) {
  const std::uint64_t start_ns = global_time_ns();
  for (std::uint32_t i = 0; i < num_rounds; ++i) {
    const std::uint64_t start = sm_cycles();
    (void)rank_barrier_cta(context, table);
    if (threadIdx.x == 0) cycles[i] = static_cast<std::uint32_t>(sm_cycles() - start);
  }
  if (threadIdx.x == 0) {
    cycles[num_rounds] = static_cast<std::uint32_t>(global_time_ns() - start_ns);
  }
}

// Occupies what it is given for a time.
static __global__ void occupy_kernel(std::uint64_t duration_ns) {
  const std::uint64_t start = global_time_ns();
  while (global_time_ns() - start < duration_ns) {
  }
}

}  // namespace xstage::gpu_test
