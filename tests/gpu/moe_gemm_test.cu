// The grouped GEMM on a GPU against float64: dtypes, epilogues, both shapes of the main loop, every
// kind of row count, sizes in steps of 64; the same bits whatever the shape, the number of SMs and
// the repetition; graph replay with changing rows.
#include <cmath>
#include <iostream>
#include <random>

#include "gpu/moe_gemm_case.cuh"
#include "xstage/error.hpp"

namespace xstage::test {
namespace {

using moe::GemmOutput;
using moe::GemmShape;
using moe::GemmType;

bool has_hopper() {
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
         major == 9;
}
#define REQUIRE_HOPPER() \
  if (!has_hopper()) GTEST_SKIP() << "no sm_90 GPU here"

// Error of all elements together: rounding to bf16 is 1.7e-3 of normal numbers, to e4m3 2.6e-2.
double relative_bound(const Case& c) {
  if (c.type == GemmType::bf16) return 2e-3;
  return c.output == GemmOutput::plain ? 2.2e-3 : 3e-2;
}

void expect_exact_enough(const Case& c, std::uint64_t seed = 1, std::int32_t row_step = 1) {
  SCOPED_TRACE(c.name);
  GemmRun run(c, seed);
  for (const GemmShape shape : {GemmShape::many_rows, GemmShape::few_rows}) {
    SCOPED_TRACE(shape == GemmShape::many_rows ? "many rows" : "few rows");
    run.poison();
    run.run(shape, c.num_sms);
    const cudaError_t status = cudaDeviceSynchronize();
    if (status != cudaSuccess) {
      std::cerr << "fatal: " << c.name << ": " << cudaGetErrorString(status) << '\n';
      std::exit(1);  // nothing works in this process any more
    }
    const Comparison result = run.compare(row_step);
    EXPECT_EQ(result.num_nan, 0u);
    EXPECT_LE(result.worst, 1.0);
    EXPECT_LE(result.relative(), relative_bound(c));
    EXPECT_TRUE(run.surroundings_are_untouched());
    EXPECT_TRUE(run.workspace_is_zero());
    if (::testing::Test::HasFailure()) return;
    ::testing::Test::RecordProperty("relative_error", std::to_string(result.relative()));
  }
}

std::vector<std::int32_t> same_rows(int experts, std::int32_t rows) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(experts), rows);
}

// Around every boundary of a tile.
std::vector<std::int32_t> odd_rows(int experts) {
  static constexpr std::int32_t kRows[] = {0,  1,  8,  15,  16,  17,  32, 33,
                                           63, 64, 65, 127, 128, 129, 0,  200};
  std::vector<std::int32_t> rows;
  for (int e = 0; e < experts; ++e) rows.push_back(kRows[e * 5 % 16]);
  return rows;
}

struct Kind {
  GemmType type;
  GemmOutput output;
};
class MoeGemm : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override { REQUIRE_HOPPER(); }
  static Case make(const std::string& name, const std::vector<std::int32_t>& rows, std::int32_t n,
                   std::int32_t k) {
    Case c;
    c.name = name;
    c.type = GetParam().type;
    c.output = GetParam().output;
    c.rows = rows;
    c.n = n;
    c.k = k;
    return c;
  }
};

TEST_P(MoeGemm, OneTile) {
  expect_exact_enough(make("1 x 128 rows", {128}, 256, 128));
  expect_exact_enough(make("1 x 64 rows", {64}, 256, 128));
  expect_exact_enough(make("1 row", {1}, 256, 128));
  expect_exact_enough(make("long K", {128}, 256, 4096));
}

TEST_P(MoeGemm, NumbersOfExperts) {
  for (const int experts : {1, 3, 36, 37, 48, 128, 192}) {
    expect_exact_enough(make(std::to_string(experts) + " experts", odd_rows(experts), 512, 256));
  }
}

TEST_P(MoeGemm, RowCounts) {
  expect_exact_enough(make("no rows", same_rows(5, 0), 256, 256));
  std::vector<std::int32_t> rows = same_rows(64, 0);
  rows[41] = 3000;
  expect_exact_enough(make("one expert has all", rows, 768, 320), 2, 7);
  rows[0] = 1;
  rows[63] = 1;
  expect_exact_enough(make("first and last have one", rows, 256, 192), 3, 7);
  expect_exact_enough(make("many sections", {2500, 70, 4200}, 512, 128), 4, 31);
}

