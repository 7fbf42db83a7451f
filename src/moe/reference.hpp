// Grouped GEMM without rounding: what the operands say, summed in float64. Slow and obvious; the
// tests compare the kernels with it. Takes the same problem as grouped_gemm(), weights prepared.
#pragma once

#include <cstdint>

#include "moe/grouped_gemm.hpp"

namespace xstage::moe {

struct ReferenceValue {
  double value = 0;  // before it is rounded to the output's type
  // Sum of the magnitudes of all products (swiglu: propagated to first order): an error of the
  // relative size e in every product and sum moves the value by about e * magnitude.
  double magnitude = 0;
};

enum class ReferenceSums : std::uint8_t { float64, float32 };

// out: [pool_rows, columns of the output]; elements of rows without an expert are left alone.
// Pointers of the problem are to host memory.
void reference_on_cpu(const GroupedGemm& gemm, ReferenceValue* out,
                      ReferenceSums sums = ReferenceSums::float64);

// The same in float64 on the GPU, for every `row_step`-th row of an expert and its last one.
void reference_on_gpu(const GroupedGemm& gemm, ReferenceValue* out, std::int32_t row_step,
                      Stream stream);

}  // namespace xstage::moe
