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

// Maximum over this thread's columns of both its rows, by floating-point maxima.
template <int kCount>
__device__ __forceinline__ void column_max(const float (&s)[kCount], float (&max)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float even = fmaxf(s[2 * h], s[2 * h + 1]);
    float odd = fmaxf(s[4 + 2 * h], s[4 + 2 * h + 1]);
#pragma unroll
    for (int j = 2; j < kCount / 4; j += 2) {
      even = fmaxf(even, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
      odd = fmaxf(odd, fmaxf(s[4 * j + 4 + 2 * h], s[4 * j + 4 + 2 * h + 1]));
    }
    max[h] = fmaxf(even, odd);
  }
}

// The same by half as many instructions, but with a branch, which keeps the compiler from mixing
// the maxima with what follows. The bits of floats, as signed integers, are in the order of the
// floats unless both are negative: three-way integer maxima, which are half as many, give the
// maximum of a row that has a score >= 0. If a row has none, its maximum is the smallest of the
// bits as unsigned integers.
template <int kCount>
__device__ __forceinline__ void column_max_by_bits(const float (&s)[kCount], float (&max)[2]) {
  int largest[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const auto bits = [&](int j, int e) { return __float_as_int(s[4 * j + 2 * h + e]); };
    int even = ::max(bits(0, 0), bits(0, 1));
    int odd = ::max(bits(1, 0), bits(1, 1));
#pragma unroll
    for (int j = 2; j < kCount / 4; j += 2) {
      even = __vimax3_s32(even, bits(j, 0), bits(j, 1));
      odd = __vimax3_s32(odd, bits(j + 1, 0), bits(j + 1, 1));
    }
    largest[h] = ::max(even, odd);
  }
  if (__any_sync(0xffffffffu, (largest[0] | largest[1]) < 0)) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto bits = [&](int j, int e) { return __float_as_uint(s[4 * j + 2 * h + e]); };
      unsigned smallest = ::min(bits(0, 0), bits(0, 1));
#pragma unroll
      for (int j = 1; j < kCount / 4; ++j) {
        smallest = __vimin3_u32(smallest, bits(j, 0), bits(j, 1));
      }
      if (largest[h] < 0) largest[h] = static_cast<int>(smallest);
    }
  }
  max[0] = __int_as_float(largest[0]);
  max[1] = __int_as_float(largest[1]);
}

// How a row's running maximum follows its scores. The result does not depend on which reference the
// exponentials use; its rounding and the range of the sums do.
enum class MaxPolicy {
  // Every row for itself, as soon as it grows by more than keep_below.
  each_row,
  // The same; the maxima by column_max_by_bits().
  each_row_by_bits,
  // All rows of a warp together, when any of them grows by more than keep_below: until then a block
  // needs no exchange between lanes, no factors and no rescaling, one vote instead.
  whole_warp,
};

// Replaces scores by exponentials, updates the statistics, and gives the factors by which earlier
// outputs have to be multiplied; false: they are all 1 and not set. `kFirst`: there is nothing
// earlier. `kMayBeEmpty`: rows without any visible key exist (their maximum is -infinity).
template <bool kFirst, bool kMayBeEmpty, MaxPolicy kPolicy, int kCount>
__device__ __forceinline__ bool online_softmax(float (&s)[kCount], RowStats& stats,
                                               float (&factor)[2], float scale_log2,
                                               float keep_below) {
  static_assert(kCount % 8 == 0);
  float block_max[2];
  if constexpr (kPolicy == MaxPolicy::each_row_by_bits) {
    column_max_by_bits(s, block_max);
  } else {
    column_max(s, block_max);
  }
  constexpr bool kTogether = kPolicy == MaxPolicy::whole_warp && !kFirst;
  bool moved = !kFirst;
  if constexpr (kTogether) {
    moved = __any_sync(0xffffffffu, (block_max[0] - stats.max[0]) * scale_log2 > keep_below ||
                                        (block_max[1] - stats.max[1]) * scale_log2 > keep_below);
    if (moved) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float old_max = stats.max[h];
        const float new_max = fmaxf(row_max(block_max[h]), old_max);
        const float reference = kMayBeEmpty && new_max == -INFINITY ? 0.f : new_max;
        factor[h] = device::exp2_approx((old_max - reference) * scale_log2);
        stats.sum[h] *= factor[h];
        stats.max[h] = new_max;
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if constexpr (!kTogether) {
      float new_max = row_max(block_max[h]);
      if constexpr (!kFirst) {
        const float old_max = stats.max[h];
        new_max = (new_max - old_max) * scale_log2 > keep_below || !(old_max > -INFINITY)
                      ? fmaxf(new_max, old_max)
                      : old_max;
        const float reference = kMayBeEmpty && new_max == -INFINITY ? 0.f : new_max;
        factor[h] = device::exp2_approx((old_max - reference) * scale_log2);
      }
      stats.max[h] = new_max;
    }
    const float shift = kMayBeEmpty && stats.max[h] == -INFINITY ? 0.f : stats.max[h] * scale_log2;
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
    } else if constexpr (kTogether) {
      stats.sum[h] += sum_a + sum_b;
    } else {
      stats.sum[h] = fmaf(stats.sum[h], factor[h], sum_a + sum_b);
    }
  }
  return moved;
}

// Multiplies the output rows by the factors; nothing to do while no maximum of the warp has moved.
template <int kCount>
__device__ __forceinline__ void rescale(float (&o)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (__all_sync(0xffffffffu, factor[h] == 1.f)) continue;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      o[4 * j + 2 * h] *= factor[h];
      o[4 * j + 2 * h + 1] *= factor[h];
    }
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
