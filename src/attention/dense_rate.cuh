// What the tensor cores do when nothing holds them up: dense 16-bit products of operands that lie
// in shared memory, accumulated in registers. The upper bound that kernels of this GPU are judged
// by: it includes what power allows, and no loads.
#pragma once

#include <cstdint>

#include "device/hopper.cuh"
#include "device/wgmma.cuh"

namespace xstage::attention {

inline constexpr int kDenseColumns = 192;
inline constexpr int kDenseGroups = 2;  // warpgroups of 64 rows that share the columns
inline constexpr int kDenseStages = 4;
inline constexpr int kDenseThreads = 128 * kDenseGroups;

struct alignas(1024) DenseShared {
  alignas(1024) __nv_bfloat16 rows[kDenseStages][kDenseGroups][64 * 64];
  alignas(1024) __nv_bfloat16 columns[kDenseStages][kDenseColumns * 64];
};

// Multiply-adds count twice.
constexpr double dense_operations(int num_ctas, int num_steps) {
  return 2.0 * num_ctas * num_steps * kDenseGroups * 64 * kDenseColumns * 64;
}

// One CTA an SM; `num_steps` products of 64 x 192 x 64 a warpgroup. `sink` is never written.
__global__ void __launch_bounds__(kDenseThreads, 1)
    dense_rate_kernel(const __nv_bfloat16* source, int num_steps, float* sink) {
  extern __shared__ __align__(1024) char shared_bytes[];
  auto& shared = *reinterpret_cast<DenseShared*>(shared_bytes);
  auto* words = reinterpret_cast<std::uint32_t*>(&shared);
  for (unsigned i = threadIdx.x; i < sizeof(DenseShared) / 4; i += kDenseThreads) {
    words[i] = reinterpret_cast<const std::uint32_t*>(source)[i];
  }
  device::fence_async_shared();
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / 128;
  float sums[kDenseColumns / 2] = {};
  device::pin_registers(sums);
  for (int step = 0; step < num_steps; ++step) {
    const int stage = step % kDenseStages;
    const std::uint64_t a =
        device::k_major_descriptor(device::shared_address(shared.rows[stage][group]));
    const std::uint64_t b =
        device::k_major_descriptor(device::shared_address(shared.columns[stage]));
    device::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      device::Wgmma<__nv_bfloat16, kDenseColumns>::template ss<true>(
          sums, device::advance(a, k * 32), device::advance(b, k * 32));
    }
    device::wgmma_commit();
    device::wgmma_wait<1>();
  }
  device::wgmma_wait<0>();
  device::pin_registers(sums);
  float total = 0.f;
  for (const float x : sums) total += x;
  if (total == 1.2345e30f) *sink = total;
}

// One CTA an SM, where they stand in cycles and in nanoseconds.
struct ClockMark {
  long long cycles;
  unsigned long long ns;
};
__global__ void clock_mark_kernel(ClockMark* marks) {
  unsigned sm;
  unsigned long long ns;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  marks[sm] = {clock64(), ns};
}

// Values of a standard normal distribution, different for every seed.
template <typename Element>
__global__ void fill_normal_kernel(Element* data, std::int64_t count, std::uint64_t seed) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    std::uint64_t x = seed * 0x9E3779B97F4A7C15ull + static_cast<std::uint64_t>(i) + 1;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    x ^= x >> 31;
    const float u = (static_cast<float>(x >> 40) + 1.f) * 0x1p-24f;
    const float v = static_cast<float>(x & 0xFFFFFFu) * 0x1p-24f;
    data[i] = Element(sqrtf(-2.f * logf(u)) * cospif(2.f * v));
  }
}

}  // namespace xstage::attention
