// The grouped GEMM behind a C call, for bench/moe.py: raw pointers, one struct, the error's
// category as result and its text in the caller's buffer.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>

#include "moe/grouped_gemm.hpp"
#include "moe/weights.hpp"
#include "xstage/error.hpp"

extern "C" {

struct XstageGemmCall {
  const void* a;
  const float* a_scales;
  const void* w;
  const float* w_scales;
  const std::int32_t* first_row;
  const std::int32_t* num_rows;
  void* out;
  float* out_scales;
  const float* row_weights;
  void* workspace;
  void* stream;
  std::int64_t pool_rows;
  std::int32_t num_experts;
  std::int32_t n;
  std::int32_t k;
  std::int32_t is_fp8;
  std::int32_t is_swiglu;
  std::int32_t shape;  // 0 automatic, 1 many rows, 2 few rows
  std::int32_t max_expert_rows;
  std::int32_t num_sms;
  float clamp;
  char error[256];
};

int xstage_grouped_gemm(XstageGemmCall* call);
// source: bf16 [matrices, rows, k]; swiglu weights: matrices = 2 * experts, rows = I.
int xstage_quantise_weights(XstageGemmCall* call, const void* source, void* destination,
                            float* scales, std::int64_t matrices, std::int32_t rows,
                            std::int32_t k);
int xstage_quantise_rows(XstageGemmCall* call, const void* source, void* destination, float* scales,
                         std::int64_t stride, std::int64_t rows, std::int32_t k);
int xstage_interleave(XstageGemmCall* call, const void* source, void* destination,
                      std::int32_t experts, std::int32_t intermediate, std::int32_t k,
                      std::int32_t element_bytes);
}

namespace {

// Runs `work`; 0 or the category of what it threw.
template <typename Work>
int guarded(XstageGemmCall* call, Work work) {
  const auto note = [&](const char* text) {
    const std::size_t length = std::min(std::strlen(text), sizeof(call->error) - 1);
    std::memcpy(call->error, text, length);
    call->error[length] = '\0';
  };
  try {
    work();
    note("");
    return 0;
  } catch (const xstage::Error& error) {
    note(error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    note(error.what());
    return static_cast<int>(xstage::ErrorCategory::runtime);
  }
}

}  // namespace

int xstage_grouped_gemm(XstageGemmCall* call) {
  return guarded(call, [&] {
    using namespace xstage::moe;
    GroupedGemm g;
    g.type = call->is_fp8 != 0 ? GemmType::fp8 : GemmType::bf16;
    g.output = call->is_swiglu != 0 ? GemmOutput::swiglu : GemmOutput::plain;
    g.shape = static_cast<GemmShape>(call->shape);
    g.num_experts = call->num_experts;
    g.n = call->n;
    g.k = call->k;
    g.pool_rows = call->pool_rows;
    g.max_expert_rows = call->max_expert_rows;
    g.a = call->a;
    g.a_scales = call->a_scales;
    g.a_scale_stride = call->pool_rows;
    g.w = call->w;
    g.w_scales = call->w_scales;
    g.first_row = call->first_row;
    g.num_rows = call->num_rows;
    g.out = call->out;
    g.out_scales = call->out_scales;
    g.out_scale_stride = call->pool_rows;
    g.row_weights = call->row_weights;
    g.clamp = call->clamp;
    g.workspace = call->workspace;
    g.num_sms = call->num_sms;
    grouped_gemm(g, {call->stream});
  });
}

int xstage_quantise_weights(XstageGemmCall* call, const void* source, void* destination,
                            float* scales, std::int64_t matrices, std::int32_t rows,
                            std::int32_t k) {
  return guarded(call, [&] {
    xstage::moe::quantise_weights(source, destination, scales, matrices, rows, k, {call->stream});
  });
}

int xstage_quantise_rows(XstageGemmCall* call, const void* source, void* destination, float* scales,
                         std::int64_t stride, std::int64_t rows, std::int32_t k) {
  return guarded(call, [&] {
    xstage::moe::quantise_rows(source, destination, scales, stride, rows, k, {call->stream});
  });
}

int xstage_interleave(XstageGemmCall* call, const void* source, void* destination,
                      std::int32_t experts, std::int32_t intermediate, std::int32_t k,
                      std::int32_t element_bytes) {
  return guarded(call, [&] {
    xstage::moe::interleave_gate_up(source, destination, experts, intermediate, k, element_bytes,
                                    {call->stream});
  });
}
