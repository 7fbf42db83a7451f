// Weight preparation: copies and quantisation, once per model. One warp a row, or one block of
// threads a 128x128 block.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <string>

#include "moe/gemm_math.cuh"
#include "moe/gemm_shape.hpp"
#include "moe/weights.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

constexpr int kThreads = 256;

void check_launch(const char* what) {
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return;
  throw Error(ErrorCategory::runtime,
              std::string(what) + ": launch failed: " + cudaGetErrorString(status));
}

void check_positive(const char* what, const char* name, std::int64_t value, std::int64_t unit) {
  if (value > 0 && value % unit == 0) return;
  throw Error(ErrorCategory::usage,
              std::string(what) + ": " + name + " is " + std::to_string(value) +
                  ": legal are positive multiples of " + std::to_string(unit));
}

// Rows of 16-byte units; destination rows in order.
__global__ void interleave_kernel(const uint4* source, uint4* destination, std::int64_t num_rows,
                                  std::int32_t intermediate, std::int32_t row_units) {
  const std::int64_t rows_per_expert = 2 * static_cast<std::int64_t>(intermediate);
  for (std::int64_t row = blockIdx.x; row < num_rows; row += gridDim.x) {
    const std::int64_t expert = row / rows_per_expert;
    const std::int64_t r = row % rows_per_expert;
    const std::int64_t from =
        expert * rows_per_expert + (r / 8 % 2) * intermediate + r / 16 * 8 + r % 8;
    for (int i = static_cast<int>(threadIdx.x); i < row_units; i += kThreads) {
      destination[row * row_units + i] = source[from * row_units + i];
    }
  }
}

__device__ float block_max(float value) {
  __shared__ float of_warp[kThreads / 32];
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, lanes));
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  for (const float other : of_warp) value = fmaxf(value, other);
  return value;
}

// One thread block a block of scales.
__global__ void quantise_weights_kernel(const __nv_bfloat16* source,
                                        __nv_fp8_storage_t* destination, float* scales,
                                        std::int32_t rows, std::int32_t k) {
  const std::int64_t row_blocks = (rows + kScaleBlock - 1) / kScaleBlock;
  const std::int64_t k_blocks = (k + kScaleBlock - 1) / kScaleBlock;
  const std::int64_t block = blockIdx.x;
  const std::int64_t matrix = block / (row_blocks * k_blocks);
  const int first_row = static_cast<int>(block / k_blocks % row_blocks) * kScaleBlock;
  const int first_k = static_cast<int>(block % k_blocks) * kScaleBlock;
  const int num_rows = min(kScaleBlock, rows - first_row);
  const int num_k = min(kScaleBlock, k - first_k);
  const std::int64_t base = (matrix * rows + first_row) * k + first_k;
  float amax = 0.f;
  for (int i = static_cast<int>(threadIdx.x); i < num_rows * num_k; i += kThreads) {
    const std::int64_t at = base + static_cast<std::int64_t>(i / num_k) * k + i % num_k;
    amax = fmaxf(amax, fabsf(__bfloat162float(source[at])));
  }
  const QuantScale scale = quant_scale(block_max(amax));
  if (threadIdx.x == 0) scales[block] = scale.scale;
  for (int i = static_cast<int>(threadIdx.x); i < num_rows * num_k; i += kThreads) {
    const std::int64_t at = base + static_cast<std::int64_t>(i / num_k) * k + i % num_k;
    destination[at] = __nv_cvt_float_to_fp8(__bfloat162float(source[at]) * scale.inverse,
                                            __NV_SATFINITE, __NV_E4M3);
  }
}

// One warp a row and block of scales.
__global__ void quantise_rows_kernel(const __nv_bfloat16* source, __nv_fp8_storage_t* destination,
                                     float* scales, std::int64_t scale_stride,
                                     std::int64_t num_rows, std::int32_t k) {
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row >= num_rows) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int first = 0; first < k; first += kScaleBlock) {
    float x[4] = {};
    float amax = 0.f;
    for (int i = 0; i < 4; ++i) {
      if (first + 32 * i + lane < k)
        x[i] = __bfloat162float(source[row * k + first + 32 * i + lane]);
      amax = fmaxf(amax, fabsf(x[i]));
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, lanes));
    }
    const QuantScale scale = quant_scale(amax);
    if (lane == 0) scales[first / kScaleBlock * scale_stride + row] = scale.scale;
    for (int i = 0; i < 4; ++i) {
      if (first + 32 * i + lane >= k) break;
      destination[row * k + first + 32 * i + lane] =
          __nv_cvt_float_to_fp8(x[i] * scale.inverse, __NV_SATFINITE, __NV_E4M3);
    }
  }
}

}  // namespace

void interleave_gate_up(const void* source, void* destination, std::int32_t num_experts,
                        std::int32_t intermediate, std::int32_t k, int element_bytes,
                        Stream stream) {
  constexpr const char* kWhat = "interleave_gate_up";
  check_positive(kWhat, "num_experts", num_experts, 1);
  check_positive(kWhat, "intermediate", intermediate, 64);
  check_positive(kWhat, "k", k, 64);
  if (element_bytes != 1 && element_bytes != 2) {
    throw Error(ErrorCategory::usage, "interleave_gate_up: element_bytes is " +
                                          std::to_string(element_bytes) + ": legal 1, 2");
  }
  const std::int64_t rows = 2 * static_cast<std::int64_t>(num_experts) * intermediate;
  const auto blocks = static_cast<unsigned>(rows < 65536 ? rows : 65536);
  interleave_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      static_cast<const uint4*>(source), static_cast<uint4*>(destination), rows, intermediate,
      k * element_bytes / 16);
  check_launch(kWhat);
}

void quantise_weights(const void* source, void* destination, float* scales,
                      std::int64_t num_matrices, std::int32_t rows, std::int32_t k, Stream stream) {
  constexpr const char* kWhat = "quantise_weights";
  check_positive(kWhat, "num_matrices", num_matrices, 1);
  check_positive(kWhat, "rows", rows, 64);
  check_positive(kWhat, "k", k, 64);
  const auto blocks =
      static_cast<unsigned>(num_matrices * ceil_div(rows, kScaleBlock) * ceil_div(k, kScaleBlock));
  quantise_weights_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      static_cast<const __nv_bfloat16*>(source), static_cast<__nv_fp8_storage_t*>(destination),
      scales, rows, k);
  check_launch(kWhat);
}

void quantise_rows(const void* source, void* destination, float* scales, std::int64_t scale_stride,
                   std::int64_t num_rows, std::int32_t k, Stream stream) {
  constexpr const char* kWhat = "quantise_rows";
  check_positive(kWhat, "k", k, 64);
  if (num_rows == 0) return;
  check_positive(kWhat, "num_rows", num_rows, 1);
  const auto blocks = static_cast<unsigned>(ceil_div(num_rows, kThreads / 32));
  quantise_rows_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      static_cast<const __nv_bfloat16*>(source), static_cast<__nv_fp8_storage_t*>(destination),
      scales, scale_stride, num_rows, k);
  check_launch(kWhat);
}

}  // namespace xstage::moe
