// Parcels through an outbox, every byte checked: a plan made on the host, one kernel that sends it,
// and the image that the destination must show afterwards, guard zones included.
//
// A CTA is one outbox: `num_owners` threads own it; `num_producers` threads fill its slots and hand
// them over by barriers in shared memory (0: the owners fill them themselves). A slot is rewritten
// as soon as acquire() grants it, so a slot granted too early sends wrong bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "device/outbox.cuh"
#include "device/wait.cuh"
#include "gpu.hpp"
#include "probe/pattern.hpp"
#include "probe/tensor_map.hpp"

namespace xstage::test {

inline constexpr std::uint32_t kRowBytes = 256;
inline constexpr std::uint32_t kRowShift = 8;
inline constexpr std::uint32_t kGuardBytes = 256;
inline constexpr std::uint32_t kMaxThreads = 384;  // 256 owners and 128 producers
inline constexpr std::uint64_t kDeadline_ns = 2'000'000'000;

// Where a parcel goes: bytes from the start of the destination, or a box row and column.
struct Parcel {
  std::uint64_t offset;
  std::uint32_t bytes;
  std::uint32_t first_row_order;  // rows: index of its part of the row order
  std::int32_t row;               // tensor only; rows past its end are clipped
  std::int32_t column;            // tensor only, in elements of two bytes
};

struct ParcelArgs {
  Send send;
  char* destination;
  const Parcel* parcels;           // [cta][num_parcels]
  const std::uint32_t* row_order;  // null: ascending
  std::uint32_t pitch_bytes;
  std::uint32_t num_parcels;
  std::uint32_t slot_bytes;
  std::uint32_t num_owners;
  std::uint32_t num_producers;
  std::uint32_t max_steps;  // main-loop steps after a parcel: random up to this
  std::uint32_t seed;
  std::uint32_t* flags;    // [cta], raised to `seed` when all is sent
  std::uint32_t* results;  // [cta][2]: chunks sent, calls in which the pace was wrong
  device::WaitContext wait;
};

template <typename Destination>
struct ToDestination;

template <>
struct ToDestination<device::LinearDestination> {
  static __device__ device::LinearDestination make(const ParcelArgs& args, const Parcel& parcel,
                                                   const CUtensorMap*) {
    return {args.destination + parcel.offset};
  }
};

template <>
struct ToDestination<device::RowsDestination> {
  static __device__ device::RowsDestination make(const ParcelArgs& args, const Parcel& parcel,
                                                 const CUtensorMap*) {
    const std::uint32_t* order = args.row_order;
    if (order != nullptr) order += parcel.first_row_order;
    return {args.destination + parcel.offset, order, kRowShift, args.pitch_bytes};
  }
};

template <>
struct ToDestination<device::TensorDestination> {
  static __device__ device::TensorDestination make(const ParcelArgs&, const Parcel& parcel,
                                                   const CUtensorMap* map) {
    return {map, parcel.column, parcel.row, kRowShift};
  }
};

// Word `word` of a parcel, by its number over all CTAs.
XSTAGE_HOST_DEVICE constexpr std::uint32_t parcel_word(std::uint32_t seed, std::uint32_t parcel,
                                                       std::uint32_t word) {
  return probing::payload(seed, parcel, word);
}

__device__ inline void fill_slot(char* slot, std::uint32_t bytes, std::uint32_t seed,
                                 std::uint32_t parcel, std::uint32_t thread_idx,
                                 std::uint32_t num_threads) {
  auto* words = reinterpret_cast<std::uint32_t*>(slot);
  for (std::uint32_t i = thread_idx; i < bytes / 4; i += num_threads) {
    words[i] = parcel_word(seed, parcel, i);
  }
}

// Some steps of a main loop, with two attempts to send after each. Returns how often the outbox
// sent although it must not, or did not although it must.
template <class Box>
__device__ inline std::uint32_t run_main_loop(Box& outbox, const Send& send,
                                              std::uint32_t num_steps, std::uint32_t& steps_since) {
  std::uint32_t wrong = 0;
  for (std::uint32_t i = 0; i < num_steps; ++i) {
    outbox.step();
    if (steps_since < send.steps_per_chunk) ++steps_since;
    for (int attempt = 0; attempt < 2; ++attempt) {
      const bool must_send = !outbox.is_empty() && steps_since >= send.steps_per_chunk;
      const bool has_sent = outbox.pump();
      wrong += has_sent != must_send;
      if (has_sent) steps_since = 0;
    }
  }
  return wrong;
}

template <class Store, int kNumSlots>
__global__ void __launch_bounds__(kMaxThreads, 1)
    parcel_kernel(const ParcelArgs args, const __grid_constant__ CUtensorMap map) {
  using Box = device::Outbox<Store, kNumSlots>;
  extern __shared__ __align__(1024) char slots[];
  __shared__ typename Box::Storage storage;
  __shared__ std::uint64_t granted[kNumSlots];
  __shared__ std::uint64_t filled[kNumSlots];
  if (threadIdx.x == 0) {
    for (int i = 0; i < kNumSlots; ++i) {
      device::mbarrier_init(&granted[i], Store::kUsesCopyEngine ? 1 : args.num_owners);
      device::mbarrier_init(&filled[i], args.num_producers == 0 ? 1 : args.num_producers);
    }
    device::mbarrier_init_fence();
  }
  __syncthreads();
  const Parcel* parcels = args.parcels + blockIdx.x * args.num_parcels;
  const std::uint32_t first_parcel = blockIdx.x * args.num_parcels;

  if (threadIdx.x >= args.num_owners) {  // the producers
    for (std::uint32_t i = 0; i < args.num_parcels; ++i) {
      const std::uint32_t slot = i % kNumSlots;
      if (!device::wait_barrier(args.wait, &granted[slot], i / kNumSlots & 1)) return;
      fill_slot(slots + slot * args.slot_bytes, parcels[i].bytes, args.seed, first_parcel + i,
                threadIdx.x - args.num_owners, args.num_producers);
      device::fence_async_shared();
      device::mbarrier_arrive(&filled[slot]);
    }
    return;
  }

  const device::Role owner{threadIdx.x, args.num_owners, 1};
  Box outbox(owner, args.send, storage);
  std::uint32_t steps_since = args.send.steps_per_chunk;
  std::uint32_t wrong_pace = 0;
  for (std::uint32_t i = 0; i < args.num_parcels; ++i) {
    outbox.acquire();
    const std::uint32_t slot = outbox.next_slot();
    char* const source = slots + slot * args.slot_bytes;
    if (args.num_producers != 0) {
      // Handed back by whoever has read it: the copy engine for the leader, or all owners.
      if (!Store::kUsesCopyEngine || owner.is_leader()) device::mbarrier_arrive(&granted[slot]);
      (void)device::wait_barrier(args.wait, &filled[slot], i / kNumSlots & 1);
    } else {
      fill_slot(source, parcels[i].bytes, args.seed, first_parcel + i, owner.thread_idx,
                owner.num_threads);
    }
    outbox.post(source, parcels[i].bytes,
                ToDestination<typename Store::Destination>::make(args, parcels[i], &map));
    const std::uint32_t num_steps =
        probing::mix(args.seed + first_parcel + i) % (args.max_steps + 1);
    wrong_pace += run_main_loop(outbox, args.send, num_steps, steps_since);
  }
  outbox.drain();
  outbox.publish(args.flags + blockIdx.x, args.seed);
  outbox.make_visible();
  if (owner.is_leader()) {
    args.results[blockIdx.x * 2] = outbox.num_chunks_sent();
    args.results[blockIdx.x * 2 + 1] = wrong_pace;
  }
}

// --- the host's side -----------------------------------------------------------------------------

enum class Layout { linear, rows, tensor };

// One run, complete: the same job sends the same bytes.
struct ParcelJob {
  Place place = Place::local;
  Layout layout = Layout::linear;
  Send send;
  std::uint32_t num_slots = 1;
  std::uint32_t num_ctas = 1;
  std::uint32_t num_owners = 32;
  std::uint32_t num_producers = 128;
  std::uint32_t max_steps = 8;
  std::uint32_t pitch_bytes = kRowBytes;
  bool random_rows = false;
  std::vector<std::vector<std::uint32_t>> parcel_bytes;  // [cta][parcel]; equally many everywhere
  std::uint32_t clip_rows = 0;  // tensor: so many of the last rows lie past its end
  std::uint32_t seed = 1;
};

struct Image {
  std::vector<Parcel> parcels;
  std::vector<std::uint32_t> row_order;
  std::vector<std::uint32_t> words;  // what the destination must hold
  std::uint64_t tensor_offset = 0;
  std::uint32_t num_tensor_rows = 0;
};

inline bool adds(StoreKind kind) {
  return kind == StoreKind::bulk_reduce || kind == StoreKind::red;
}

inline void place_word(Image& image, const ParcelJob& job, std::uint64_t byte, std::uint32_t word) {
  std::uint32_t& there = image.words.at(byte / 4);
  there = adds(job.send.kind) ? there + word : word;
}

// Parcels one after the other, a guard zone around each.
inline Image plan_linear(const ParcelJob& job) {
  Image image;
  std::uint64_t at = kGuardBytes;
  for (const auto& cta : job.parcel_bytes) {
    for (const std::uint32_t bytes : cta) {
      image.parcels.push_back({at, bytes, 0, 0, 0});
      at += (bytes + 15) / 16 * 16 + kGuardBytes;
    }
  }
  image.words.assign(at / 4, probing::kPoisonWord);
  for (std::uint32_t i = 0; i < image.parcels.size(); ++i) {
    for (std::uint32_t word = 0; word < image.parcels[i].bytes / 4; ++word) {
      place_word(image, job, image.parcels[i].offset + word * 4, parcel_word(job.seed, i, word));
    }
  }
  return image;
}

// Rows of 256 bytes, `pitch_bytes` apart, in ascending or random order within a parcel.
inline Image plan_rows(const ParcelJob& job) {
  Image image;
  std::mt19937 random(job.seed);
  std::uint64_t at = kGuardBytes;
  for (const auto& cta : job.parcel_bytes) {
    for (const std::uint32_t bytes : cta) {
      const std::uint32_t num_rows = (bytes + kRowBytes - 1) / kRowBytes;
      const auto first = static_cast<std::uint32_t>(image.row_order.size());
      image.parcels.push_back({at, bytes, first, 0, 0});
      for (std::uint32_t row = 0; row < num_rows; ++row) image.row_order.push_back(row);
      if (job.random_rows) {
        std::shuffle(image.row_order.begin() + first, image.row_order.end(), random);
      }
      at += static_cast<std::uint64_t>(num_rows) * job.pitch_bytes + kGuardBytes;
    }
  }
  image.words.assign(at / 4, probing::kPoisonWord);
  for (std::uint32_t i = 0; i < image.parcels.size(); ++i) {
    const Parcel& parcel = image.parcels[i];
    for (std::uint32_t word = 0; word < parcel.bytes / 4; ++word) {
      const std::uint32_t row = image.row_order[parcel.first_row_order + word * 4 / kRowBytes];
      place_word(
          image, job,
          parcel.offset + static_cast<std::uint64_t>(row) * job.pitch_bytes + word * 4 % kRowBytes,
          parcel_word(job.seed, i, word));
    }
  }
  return image;
}

// One tensor for all: a CTA has a column of rows of 256 bytes, its parcels stacked in it. The last
// `clip_rows` of the longest column lie past the tensor's end.
inline Image plan_tensor(const ParcelJob& job) {
  Image image;
  std::uint32_t num_rows = 0;
  for (const auto& cta : job.parcel_bytes) {
    std::uint32_t rows = 0;
    for (const std::uint32_t bytes : cta) rows += bytes / kRowBytes;
    num_rows = std::max(num_rows, rows);
  }
  image.num_tensor_rows = num_rows - job.clip_rows;
  const std::uint64_t pitch = job.pitch_bytes;  // of the tensor: at least a column for each CTA
  image.tensor_offset = pitch;
  image.words.assign((num_rows + 2) * pitch / 4, probing::kPoisonWord);
  std::uint32_t idx = 0;
  for (std::uint32_t cta = 0; cta < job.parcel_bytes.size(); ++cta) {
    std::int32_t row = 0;
    for (const std::uint32_t bytes : job.parcel_bytes[cta]) {
      const auto column = static_cast<std::int32_t>(cta * kRowBytes / 2);
      image.parcels.push_back({0, bytes, 0, row, column});
      for (std::uint32_t word = 0; word < bytes / 4; ++word) {
        const std::uint32_t at_row = static_cast<std::uint32_t>(row) + word * 4 / kRowBytes;
        if (at_row >= image.num_tensor_rows) continue;
        place_word(image, job,
                   image.tensor_offset + static_cast<std::uint64_t>(at_row) * pitch +
                       cta * kRowBytes + word * 4 % kRowBytes,
                   parcel_word(job.seed, idx, word));
      }
      row += static_cast<std::int32_t>(bytes / kRowBytes);
      ++idx;
    }
  }
  return image;
}

inline Image plan(const ParcelJob& job) {
  return job.layout == Layout::linear ? plan_linear(job)
         : job.layout == Layout::rows ? plan_rows(job)
                                      : plan_tensor(job);
}

inline std::string describe(const ParcelJob& job) {
  const Send& send = job.send;
  return "seed " + std::to_string(job.seed) + ", " + name_of(job.place) + ", kind " +
         std::to_string(static_cast<int>(send.kind)) + ", layout " +
         std::to_string(static_cast<int>(job.layout)) + ", chunk " +
         std::to_string(send.chunk_bytes) + " B every " + std::to_string(send.steps_per_chunk) +
         " steps, completion " + std::to_string(static_cast<int>(send.completion)) + ", " +
         std::to_string(job.num_slots) + " slots, " + std::to_string(job.num_ctas) + " CTAs of " +
         std::to_string(job.num_owners) + " owners and " + std::to_string(job.num_producers) +
         " producers, pitch " + std::to_string(job.pitch_bytes) +
         (job.random_rows ? ", random rows" : "") + ", clip " + std::to_string(job.clip_rows);
}

template <class Store, int kNumSlots>
void launch_parcels(const ParcelJob& job, const ParcelArgs& args, const CUtensorMap& map) {
  const std::uint32_t shared_bytes = args.slot_bytes * kNumSlots;
  const auto kernel = parcel_kernel<Store, kNumSlots>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes)),
        "shared memory");
  kernel<<<job.num_ctas, job.num_owners + job.num_producers, shared_bytes>>>(args, map);
  check(cudaGetLastError(), "launch");
  check(cudaDeviceSynchronize(), "kernel");
}

