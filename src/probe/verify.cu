#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "probe/burst_kernel.cuh"
#include "probe/pattern.hpp"
#include "probe/verify.cuh"

namespace xstage::probing {
namespace {

// Everything needed to say what word `word_idx` of a producer's slice should be, and where it lies.
struct Expectation {
  PayloadLayout layout;
  const std::uint32_t* row_order;  // readable where the check runs
  std::uint32_t seed;
  std::uint32_t bytes;
  std::uint32_t num_bursts;
  bool is_sum;

  XSTAGE_HOST_DEVICE std::uint64_t offset(std::uint32_t producer_idx, std::uint32_t slice_idx,
                                          std::uint32_t word_idx) const {
    const std::uint32_t at = word_idx * 4;
    std::uint32_t row = at >> layout.row_shift;
    if (row_order != nullptr) row = row_order[row];
    return parcel_offset(layout.block_stride_bytes, layout.num_columns, layout.row_shift,
                         producer_idx, slice_idx, bytes) +
           static_cast<std::uint64_t>(row) * layout.pitch_bytes +
           (at & ((1u << layout.row_shift) - 1));
  }
  XSTAGE_HOST_DEVICE std::uint32_t value(std::uint32_t producer_idx, std::uint32_t slice_idx,
                                         std::uint32_t word_idx) const {
    if (producer_idx % layout.num_shares != layout.share_idx) return kPoisonWord;
    const std::uint32_t word = payload(seed, producer_idx, word_idx);
    if (!is_sum) return word;
    const std::uint32_t times =
        num_bursts / layout.num_slices + (slice_idx < num_bursts % layout.num_slices ? 1 : 0);
    return kPoisonWord + times * word;
  }
  // Guard words between producers of the contiguous layout must keep the poison.
  XSTAGE_HOST_DEVICE std::uint32_t num_guard_words() const {
    if (layout.num_columns != 1) return 0;
    const std::uint64_t used = static_cast<std::uint64_t>(layout.num_slices) * bytes;
    return layout.block_stride_bytes > used && layout.pitch_bytes == (1u << layout.row_shift)
               ? static_cast<std::uint32_t>((layout.block_stride_bytes - used) / 4)
               : 0;
  }
};

XSTAGE_HOST_DEVICE inline std::uint32_t word_at(const char* base, std::uint64_t offset) {
  return *reinterpret_cast<const volatile std::uint32_t*>(base + offset);
}

__global__ void verify_kernel(const char* base, Expectation want, unsigned long long* num_wrong) {
  const std::uint32_t producer = blockIdx.x;
  const std::uint32_t slice = blockIdx.y;
  unsigned long long wrong = 0;
  for (std::uint32_t i = threadIdx.x; i < want.bytes / 4; i += blockDim.x) {
    wrong += word_at(base, want.offset(producer, slice, i)) != want.value(producer, slice, i);
  }
  if (slice == 0) {
    const std::uint64_t guard =
        static_cast<std::uint64_t>(producer) * want.layout.block_stride_bytes +
        static_cast<std::uint64_t>(want.layout.num_slices) * want.bytes;
    for (std::uint32_t i = threadIdx.x; i < want.num_guard_words(); i += blockDim.x) {
      wrong += word_at(base, guard + i * 4) != kPoisonWord;
    }
  }
  if (wrong != 0) atomicAdd(num_wrong, wrong);
}

// A remote load finds its payload already there.
__global__ void fill_kernel(char* base, Expectation want) {
  for (std::uint32_t i = threadIdx.x; i < want.bytes / 4; i += blockDim.x) {
    *reinterpret_cast<std::uint32_t*>(base + want.offset(blockIdx.x, 0, i)) =
        want.value(blockIdx.x, 0, i);
  }
}

__global__ void fill_random_kernel(std::uint32_t* words, std::size_t count, std::uint32_t seed) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += stride) {
    words[i] = mix(static_cast<std::uint32_t>(i) ^ seed) & 0x3fff3fffu;
  }
}

Expectation expectation_of(const BurstSpec& spec, const PayloadLayout& layout,
                           const std::uint32_t* row_order) {
  const bool sum = spec.kind == StoreKind::bulk_reduce || spec.kind == StoreKind::red;
  const bool random = spec.layout.rows == Layout::Rows::random;
  return {layout,
          random ? row_order : nullptr,
          spec.seed,
          spec.bytes,
          static_cast<std::uint32_t>(spec.num_bursts),
          sum};
}

