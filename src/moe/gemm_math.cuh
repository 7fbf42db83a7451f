// Arithmetic of the epilogues, element by element: one definition for every kernel, so that all of
// them give the same bits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "device/hopper.cuh"

namespace xstage::moe {

inline constexpr float kMaxE4m3 = 448.f;
// Groups whose largest magnitude is below become zeros: no quotient of what follows overflows.
inline constexpr float kLeastAmax = 1e-30f;

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// Two e4m3, the first in the low byte; beyond the largest finite number it is that.
__device__ __forceinline__ std::uint16_t pack_e4m3(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

// silu(gate) * up * weight, in this order, every operation rounded to fp32. clamp 0: none.
__device__ __forceinline__ float swiglu(float gate, float up, float clamp, float weight) {
  if (clamp > 0.f) {
    gate = fminf(gate, clamp);
    up = fminf(fmaxf(up, -clamp), clamp);
  }
  const float e = xstage::device::exp2_approx(__fmul_rn(gate, -1.4426950408889634f));
  const float silu = __fdividef(gate, __fadd_rn(1.f, e));
  return __fmul_rn(__fmul_rn(silu, up), weight);
}

struct QuantScale {
  float scale;    // what an element is multiplied with when it is read
  float inverse;  // when it is written
};
__device__ __forceinline__ QuantScale quant_scale(float amax) {
  if (!(amax >= kLeastAmax)) return {0.f, 0.f};
  return {__fdiv_rn(amax, kMaxE4m3), __fdiv_rn(kMaxE4m3, amax)};
}

}  // namespace xstage::moe