TEST_P(MoeGemm, Sizes) {
  const std::int32_t unit = GetParam().output == GemmOutput::swiglu ? 128 : 64;
  for (const std::int32_t n : {1, 2, 3, 4, 5, 7, 21, 42, 64}) {
    expect_exact_enough(make("n " + std::to_string(n * unit), {70, 0, 200}, n * unit, 192));
  }
  for (const std::int32_t k : {64, 128, 192, 256, 320, 1344, 2048, 4160, 8192}) {
    expect_exact_enough(make("k " + std::to_string(k), {70, 0, 130}, 384, k), 5);
  }
  expect_exact_enough(make("8192 x 8192", {130, 40}, 8192, 8192), 6, 13);
  expect_exact_enough(make("2688 x 2048", odd_rows(16), 2688, 2048), 7, 13);
}

TEST_P(MoeGemm, RandomProblems) {
  const std::uint64_t seed = std::random_device{}();
  std::cout << "seed " << seed << '\n';
  std::mt19937_64 random(seed);
  const auto below = [&](std::int32_t end) { return static_cast<std::int32_t>(random() % end); };
  for (int i = 0; i < 12; ++i) {
    std::vector<std::int32_t> rows(static_cast<std::size_t>(1 + below(40)));
    for (auto& r : rows) r = below(3) == 0 ? 0 : below(below(2) == 0 ? 40 : 300);
    Case c = make("random " + std::to_string(i), rows, 128 * (1 + below(12)), 64 * (1 + below(20)));
    c.clamp = below(2) == 0 ? 0.f : 0.5f;
    c.is_weighted = below(2) == 0;
    c.num_sms = below(2) == 0 ? 0 : 1 + below(132);
    expect_exact_enough(c, random() % 1000);
  }
}

TEST_P(MoeGemm, SameBitsHoweverComputed) {
  const Case c = make("bits", odd_rows(48), 1152, 1344);
  GemmRun run(c);
  run.run(GemmShape::many_rows, 0);
  const auto expected = run.bits();
  for (const GemmShape shape : {GemmShape::many_rows, GemmShape::few_rows}) {
    for (const std::int32_t num_sms : {0, 2, 7, 131}) {
      run.poison();
      run.run(shape, num_sms);
      EXPECT_TRUE(run.bits() == expected)
          << (shape == GemmShape::many_rows ? "many" : "few") << " rows, " << num_sms << " SMs";
    }
  }
  for (int i = 0; i < 20; ++i) {
    run.poison();
    run.run();
    ASSERT_TRUE(run.bits() == expected) << "repetition " << i;
  }
}

TEST_P(MoeGemm, GraphReplayFollowsTheRows) {
  std::vector<std::int32_t> rows = odd_rows(37);
  GemmRun run(make("graph", rows, 512, 320));
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  run.run(stream);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  const std::uint64_t seed = std::random_device{}();
  std::cout << "seed " << seed << '\n';
  std::mt19937_64 random(seed);
  for (int i = 0; i < 50; ++i) {
    std::vector<std::int32_t> fewer = rows;
    for (auto& r : fewer) r = static_cast<std::int32_t>(random() % static_cast<unsigned>(r + 1));
    run.set_rows(fewer);
    run.poison();
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    const auto replayed = run.bits();
    run.poison();
    run.run();
    ASSERT_TRUE(run.bits() == replayed) << "replay " << i;
    ASSERT_TRUE(run.workspace_is_zero());
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

INSTANTIATE_TEST_SUITE_P(Kinds, MoeGemm,
                         ::testing::Values(Kind{GemmType::bf16, GemmOutput::plain},
                                           Kind{GemmType::bf16, GemmOutput::swiglu},
                                           Kind{GemmType::fp8, GemmOutput::plain},
                                           Kind{GemmType::fp8, GemmOutput::swiglu}),
                         [](const auto& param) {
                           return std::string(param.param.type == GemmType::fp8 ? "fp8" : "bf16") +
                                  (param.param.output == GemmOutput::plain ? "Plain" : "Swiglu");
                         });

// The reference on the CPU and the one on the GPU are two programs.
TEST(MoeReference, CpuAndGpuAgree) {
  REQUIRE_HOPPER();
  for (const GemmType type : {GemmType::bf16, GemmType::fp8}) {
    for (const GemmOutput output : {GemmOutput::plain, GemmOutput::swiglu}) {
      Case c;
      c.type = type;
      c.output = output;
      c.rows = {3, 0, 66};
      c.n = 384;
      c.k = 192;
      c.clamp = 1.f;
      GemmRun run(c);
      EXPECT_TRUE(run.cpu_reference_agrees());
    }
  }
}

}  // namespace
}  // namespace xstage::test
