// Exact attention in float64, twice: on the CPU for small shapes, and slowly on the GPU for chosen
// rows of large ones. Both read the 16-bit inputs through the same views as the operator.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "xstage/tensor.hpp"

namespace xstage::test {

struct ReferenceArgs {
  std::int64_t num_keys = 0;  // valid ones
  bool causal = false;
  double scale = 1;
};

__host__ __device__ inline double element(const TensorView& t, std::int64_t batch, std::int64_t row,
                                          std::int64_t head, std::int64_t d) {
  const std::int64_t at =
      batch * t.batch_stride + row * t.row_stride + head * t.head_stride + d * t.element_stride;
  return t.dtype == DataType::bf16
             ? static_cast<double>(__bfloat162float(static_cast<const __nv_bfloat16*>(t.data)[at]))
             : static_cast<double>(__half2float(static_cast<const __half*>(t.data)[at]));
}

// Keys that a query row sees.
__host__ __device__ inline std::int64_t num_visible(const ReferenceArgs& args, std::int64_t row,
                                                    std::int64_t num_query_rows) {
  if (!args.causal) return args.num_keys;
  const std::int64_t visible = row + 1 + args.num_keys - num_query_rows;
  return visible < 0 ? 0 : visible < args.num_keys ? visible : args.num_keys;
}

// One row: out[head_dim], returns the log-sum-exp. Views of host memory.
inline double reference_row(const TensorView& q, const TensorView& k, const TensorView& v,
                            const ReferenceArgs& args, std::int64_t batch, std::int64_t row,
                            std::int64_t head, double* out) {
  const std::int64_t kv_head = head / (q.num_heads / k.num_heads);
  const std::int64_t visible = num_visible(args, row, q.num_rows);
  std::vector<double> scores(static_cast<std::size_t>(visible));
  double max = -std::numeric_limits<double>::infinity();
  for (std::int64_t j = 0; j < visible; ++j) {
    double dot = 0;
    for (std::int64_t d = 0; d < q.head_dim; ++d) {
      dot += element(q, batch, row, head, d) * element(k, batch, j, kv_head, d);
    }
    scores[static_cast<std::size_t>(j)] = dot * args.scale;
    max = std::fmax(max, dot * args.scale);
  }
  for (std::int64_t d = 0; d < q.head_dim; ++d) out[d] = 0;
  double sum = 0;
  for (std::int64_t j = 0; j < visible; ++j) {
    const double weight = std::exp(scores[static_cast<std::size_t>(j)] - max);
    sum += weight;
    for (std::int64_t d = 0; d < q.head_dim; ++d)
      out[d] += weight * element(v, batch, j, kv_head, d);
  }
  for (std::int64_t d = 0; d < q.head_dim; ++d) out[d] = sum > 0 ? out[d] / sum : 0;
  return max + std::log(sum);
}

struct RowId {
  std::int32_t batch;
  std::int32_t row;
  std::int32_t head;
};

// One block a row, head_dim threads; `scores` holds gridDim.x x num_keys doubles. Views of GPU
// memory.
__global__ void reference_rows_kernel(TensorView q, TensorView k, TensorView v, ReferenceArgs args,
                                      const RowId* rows, double* scores, double* out, double* lse) {
  __shared__ double partial[128];
  const RowId id = rows[blockIdx.x];
  const std::int64_t kv_head = id.head / (q.num_heads / k.num_heads);
  const std::int64_t visible = num_visible(args, id.row, q.num_rows);
  double* row_scores = scores + static_cast<std::int64_t>(blockIdx.x) * args.num_keys;
  double max = -INFINITY;
  for (std::int64_t j = threadIdx.x; j < visible; j += blockDim.x) {
    double dot = 0;
    for (std::int64_t d = 0; d < q.head_dim; ++d) {
      dot += element(q, id.batch, id.row, id.head, d) * element(k, id.batch, j, kv_head, d);
    }
    row_scores[j] = dot * args.scale;
    max = fmax(max, dot * args.scale);
  }
  const auto reduce = [&](double value, auto combine) {
    partial[threadIdx.x] = value;
    __syncthreads();
    for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
      if (threadIdx.x < step) {
        partial[threadIdx.x] = combine(partial[threadIdx.x], partial[threadIdx.x + step]);
      }
      __syncthreads();
    }
    const double result = partial[0];
    __syncthreads();
    return result;
  };
  max = reduce(max, [](double a, double b) { return fmax(a, b); });
  double sum = 0;
  for (std::int64_t j = threadIdx.x; j < visible; j += blockDim.x) {
    row_scores[j] = exp(row_scores[j] - max);
    sum += row_scores[j];
  }
  sum = reduce(sum, [](double a, double b) { return a + b; });
  double result = 0;
  for (std::int64_t j = 0; j < visible; ++j) {
    result += row_scores[j] * element(v, id.batch, j, kv_head, threadIdx.x);
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum > 0 ? result / sum : 0;
  if (threadIdx.x == 0) lse[blockIdx.x] = max + log(sum);
}

}  // namespace xstage::test
