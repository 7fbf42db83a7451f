// Exact grouped GEMM: on the GPU a warp an element, on the CPU plain loops.
#include <cuda_runtime.h>

#include <string>

#include "moe/reference_element.cuh"
#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

constexpr int kThreads = 256;

__device__ ReferenceValue warp_dot(const GroupedGemm& g, std::int64_t row, std::int64_t expert,
                                   std::int64_t column) {
  ReferenceValue sum;
  for (std::int64_t k = threadIdx.x % 32; k < g.k; k += 32) {
    const double product = row_element(g, row, k) * weight_element(g, expert, column, k);
    sum.value += product;
    sum.magnitude += fabs(product);
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    sum.value += __shfl_xor_sync(~0u, sum.value, lanes);
    sum.magnitude += __shfl_xor_sync(~0u, sum.magnitude, lanes);
  }
  return sum;
}

// Grid: columns, experts.
__global__ void reference_kernel(const GroupedGemm g, ReferenceValue* out, std::int32_t row_step) {
  const std::int64_t expert = blockIdx.y;
  const std::int64_t columns = g.output == GemmOutput::swiglu ? g.n / 2 : g.n;
  const std::int64_t column =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (column >= columns) return;
  const std::int64_t rows = g.num_rows[expert];
  for (std::int64_t i = 0; i < rows;) {
    const std::int64_t row = g.first_row[expert] + i;
    ReferenceValue value;
    if (g.output == GemmOutput::swiglu) {
      const std::int64_t gate = column / 8 * 16 + column % 8;
      value =
          swiglu_value(g, row, warp_dot(g, row, expert, gate), warp_dot(g, row, expert, gate + 8));
    } else {
      value = warp_dot(g, row, expert, column);
    }
    if (threadIdx.x % 32 == 0) out[row * columns + column] = value;
    const std::int64_t next = i + row_step;
    i = i < rows - 1 && next > rows - 1 ? rows - 1 : next;
  }
}

}  // namespace

void reference_on_gpu(const GroupedGemm& gemm, ReferenceValue* out, std::int32_t row_step,
                      Stream stream) {
  validate(gemm);
  if (gemm.pool_rows == 0) return;
  const std::int32_t columns = gemm.output == GemmOutput::swiglu ? gemm.n / 2 : gemm.n;
  const dim3 grid(static_cast<unsigned>((columns + kThreads / 32 - 1) / (kThreads / 32)),
                  static_cast<unsigned>(gemm.num_experts));
  reference_kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(gemm, out,
                                                                                    row_step);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) {
    throw Error(ErrorCategory::runtime,
                std::string("reference_on_gpu: launch failed: ") + cudaGetErrorString(status));
  }
}

namespace {

template <typename Sum>
ReferenceValue dot(const GroupedGemm& g, std::int64_t row, std::int64_t expert,
                   std::int64_t column) {
  Sum value = 0;
  Sum magnitude = 0;
  for (std::int64_t k = 0; k < g.k; ++k) {
    const Sum product = static_cast<Sum>(row_element(g, row, k)) *
                        static_cast<Sum>(weight_element(g, expert, column, k));
    value += product;
    magnitude += product < 0 ? -product : product;
  }
  return {static_cast<double>(value), static_cast<double>(magnitude)};
}

template <typename Sum>
void compute(const GroupedGemm& g, ReferenceValue* out) {
  const bool is_swiglu = g.output == GemmOutput::swiglu;
  const std::int64_t columns = is_swiglu ? g.n / 2 : g.n;
  for (std::int64_t expert = 0; expert < g.num_experts; ++expert) {
    for (std::int64_t i = 0; i < g.num_rows[expert]; ++i) {
      const std::int64_t row = g.first_row[expert] + i;
      for (std::int64_t column = 0; column < columns; ++column) {
        const std::int64_t gate = column / 8 * 16 + column % 8;
        out[row * columns + column] = is_swiglu
                                          ? swiglu_value(g, row, dot<Sum>(g, row, expert, gate),
                                                         dot<Sum>(g, row, expert, gate + 8))
                                          : dot<Sum>(g, row, expert, column);
      }
    }
  }
}

}  // namespace

void reference_on_cpu(const GroupedGemm& gemm, ReferenceValue* out, ReferenceSums sums) {
  validate(gemm);
  if (gemm.pool_rows == 0) return;
  sums == ReferenceSums::float64 ? compute<double>(gemm, out) : compute<float>(gemm, out);
}

}  // namespace xstage::moe
