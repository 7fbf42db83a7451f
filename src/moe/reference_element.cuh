// One element of the exact grouped GEMM, host and device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstdint>

#include "moe/grouped_gemm.hpp"
#include "moe/reference.hpp"

namespace xstage::moe {

// A and W as numbers.
__host__ __device__ inline double operand(const void* data, GemmType type, std::int64_t at) {
  if (type == GemmType::bf16) {
    return static_cast<double>(__bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]));
  }
  __nv_fp8_e4m3 value;
  value.__x = static_cast<const __nv_fp8_storage_t*>(data)[at];
  return static_cast<double>(static_cast<float>(value));
}

__host__ __device__ inline double row_element(const GroupedGemm& g, std::int64_t row,
                                              std::int64_t k) {
  const double x = operand(g.a, g.type, row * g.k + k);
  if (g.type == GemmType::bf16) return x;
  return x * static_cast<double>(g.a_scales[k / kScaleBlock * g.a_scale_stride + row]);
}

// `column` counts rows of the prepared matrix.
__host__ __device__ inline double weight_element(const GroupedGemm& g, std::int64_t expert,
                                                 std::int64_t column, std::int64_t k) {
  const double x = operand(g.w, g.type, (expert * g.n + column) * g.k + k);
  if (g.type == GemmType::bf16) return x;
  const std::int64_t k_blocks = (g.k + kScaleBlock - 1) / kScaleBlock;
  std::int64_t row = 0;
  if (g.output == GemmOutput::swiglu) {
    const std::int64_t row_blocks = (g.n / 2 + kScaleBlock - 1) / kScaleBlock;
    row = (expert * 2 + column / 8 % 2) * row_blocks + column / (2 * kScaleBlock);
  } else {
    const std::int64_t row_blocks = (g.n + kScaleBlock - 1) / kScaleBlock;
    row = expert * row_blocks + column / kScaleBlock;
  }
  return x * static_cast<double>(g.w_scales[row * k_blocks + k / kScaleBlock]);
}

// From sums and magnitudes of gate and up.
__host__ __device__ inline ReferenceValue swiglu_value(const GroupedGemm& g, std::int64_t row,
                                                       ReferenceValue gate, ReferenceValue up) {
  const auto clamp = static_cast<double>(g.clamp);
  if (clamp > 0) {
    gate.value = fmin(gate.value, clamp);
    up.value = fmin(fmax(up.value, -clamp), clamp);
  }
  const double weight = g.row_weights == nullptr ? 1.0 : static_cast<double>(g.row_weights[row]);
  const double silu = gate.value / (1 + exp(-gate.value));
  // The slope of silu is below 1.1.
  return {silu * up.value * weight,
          fabs(weight) * (1.1 * gate.magnitude * fabs(up.value) + fabs(silu) * up.magnitude)};
}

}  // namespace xstage::moe
