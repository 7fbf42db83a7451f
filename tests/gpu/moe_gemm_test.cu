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
// With a clamp many elements are the same few numbers, and their rounding does not average out: it
// may be half a unit of the last place of all of them, 2^-8 and 2^-4. The rest is for the sums.
double relative_bound(const Case& c) {
  if (c.clamp > 0.f && c.output == GemmOutput::swiglu) {
    return c.type == GemmType::bf16 ? 1. / 256 + 1e-4 : 1. / 16 + 5e-4;
  }
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

// What weight preparation makes, element by element.
std::vector<__nv_bfloat16> random_values(std::size_t count, std::uint64_t seed) {
  std::vector<__nv_bfloat16> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto x = static_cast<float>(hash(i + seed * 1000003) % 20001) / 10000.f - 1.f;
    values[i] = __float2bfloat16(x * std::exp2(static_cast<float>(hash(i / 64) % 9) - 4.f));
  }
  return values;
}

TEST(MoeWeights, GateAndUpAlternateInGroupsOfEight) {
  REQUIRE_HOPPER();
  constexpr std::int32_t kExperts = 3;
  constexpr std::int32_t kI = 192;
  constexpr std::int32_t kK = 64;
  for (const int bytes : {1, 2}) {
    const std::size_t row_bytes = static_cast<std::size_t>(kK) * static_cast<std::size_t>(bytes);
    std::vector<std::uint8_t> source(kExperts * 2 * kI * row_bytes);
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::uint8_t>(hash(i));
    const Buffer<std::uint8_t> from(source);
    const Buffer<std::uint8_t> to(source.size());
    moe::interleave_gate_up(from.data(), to.data(), kExperts, kI, kK, bytes, {});
    const auto result = to.host();
    for (std::size_t e = 0; e < kExperts; ++e) {
      for (std::size_t i = 0; i < kI; ++i) {
        for (std::size_t which = 0; which < 2; ++which) {  // gate, up
          const auto* expected = &source[(e * 2 * kI + which * kI + i) * row_bytes];
          const auto* actual = &result[(e * 2 * kI + i / 8 * 16 + which * 8 + i % 8) * row_bytes];
          ASSERT_EQ(std::memcmp(expected, actual, row_bytes), 0) << e << ' ' << which << ' ' << i;
        }
      }
    }
  }
}

float from_e4m3(std::uint8_t bits) {
  __nv_fp8_e4m3 x;
  x.__x = bits;
  return static_cast<float>(x);
}

// A block of `source` beside what became of it.
void expect_quantised(const std::vector<float>& source, const std::vector<float>& result,
                      float scale) {
  float amax = 0.f;
  for (const float x : source) amax = std::max(amax, std::fabs(x));
  ASSERT_EQ(scale, amax / 448.f);
  for (std::size_t i = 0; i < source.size(); ++i) {
    ASSERT_FALSE(std::isnan(result[i]));
    // 3 bits of fraction; below 2^-6 steps of 2^-9.
    ASSERT_LE(std::fabs(source[i] - result[i] * scale),
              std::fabs(source[i]) / 16.f * 1.001f + scale / 1024.f * 1.001f);
  }
}

TEST(MoeWeights, QuantisationIsThatOfItsBlocks) {
  REQUIRE_HOPPER();
  constexpr std::int32_t kMatrices = 2;
  constexpr std::int32_t kRows = 192;
  constexpr std::int32_t kK = 320;
  constexpr std::int32_t kStride = 200;
  auto source = random_values(static_cast<std::size_t>(kMatrices) * kRows * kK, 3);
  // A block of zeros, and a row of zeros.
  for (std::int32_t r = 128; r < kRows; ++r) {
    for (std::int32_t k = 256; k < kK; ++k) source[r * kK + k] = __float2bfloat16(0.f);
  }
  for (std::int32_t k = 0; k < kK; ++k) source[5 * kK + k] = __float2bfloat16(0.f);
  const Buffer<__nv_bfloat16> from(source);
  const Buffer<std::uint8_t> to(source.size());
  const Buffer<float> scales(kMatrices * 2 * 3);
  moe::quantise_weights(from.data(), to.data(), scales.data(), kMatrices, kRows, kK, {});
  const Buffer<std::uint8_t> to_rows(source.size());
  const Buffer<float> row_scales(3 * kStride);
  moe::quantise_rows(from.data(), to_rows.data(), row_scales.data(), kStride, kRows, kK, {});
  const auto blocks = to.host();
  const auto rows = to_rows.host();
  const auto block_scales = scales.host();
  const auto scale_of_row = row_scales.host();
  std::vector<float> expected;
  std::vector<float> actual;
  const auto collect = [&](const std::vector<std::uint8_t>& values, std::size_t at) {
    expected.push_back(__bfloat162float(source[at]));
    actual.push_back(from_e4m3(values[at]));
  };
  for (std::int32_t matrix = 0; matrix < kMatrices; ++matrix) {
    for (std::int32_t block = 0; block < 6; ++block) {
      expected.clear();
      actual.clear();
      for (std::int32_t r = block / 3 * 128; r < std::min(kRows, block / 3 * 128 + 128); ++r) {
        for (std::int32_t k = block % 3 * 128; k < std::min(kK, block % 3 * 128 + 128); ++k) {
          collect(blocks, static_cast<std::size_t>((matrix * kRows + r) * kK + k));
        }
      }
      expect_quantised(expected, actual,
                       block_scales[static_cast<std::size_t>(matrix * 6 + block)]);
    }
  }
  for (std::int32_t r = 0; r < kRows; ++r) {
    for (std::int32_t block = 0; block < 3; ++block) {
      expected.clear();
      actual.clear();
      for (std::int32_t k = block * 128; k < std::min(kK, block * 128 + 128); ++k) {
        collect(rows, static_cast<std::size_t>(r * kK + k));
      }
      expect_quantised(expected, actual,
                       scale_of_row[static_cast<std::size_t>(block * kStride + r)]);
    }
  }
}

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
