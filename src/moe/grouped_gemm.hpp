// Grouped GEMM of the MoE layer on Hopper, host side: out[rows of expert e] = epilogue(A[rows] *
// W_e^T). One launch on a stream, no host synchronisation, capturable in a CUDA graph; the same
// inputs give the same bits, whatever the number of SMs, the order of the tasks or the operands'
// roles. Numerics: docs/moe.md.
//
// Rows are pooled expert after expert. Expert e owns rows first_row[e] .. first_row[e] +
// num_rows[e]; first_row[e] is a multiple of 64 and nobody else uses the rows up to the next
// multiple of 64 behind its last one: they are read, and their results written, whatever they hold.
#pragma once

#include <cstddef>
#include <cstdint>

#include "xstage/tensor.hpp"

namespace xstage::moe {

inline constexpr int kRowAlign = 64;     // of an expert's first row
inline constexpr int kScaleBlock = 128;  // elements along K (and weight rows) that share a scale

enum class GemmType : std::uint8_t {
  bf16,  // bf16 operands, fp32 sums
  fp8,   // e4m3 operands with float32 block scales, fp32 sums
};

enum class GemmOutput : std::uint8_t {
  plain,   // bf16 [rows, n]
  swiglu,  // [rows, n / 2], bf16 (of bf16) or e4m3 with a scale per 128 columns (of fp8)
};

enum class GemmShape : std::uint8_t {
  automatic,  // from max_expert_rows
  many_rows,  // rows are the 64-row operand of the tensor cores: compute-bound calls
  few_rows,   // weights are: calls whose time is that of reading the weights once
};

struct GroupedGemm {
  GemmType type = GemmType::bf16;
  GemmOutput output = GemmOutput::plain;
  GemmShape shape = GemmShape::automatic;
  std::int32_t num_experts = 0;
  std::int32_t n = 0;  // rows of a weight matrix, a multiple of 64; swiglu: 2I, of 128
  std::int32_t k = 0;  // a multiple of 64
  // Rows of the pool: capacity of A and of the output, a multiple of 64.
  std::int64_t pool_rows = 0;
  // What `automatic` goes by: rows of an expert that are expected at most. 0: not known, many.
  std::int64_t max_expert_rows = 0;

  // A: [pool_rows, k], contiguous. Scales (fp8): element (row, k-block) at [k-block *
  // a_scale_stride + row]; the stride is a multiple of 4 and at least pool_rows.
  const void* a = nullptr;
  const float* a_scales = nullptr;
  std::int64_t a_scale_stride = 0;
  // W: [num_experts, n, k], contiguous; for swiglu prepared by interleave_gate_up(). Scales (fp8):
  // plain [num_experts, ceil(n/128), ceil(k/128)], swiglu [num_experts, 2, ceil(n/2/128),
  // ceil(k/128)], gate before up.
  const void* w = nullptr;
  const float* w_scales = nullptr;

  const std::int32_t* first_row = nullptr;  // [num_experts], GPU memory
  const std::int32_t* num_rows = nullptr;   // [num_experts], GPU memory

  // Rows of the pool without an expert are not written.
  void* out = nullptr;
  // fp8 with swiglu: as a_scales.
  float* out_scales = nullptr;
  std::int64_t out_scale_stride = 0;
  // swiglu: silu(min(gate, clamp)) * clamp(up, -clamp, clamp) * weight of the row.
  const float* row_weights = nullptr;  // [pool_rows]; null: 1
  float clamp = 0.f;                   // 0: none

  // grouped_gemm_workspace_bytes() bytes, zeroed once; a call leaves them zero. Calls that may run
  // at the same time need one each.
  void* workspace = nullptr;
  std::int32_t num_sms = 0;  // thread blocks, at most one an SM; 0: all SMs
};

[[nodiscard]] std::size_t grouped_gemm_workspace_bytes() noexcept;

// Loads the kernels of a type into the current context. A first call does so too, but loading may
// wait for running kernels, and these for other ranks of the same process.
void load_grouped_gemm(GemmType type);

// Throws Error(usage) naming the field, its value and what is legal; looks at nothing but the
// struct.
void validate(const GroupedGemm& gemm);

// Throws what validate() does, Error(not_possible) without sm_90, Error(runtime).
void grouped_gemm(const GroupedGemm& gemm, Stream stream);

}  // namespace xstage::moe
