// Weight preparation, once per model: what grouped_gemm() wants its weights to be. Asynchronous on
// the stream; source and destination must not overlap.
#pragma once

#include <cstdint>

#include "moe/grouped_gemm.hpp"

namespace xstage::moe {

// Rows [gate 0 .. I-1, up 0 .. I-1] of every expert -> gate 0-7, up 0-7, gate 8-15, ... so that one
// thread of the kernel owns a gate and its up. `element_bytes` 1 or 2; I and k multiples of 64.
// Scales of 128x128 blocks need no change where gate and up were quantised apart:
// [num_experts, 2, ceil(I/128), ceil(k/128)].
void interleave_gate_up(const void* source, void* destination, std::int32_t num_experts,
                        std::int32_t intermediate, std::int32_t k, int element_bytes,
                        Stream stream);

// bf16 [num_matrices, rows, k] -> e4m3 of the same shape, and scales [num_matrices, ceil(rows/128),
// ceil(k/128)]: amax / 448 of a block, 0 for a block of zeros, whose elements are 0.
// W1 of gate and up: num_matrices = 2 * num_experts, rows = I.
void quantise_weights(const void* source, void* destination, float* scales,
                      std::int64_t num_matrices, std::int32_t rows, std::int32_t k, Stream stream);

// bf16 [num_rows, k] -> e4m3 and scales of 1x128 at [k-block * scale_stride + row].
void quantise_rows(const void* source, void* destination, float* scales, std::int64_t scale_stride,
                   std::int64_t num_rows, std::int32_t k, Stream stream);

}  // namespace xstage::moe
