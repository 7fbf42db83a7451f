// Online softmax of one consumer warpgroup, on the accumulator fragments of WGMMA: a thread holds
// two rows (h = 0, 1) and the columns 8j + 2(lane % 4) + {0, 1} of each.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>

#include "device/hopper.cuh"

namespace xstage::attention {

__device__ __forceinline__ std::uint32_t pack_pair(float low, float high, __nv_bfloat16) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ std::uint32_t pack_pair(float low, float high, __half) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Maximum and sum over the four lanes that share a row.
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Running maximum (of raw scores) and sum (of 2^((s - max) * scale), this thread's columns only).
struct RowStats {
  float max[2];
  float sum[2];
};

// Replaces scores by 2^((s - max) * scale_log2), updates the statistics, and gives the factors by
// which earlier sums and outputs have to be multiplied. `kMayBeEmpty`: rows without any visible
// key exist (their maximum is -infinity).
template <bool kFirst, bool kMayBeEmpty, int kCount>
__device__ __forceinline__ void online_softmax(float (&s)[kCount], RowStats& stats,
                                               float (&factor)[2], float scale_log2,
                                               float keep_below) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float max_a = fmaxf(s[2 * h], s[2 * h + 4]);
    float max_b = fmaxf(s[2 * h + 1], s[2 * h + 5]);
#pragma unroll
    for (int j = 2; j < kCount / 4; ++j) {
      if (j % 2 == 0) {
        max_a = fmaxf(max_a, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
      } else {
        max_b = fmaxf(max_b, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
      }
    }
    float new_max = row_max(fmaxf(max_a, max_b));
    if constexpr (!kFirst) {
      // The maximum moves only when it grows by more than keep_below; the result does not depend
      // on which reference the exponentials use, only its rounding does.
      const float old_max = stats.max[h];
      new_max = (new_max - old_max) * scale_log2 > keep_below || !(old_max > -INFINITY)
                    ? fmaxf(new_max, old_max)
                    : old_max;
      const float reference = kMayBeEmpty && new_max == -INFINITY ? 0.f : new_max;
      factor[h] = device::exp2_approx((old_max - reference) * scale_log2);
    }
    stats.max[h] = new_max;
    const float shift = kMayBeEmpty && new_max == -INFINITY ? 0.f : new_max * scale_log2;
    float sum_a = 0.f;
    float sum_b = 0.f;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      float& a = s[4 * j + 2 * h];
      float& b = s[4 * j + 2 * h + 1];
      a = device::exp2_approx(fmaf(a, scale_log2, -shift));
      b = device::exp2_approx(fmaf(b, scale_log2, -shift));
      sum_a += a;
      sum_b += b;
    }
    if constexpr (kFirst) {
      stats.sum[h] = sum_a + sum_b;
    } else {
      stats.sum[h] = fmaf(stats.sum[h], factor[h], sum_a + sum_b);
    }
  }
}

// Multiplies the output rows by the factors; nothing to do while no maximum of the warp has moved.
template <int kCount>
__device__ __forceinline__ void rescale(float (&o)[kCount], const float (&factor)[2]) {
  if (__all_sync(0xffffffffu, factor[0] == 1.f && factor[1] == 1.f)) return;
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    o[4 * j] *= factor[0];
    o[4 * j + 1] *= factor[0];
    o[4 * j + 2] *= factor[1];
    o[4 * j + 3] *= factor[1];
  }
}

// Accumulators -> register operand of the second product.
template <typename Element, int kCount>
__device__ __forceinline__ void to_operand(std::uint32_t (&p)[kCount / 2],
                                           const float (&s)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) p[i] = pack_pair(s[2 * i], s[2 * i + 1], Element{});
}

// Sets scores of hidden keys to -infinity. `num_visible[h]`: keys of this block that row h sees.
template <int kCount>
__device__ __forceinline__ void mask(float (&s)[kCount], const int (&num_visible)[2],
                                     int lane_column) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int limit = num_visible[h] - lane_column;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e >= limit) s[4 * j + 2 * h + e] = -INFINITY;
      }
    }
  }
}

}  // namespace xstage::attention