template <class Store>
void launch_parcels(const ParcelJob& job, const ParcelArgs& args, const CUtensorMap& map) {
  switch (job.num_slots) {
    case 1:
      return launch_parcels<Store, 1>(job, args, map);
    case 2:
      return launch_parcels<Store, 2>(job, args, map);
    case 3:
      return launch_parcels<Store, 3>(job, args, map);
    default:
      return launch_parcels<Store, 4>(job, args, map);
  }
}

// The places of the first wrong words, for a failure's message.
inline std::string differences(const std::vector<std::uint32_t>& seen,
                               const std::vector<std::uint32_t>& expected) {
  std::string text;
  int count = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] == expected[i] || ++count > 4) continue;
    text += "\n  byte " + std::to_string(i * 4) + ": " + std::to_string(seen[i]) + " instead of " +
            std::to_string(expected[i]);
    if (expected[i] == probing::kPoisonWord) text += " (guard)";
    if (seen[i] == probing::kPoisonWord) text += " (nothing was written)";
  }
  return std::to_string(count) + " words of " + std::to_string(seen.size()) + " differ" + text;
}

// Sends everything and checks all that can be seen.
template <typename Launch>
void run_and_check(const ParcelJob& job, Launch launch) {
  SCOPED_TRACE(describe(job));
  const Image image = plan(job);
  const Buffer destination = allocate(job.place, image.words.size() * 4);
  const std::vector<std::uint32_t> poison(image.words.size(), probing::kPoisonWord);
  check(cudaMemcpy(destination.data(), poison.data(), poison.size() * 4, cudaMemcpyDefault),
        "poison");
  check(cudaDeviceSynchronize(), "poison");
  check(cudaSetDevice(0), "cudaSetDevice");
  const Buffer parcels = upload(image.parcels);
  const Buffer row_order = upload(image.row_order);
  const Buffer flags = upload(std::vector<std::uint32_t>(job.num_ctas, 0));
  const Buffer results = upload(std::vector<std::uint32_t>(job.num_ctas * 2, 0));
  const Buffer abort = upload(std::vector<std::uint32_t>(1, 0));
  CUtensorMap map{};
  if (job.layout == Layout::tensor) {
    map = probing::make_row_box_map(destination.data() + image.tensor_offset,
                                    job.num_ctas * kRowBytes, image.num_tensor_rows,
                                    job.pitch_bytes, kRowBytes, job.send.chunk_bytes / kRowBytes);
  }
  std::uint32_t slot_bytes = 128;
  for (const Parcel& parcel : image.parcels) {
    slot_bytes = std::max(slot_bytes, (parcel.bytes + 127) / 128 * 128);
  }
  const ParcelArgs args{job.send,
                        destination.data(),
                        parcels.as<Parcel>(),
                        job.random_rows ? row_order.as<std::uint32_t>() : nullptr,
                        job.pitch_bytes,
                        static_cast<std::uint32_t>(job.parcel_bytes[0].size()),
                        slot_bytes,
                        job.num_owners,
                        job.num_producers,
                        job.max_steps,
                        job.seed,
                        flags.as<std::uint32_t>(),
                        results.as<std::uint32_t>(),
                        device::WaitContext{abort.as<std::uint32_t>(), kDeadline_ns, nullptr}};
  try {
    launch(job, args, map);
  } catch (const Error& error) {  // says which job, as an exception out of here would not
    FAIL() << error.what();
  }

  ASSERT_EQ(download<std::uint32_t>(abort)[0], 0u) << "a wait gave up";
  std::vector<std::uint32_t> seen(image.words.size());
  check(cudaMemcpy(seen.data(), destination.data(), seen.size() * 4, cudaMemcpyDefault), "result");
  EXPECT_TRUE(seen == image.words) << differences(seen, image.words);
  const auto raised = download<std::uint32_t>(flags);
  const auto counts = download<std::uint32_t>(results);
  for (std::uint32_t cta = 0; cta < job.num_ctas; ++cta) {
    std::uint32_t chunks = 0;
    for (const std::uint32_t bytes : job.parcel_bytes[cta]) {
      chunks += num_chunks(bytes, job.send.chunk_bytes);
    }
    EXPECT_EQ(raised[cta], job.seed) << "flag of CTA " << cta;
    EXPECT_EQ(counts[cta * 2], chunks) << "chunks of CTA " << cta;
    EXPECT_EQ(counts[cta * 2 + 1], 0u) << "calls of pump() against the pace, CTA " << cta;
  }
}

}  // namespace xstage::test
