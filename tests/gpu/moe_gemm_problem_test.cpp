// What a grouped GEMM refuses, and that it says the legal values. Needs no GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "moe/gemm_shape.hpp"
#include "moe/grouped_gemm.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

// Nothing here is dereferenced.
template <typename T>
T* somewhere(std::uintptr_t address = 4096) {
  return reinterpret_cast<T*>(address);
}

GroupedGemm legal() {
  GroupedGemm g;
  g.type = GemmType::fp8;
  g.output = GemmOutput::swiglu;
  g.num_experts = 37;
  g.n = 2688;
  g.k = 1344;
  g.pool_rows = 640;
  g.a = somewhere<char>();
  g.a_scales = somewhere<float>();
  g.a_scale_stride = 640;
  g.w = somewhere<char>();
  g.w_scales = somewhere<float>();
  g.first_row = somewhere<std::int32_t>();
  g.num_rows = somewhere<std::int32_t>();
  g.out = somewhere<char>();
  g.out_scales = somewhere<float>();
  g.out_scale_stride = 644;
  g.workspace = somewhere<char>();
  return g;
}

struct Refusal {
  std::string name;
  std::function<void(GroupedGemm&)> spoil;
  std::string says;  // part of the message
};
void PrintTo(const Refusal& r, std::ostream* out) {
  *out << r.name;
}

class Refused : public ::testing::TestWithParam<Refusal> {};

TEST_P(Refused, NamesValueAndLegalOnes) {
  GroupedGemm g = legal();
  GetParam().spoil(g);
  try {
    validate(g);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::usage);
    EXPECT_NE(std::string(error.what()).find(GetParam().says), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Refused,
    ::testing::Values(
        Refusal{"experts", [](auto& g) { g.num_experts = 0; }, "num_experts is 0: legal 1.."},
        Refusal{"n", [](auto& g) { g.n = 2624; }, "n is 2624: legal are multiples of 128"},
        Refusal{"plain_n",
                [](auto& g) {
                  g.output = GemmOutput::plain;
                  g.n = 96;
                },
                "n is 96: legal are multiples of 64"},
        Refusal{"negative_n", [](auto& g) { g.n = -128; }, "n is -128"},
        Refusal{"k", [](auto& g) { g.k = 1345; }, "k is 1345: legal are multiples of 64"},
        Refusal{"no_k", [](auto& g) { g.k = 0; }, "k is 0"},
        Refusal{"pool", [](auto& g) { g.pool_rows = 650; }, "pool_rows is 650"},
        Refusal{"tiles",
                [](auto& g) {
                  g.pool_rows = std::int64_t{1} << 30;
                  g.a_scale_stride = g.out_scale_stride = g.pool_rows;
                  g.n = 1 << 20;
                },
                "tiles"},
        Refusal{"no_a", [](auto& g) { g.a = nullptr; }, "a is null"},
        Refusal{"odd_a", [](auto& g) { g.a = somewhere<char>(4104); },
                "a is at 4104, which is not a multiple of 16"},
        Refusal{"no_scales", [](auto& g) { g.a_scales = nullptr; }, "a_scales is null"},
        Refusal{"stride", [](auto& g) { g.a_scale_stride = 636; },
                "a_scale_stride is 636: legal are multiples of 4 from pool_rows = 640"},
        Refusal{"out_stride", [](auto& g) { g.out_scale_stride = 642; }, "out_scale_stride is 642"},
        Refusal{"no_weight_scales", [](auto& g) { g.w_scales = nullptr; }, "w_scales is null"},
        Refusal{"no_rows", [](auto& g) { g.num_rows = nullptr; }, "num_rows is null"},
        Refusal{"no_workspace", [](auto& g) { g.workspace = nullptr; }, "workspace is null"},
        Refusal{"clamp", [](auto& g) { g.clamp = -1.f; }, "clamp is -1"},
        Refusal{"nan", [](auto& g) { g.clamp = std::nanf(""); }, "clamp is nan"},
        Refusal{"sms", [](auto& g) { g.num_sms = -1; }, "num_sms is -1: legal 0 (all) and up"},
        Refusal{"expected", [](auto& g) { g.max_expert_rows = -1; }, "max_expert_rows is -1"}),
    [](const auto& param) { return param.param.name; });

TEST(Accepted, WhatTheHeaderPromises) {
  EXPECT_NO_THROW(validate(legal()));
  for (std::int32_t size = 64; size <= 8192; size += 64) {
    GroupedGemm g = legal();
    g.k = size;
    g.n = 2 * size;
    EXPECT_NO_THROW(validate(g));
    g.output = GemmOutput::plain;
    g.n = size;
    g.out_scales = nullptr;
    g.out_scale_stride = 0;
    EXPECT_NO_THROW(validate(g));
    g.type = GemmType::bf16;
    g.a_scales = g.w_scales = nullptr;
    EXPECT_NO_THROW(validate(g));
  }
}

// Without rows nothing is looked at: an empty pool may have no memory.
TEST(Accepted, EmptyPool) {
  GroupedGemm g;
  g.num_experts = 1;
  g.n = 64;
  g.k = 64;
  EXPECT_NO_THROW(validate(g));
}

}  // namespace
}  // namespace xstage::moe