std::uint64_t count_wrong_on_host(const char* base, const Expectation& want, int num_producers) {
  return sum_in_parallel(num_producers, [&](int p) {
    std::uint64_t wrong = 0;
    for (std::uint32_t slice = 0; slice < want.layout.num_slices; ++slice) {
      for (std::uint32_t i = 0; i < want.bytes / 4; ++i) {
        wrong += word_at(base, want.offset(p, slice, i)) != want.value(p, slice, i);
      }
    }
    const std::uint64_t guard = static_cast<std::uint64_t>(p) * want.layout.block_stride_bytes +
                                static_cast<std::uint64_t>(want.layout.num_slices) * want.bytes;
    for (std::uint32_t i = 0; i < want.num_guard_words(); ++i) {
      wrong += word_at(base, guard + i * 4) != kPoisonWord;
    }
    return wrong;
  });
}

}  // namespace

std::uint64_t sum_in_parallel(int num_items, const std::function<std::uint64_t(int)>& count) {
  std::atomic<std::uint64_t> sum{0};
  std::atomic<int> next{0};
  const auto work = [&] {
    for (int i = next++; i < num_items; i = next++) sum += count(i);
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::min(8u, std::thread::hardware_concurrency())); ++i) {
    threads.emplace_back(work);
  }
  for (auto& thread : threads) thread.join();
  return sum;
}

void prepare_destination(const Buffer& destination, std::uint64_t total_bytes,
                         const BurstSpec& spec, const Stream& stream, const PayloadLayout& layout) {
  if (destination.place() == Buffer::Place::pinned_host) {
    std::memset(destination.data(), static_cast<int>(kPoisonByte), total_bytes);
  } else {
    check(cudaSetDevice(destination.device_idx()), "cudaSetDevice");
    check(cudaMemset(destination.data(), static_cast<int>(kPoisonByte), total_bytes), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaMemset");
  }
  if (spec.kind == StoreKind::load) {
    const Expectation want = expectation_of(spec, layout, nullptr);
    check(cudaSetDevice(stream.device_idx()), "cudaSetDevice");
    fill_kernel<<<spec.num_producers, 256, 0, stream.get()>>>(destination.data(), want);
    check(cudaGetLastError(), "fill kernel");
  }
}

VerifyResult verify_destination(const Buffer& destination, std::uint64_t, const BurstSpec& spec,
                                const Stream&, const PayloadLayout& layout,
                                const std::vector<std::uint32_t>& row_order, char* counter) {
  const bool host = destination.place() == Buffer::Place::pinned_host;
  Buffer order_on_device;
  if (!host && spec.layout.rows == Layout::Rows::random) {
    order_on_device = Buffer(Buffer::Place::device, destination.device_idx(), row_order.size() * 4);
    check(cudaMemcpy(order_on_device.data(), row_order.data(), row_order.size() * 4,
                     cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
  const Expectation want =
      expectation_of(spec, layout, host ? row_order.data() : order_on_device.as<std::uint32_t>());
  VerifyResult result;
  result.num_checked =
      static_cast<std::uint64_t>(spec.num_producers) *
      (static_cast<std::uint64_t>(layout.num_slices) * spec.bytes / 4 + want.num_guard_words());
  if (spec.kind == StoreKind::load) return result;
  if (host) {
    result.num_wrong = count_wrong_on_host(destination.data(), want, spec.num_producers);
    return result;
  }
  check(cudaSetDevice(destination.device_idx()), "cudaSetDevice");
  check(cudaMemset(counter, 0, 8), "cudaMemset");
  verify_kernel<<<dim3(spec.num_producers, layout.num_slices), 256>>>(
      destination.data(), want, reinterpret_cast<unsigned long long*>(counter));
  check(cudaGetLastError(), "verify kernel");
  unsigned long long wrong = 0;
  check(cudaMemcpy(&wrong, counter, 8, cudaMemcpyDeviceToHost), "cudaMemcpy");
  result.num_wrong = wrong;
  return result;
}

void fill_random(char* data, std::size_t bytes, std::uint32_t seed, const Stream& stream) {
  check(cudaSetDevice(stream.device_idx()), "cudaSetDevice");
  fill_random_kernel<<<512, 256, 0, stream.get()>>>(reinterpret_cast<std::uint32_t*>(data),
                                                    bytes / 4, seed);
  check(cudaGetLastError(), "fill kernel");
  stream.synchronize();
}

}  // namespace xstage::probing
