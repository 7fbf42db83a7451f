// What a grouped GEMM may be asked for. Pure; the launch is in grouped_gemm.cu.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "moe/gemm_shape.hpp"
#include "moe/grouped_gemm.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCategory::usage, "grouped_gemm: " + message);
}

void check_multiple(const char* name, std::int64_t value, std::int64_t unit, std::int64_t max) {
  if (value < unit || value > max || value % unit != 0) {
    refuse(std::string(name) + " is " + std::to_string(value) + ": legal are multiples of " +
           std::to_string(unit) + " in " + std::to_string(unit) + ".." + std::to_string(max));
  }
}

void check_pointer(const char* name, const void* pointer, std::uintptr_t alignment) {
  if (pointer == nullptr) refuse(std::string(name) + " is null");
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (address % alignment != 0) {
    refuse(std::string(name) + " is at " + std::to_string(address) +
           ", which is not a multiple of " + std::to_string(alignment) + " bytes");
  }
}

void check_scales(const char* name, const float* scales, const char* stride_name,
                  std::int64_t stride, std::int64_t pool_rows) {
  check_pointer(name, scales, 16);
  if (stride < pool_rows || stride % 4 != 0) {
    refuse(std::string(stride_name) + " is " + std::to_string(stride) +
           ": legal are multiples of 4 from pool_rows = " + std::to_string(pool_rows) + " on");
  }
}

}  // namespace

void validate(const GroupedGemm& g) {
  constexpr std::int64_t kMaxSize = std::int64_t{1} << 20;
  constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max() / 64 * 64;
  constexpr std::int64_t kMaxExperts = 1 << 14;
  if (g.type != GemmType::bf16 && g.type != GemmType::fp8) refuse("type: legal bf16, fp8");
  if (g.output != GemmOutput::plain && g.output != GemmOutput::swiglu) {
    refuse("output: legal plain, swiglu");
  }
  if (g.num_experts < 1 || g.num_experts > kMaxExperts) {
    refuse("num_experts is " + std::to_string(g.num_experts) + ": legal 1.." +
           std::to_string(kMaxExperts));
  }
  const bool is_swiglu = g.output == GemmOutput::swiglu;
  check_multiple("n", g.n, is_swiglu ? 128 : 64, kMaxSize);
  check_multiple("k", g.k, 64, kMaxSize);
  if (g.pool_rows == 0) return;
  check_multiple("pool_rows", g.pool_rows, kRowAlign, kMaxRows);
  // Tasks are counted in 32 bits: each expert may have a tile of rows that is not full.
  const std::int64_t row_tiles = g.pool_rows / kMaxFewRows + g.num_experts;
  if (row_tiles * ceil_div(g.n, kTileColumns) > std::numeric_limits<std::int32_t>::max() / 2) {
    refuse("pool_rows " + std::to_string(g.pool_rows) + " with n " + std::to_string(g.n) +
           " makes more than 2^30 tiles");
  }
  if (g.max_expert_rows < 0) {
    refuse("max_expert_rows is " + std::to_string(g.max_expert_rows) + ": legal 0 and up");
  }
  check_pointer("a", g.a, 16);
  check_pointer("w", g.w, 16);
  check_pointer("out", g.out, 16);
  check_pointer("first_row", g.first_row, 4);
  check_pointer("num_rows", g.num_rows, 4);
  check_pointer("workspace", g.workspace, 16);
  if (g.type == GemmType::fp8) {
    check_scales("a_scales", g.a_scales, "a_scale_stride", g.a_scale_stride, g.pool_rows);
    check_pointer("w_scales", g.w_scales, 4);
    if (is_swiglu) {
      check_scales("out_scales", g.out_scales, "out_scale_stride", g.out_scale_stride, g.pool_rows);
    }
  }
  if (!(g.clamp >= 0.f) || std::isinf(g.clamp)) {
    refuse("clamp is " + std::to_string(g.clamp) + ": legal are finite numbers from 0 on");
  }
  if (g.num_sms < 0) {
    refuse("num_sms is " + std::to_string(g.num_sms) + ": legal 0 (all) and up");
  }
}

std::size_t grouped_gemm_workspace_bytes() noexcept {
  return 16;
}

}  // namespace xstage::moe
