// Messages between CTAs: the kernel behind the memory model's tests.
//
// Pairs of CTAs: a sender writes a message and raises the flag to the round's number; its receiver
// waits for the flag, reads, compares, and frees the buffer. Two buffers a pair. Each round's
// payload is new, so a stale word is seen.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "device/flags.cuh"
#include "device/outbox.cuh"
#include "probe/pattern.hpp"

namespace xstage::test {
inline constexpr std::uint32_t kNumThreads = 256;
inline constexpr std::uint32_t kNumPairs = 6;
inline constexpr std::uint32_t kNumBuffers = 2;
inline constexpr std::uint32_t kMessageBytes = 8192;
inline constexpr std::uint32_t kChunkBytes = 2048;  // several copies in flight under one flag
inline constexpr std::uint32_t kRowBytes = 256;
inline constexpr std::uint32_t kWordStride = 64;  // words between flags: a cache line each
inline constexpr std::uint64_t kDeadline_ns = 3'000'000'000;

// What is left out on purpose, to see whether it is needed.
enum class Omit { nothing, completion, release, acquire, async_fence };

struct MessageArgs {
  char* data;            // [pair][buffer] messages
  std::uint32_t* flags;  // [pair], raised by senders
  std::uint32_t* free;   // [pair], raised by receivers
  std::uint32_t num_rounds;
  std::uint32_t seed;
  std::uint32_t max_delay_ns;
  bool sends, receives;  // one GPU: both, senders first
  bool reads_by_tma;
  bool reads_twice;  // the buffer must stay as it is until it is freed
  Omit omit;
  std::uint32_t* num_wrong;        // [pair] stale or foreign words
  std::uint32_t* num_rounds_done;  // [pair]
  device::WaitContext wait;
};

__device__ inline void delay(std::uint32_t seed, std::uint32_t max_ns) {
  if (max_ns == 0) return;
  const std::uint64_t until = device::global_time_ns() + probing::mix(seed) % max_ns;
  while (device::global_time_ns() < until) {
  }
}

// An ordinary load: weak, and served from L1 if a line is there.
__device__ inline std::uint32_t load_weak(const void* address) {
  std::uint32_t value;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ inline std::uint32_t word_of(const MessageArgs& args, std::uint32_t pair,
                                        std::uint32_t round, std::uint32_t word) {
  return probing::payload(args.seed + round, pair, word);
}

template <typename Destination>
struct MessageDestination;
template <>
struct MessageDestination<device::LinearDestination> {
  static __device__ device::LinearDestination make(const MessageArgs& args, std::uint32_t message,
                                                   const CUtensorMap*) {
    return {args.data + static_cast<std::uint64_t>(message) * kMessageBytes};
  }
};
template <>
struct MessageDestination<device::TensorDestination> {
  static __device__ device::TensorDestination make(const MessageArgs&, std::uint32_t message,
                                                   const CUtensorMap* map) {
    return {map, 0, static_cast<std::int32_t>(message * (kMessageBytes / kRowBytes)), 8};
  }
};

struct SharedTile {
  alignas(128) char bytes[kMessageBytes];
  std::uint64_t barrier;
};

// Row "reuse of a destination": the consumer's epoch is acquired before the first store of a round,
// and what follows may be written by the copy engine, so an async-proxy fence stands between.
template <class Store>
__device__ inline void send_messages(const MessageArgs& args, std::uint32_t pair, SharedTile& tile,
                                     const CUtensorMap* map) {
  using Box = device::Outbox<Store, 1>;
  __shared__ typename Box::Storage storage;
  const device::Role owner{threadIdx.x, Store::kUsesCopyEngine ? 32u : kNumThreads, 1};
  const bool owns = threadIdx.x < owner.num_threads;
  Box outbox(owner, Send{StoreKind::bulk, kChunkBytes, 0, Completion::accepted}, storage);
  auto* words = reinterpret_cast<std::uint32_t*>(tile.bytes);
  for (std::uint32_t round = 1; round <= args.num_rounds; ++round) {
    if (threadIdx.x == 0) {
      delay(args.seed ^ probing::mix(round * 2 + pair), args.max_delay_ns);
      if (round > kNumBuffers) {
        device::wait_flag(args.wait, args.free + pair * kWordStride, round - kNumBuffers, -1, 0);
        device::fence_async_global();
      }
    }
    if (owns) outbox.acquire();
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < kMessageBytes / 4; i += kNumThreads) {
      words[i] = word_of(args, pair, round, i);
    }
    device::fence_async_shared();
    __syncthreads();
    if (!owns) continue;
    const std::uint32_t message = pair * kNumBuffers + round % kNumBuffers;
    outbox.post(tile.bytes, kMessageBytes,
                MessageDestination<typename Store::Destination>::make(args, message, map));
    outbox.drain();
    std::uint32_t* const flag = args.flags + pair * kWordStride;
    if (args.omit == Omit::completion) {
      outbox.wait_read();
      owner.sync();
      if (owner.is_leader()) device::store_relaxed_system(flag, round);
    } else if (args.omit == Omit::release) {
      outbox.wait_complete();
      owner.sync();
      if (owner.is_leader()) device::store_relaxed_system(flag, round);
    } else {
      outbox.publish(flag, round);
    }
  }
  if (owns) outbox.make_visible();
}

// One thread waits for the flag; a CTA barrier hands on what it has acquired.
__device__ inline void await_message(const MessageArgs& args, std::uint32_t pair,
                                     std::uint32_t round, const char* message, SharedTile& tile) {
  const std::uint32_t* const flag = args.flags + pair * kWordStride;
  if (threadIdx.x == 0) {
    if (args.omit == Omit::acquire) {
      device::wait_until(
          args.wait, [&] { return device::has_reached(device::load_relaxed_system(flag), round); });
    } else {
      device::wait_flag(args.wait, flag, round, -1, 0);
    }
    if (args.reads_by_tma) {
      if (args.omit != Omit::async_fence) device::fence_async_global();
      device::fence_async_shared();  // the tile was read by ordinary loads a round ago
      device::mbarrier_arrive_expect_bytes(&tile.barrier, kMessageBytes);
      device::bulk_load(tile.bytes, message, kMessageBytes, &tile.barrier);
    }
  }
  __syncthreads();
  if (args.reads_by_tma) device::wait_barrier(args.wait, &tile.barrier, (round - 1) & 1);
}

__device__ inline std::uint32_t count_wrong(const MessageArgs& args, std::uint32_t pair,
                                            std::uint32_t round, const char* message,
                                            const SharedTile& tile) {
  std::uint32_t wrong = 0;
  for (std::uint32_t i = threadIdx.x; i < kMessageBytes / 4; i += kNumThreads) {
    const std::uint32_t seen = args.reads_by_tma
                                   ? reinterpret_cast<const std::uint32_t*>(tile.bytes)[i]
                                   : load_weak(message + i * 4);
    wrong += seen != word_of(args, pair, round, i);
  }
  return wrong;
}

__device__ inline void receive_messages(const MessageArgs& args, std::uint32_t pair,
                                        SharedTile& tile) {
  std::uint32_t wrong = 0;
  for (std::uint32_t round = 1; round <= args.num_rounds; ++round) {
    const char* const message =
        args.data +
        static_cast<std::uint64_t>(pair * kNumBuffers + round % kNumBuffers) * kMessageBytes;
    await_message(args, pair, round, message, tile);
    wrong += count_wrong(args, pair, round, message, tile);
    if (args.reads_twice) {
      delay(args.seed ^ probing::mix(round * 3 + pair), args.max_delay_ns * 2);
      for (std::uint32_t i = threadIdx.x; i < kMessageBytes / 4; i += kNumThreads) {
        const uint4 four = device::load_global_coherent(message + i / 4 * 16);
        const std::uint32_t seen = i % 4 == 0   ? four.x
                                   : i % 4 == 1 ? four.y
                                   : i % 4 == 2 ? four.z
                                                : four.w;
        wrong += seen != word_of(args, pair, round, i);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) device::raise_flag(args.free + pair * kWordStride, round);
  }
  if (wrong != 0) atomicAdd(args.num_wrong + pair, wrong);
  if (threadIdx.x == 0) args.num_rounds_done[pair] = args.num_rounds;
}

template <class Store>
__global__ void __launch_bounds__(kNumThreads)
    message_kernel(const MessageArgs args, const __grid_constant__ CUtensorMap map) {
  __shared__ SharedTile tile;
  if (threadIdx.x == 0) {
    device::mbarrier_init(&tile.barrier, 1);
    device::mbarrier_init_fence();
  }
  __syncthreads();
  const std::uint32_t pair = blockIdx.x % kNumPairs;
  if (args.sends && blockIdx.x < kNumPairs) {
    send_messages<Store>(args, pair, tile, &map);
  } else if (args.receives) {
    receive_messages(args, pair, tile);
  }
}

}  // namespace xstage::test
