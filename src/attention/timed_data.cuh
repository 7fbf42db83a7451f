// Inputs of the exchange benchmark and the comparison of its outputs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace xstage::attention {

__device__ inline std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

// Standard normal numbers (Box-Muller on a hash of place and seed): constants would draw less power
// and clock higher than real data.
static __global__ void fill_normal_kernel(std::uint16_t* out, std::int64_t count, bool is_fp16,
                                          std::uint64_t seed) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const std::uint64_t bits = mix(static_cast<std::uint64_t>(i) + (seed << 40));
    const float u = (static_cast<float>(bits >> 40) + 0.5f) / 16777216.f;
    const float x = sqrtf(-2.f * __logf(u)) *
                    __cosf(static_cast<float>(bits & 0xffffff) / 16777216.f * 6.2831853f);
    out[i] =
        is_fp16 ? __half_as_ushort(__float2half(x)) : __bfloat16_as_ushort(__float2bfloat16(x));
  }
}

// Bytes of 16-bit elements that differ by more than rounding: two plans add up split tiles in
// different orders. Equal bits are equal, also where they are no number.
static __global__ void count_wrong_kernel(const std::uint16_t* a, const std::uint16_t* b,
                                          std::int64_t count, bool is_fp16, float relative,
                                          float absolute, unsigned long long* num_wrong) {
  const auto value = [is_fp16](std::uint16_t bits) {
    return is_fp16 ? __half2float(__ushort_as_half(bits))
                   : __bfloat162float(__ushort_as_bfloat16(bits));
  };
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  unsigned long long wrong = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    if (a[i] == b[i]) continue;
    const float x = value(a[i]);
    const float y = value(b[i]);
    const bool is_close = fabsf(x - y) <= relative * fmaxf(fabsf(x), fabsf(y)) + absolute;
    wrong += is_close ? 0 : 2;
  }
  if (wrong > 0) atomicAdd(num_wrong, wrong);
}

}  // namespace xstage::attention
