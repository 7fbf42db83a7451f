// The attention forward operator on a GPU against exact references: every shape, layout and option
// that it promises, poisoned outputs, guard bytes, determinism, graph replay.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gpu/attention_reference.cuh"
#include "xstage/attention.hpp"
#include "xstage/error.hpp"

namespace xstage::test {
namespace {

void ok(cudaError_t status) {
  ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status);
}

bool has_hopper() {
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
         major == 9;
}

#define REQUIRE_HOPPER() \
  if (!has_hopper()) GTEST_SKIP() << "no sm_90 GPU here"

int num_sms() {
  int value = 0;
  cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0);
  return value;
}

// GPU memory, freed at the end of the scope.
template <typename T>
class Buffer {
 public:
  explicit Buffer(std::size_t count) : count_(count) {
    if (cudaMalloc(&data_, std::max<std::size_t>(count, 1) * sizeof(T)) != cudaSuccess)
      data_ = nullptr;
  }
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) {
    cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data() const { return data_; }
  void fill(int byte) { cudaMemset(data_, byte, count_ * sizeof(T)); }
  std::vector<T> host() const {
    std::vector<T> values(count_);
    cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

// Standard normal numbers from a counter: Box-Muller on a hash.
__global__ void fill_normal(std::uint16_t* out, std::int64_t count, bool is_fp16,
                            std::uint32_t seed, float spread) {
  const auto hash = [](std::uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
  };
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const std::uint64_t bits =
        hash(static_cast<std::uint64_t>(i) + (static_cast<std::uint64_t>(seed) << 40));
    const float u = (static_cast<float>(bits >> 40) + 0.5f) / 16777216.f;
    const float angle = static_cast<float>(bits & 0xffffff) / 16777216.f * 6.2831853f;
    const float x = spread * sqrtf(-2.f * logf(u)) * cosf(angle);
    if (is_fp16) {
      reinterpret_cast<__half*>(out)[i] = __float2half(x);
    } else {
      reinterpret_cast<__nv_bfloat16*>(out)[i] = __float2bfloat16(x);
    }
  }
}

enum class Layout { bshd, bhsd, padded };

struct Case {
  std::string name;
  std::int64_t batches, rows, keys, heads, kv_heads, head_dim;
  DataType dtype = DataType::bf16;
  AttentionOptions options = {};
  Layout layout = Layout::bshd;
  float spread = 1.f;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

// Elements of one tensor, with kGuard untouched ones behind it.
constexpr std::int64_t kGuard = 1024;

TensorView make_view(const Case& c, void* data, std::int64_t rows, std::int64_t heads) {
  if (c.layout == Layout::bhsd)
    return TensorView::bhsd(data, c.dtype, c.batches, rows, heads, c.head_dim);
  TensorView view = TensorView::bshd(data, c.dtype, c.batches, rows, heads, c.head_dim);
  if (c.layout == Layout::padded) {  // as if q, k and v lay beside each other in one tensor
    view.row_stride = 3 * heads * c.head_dim + 8;
    view.batch_stride = rows * view.row_stride + 64;
  }
  return view;
}

std::int64_t extent(const TensorView& v) {
  return (v.num_batches - 1) * v.batch_stride + (v.num_rows - 1) * v.row_stride +
         (v.num_heads - 1) * v.head_stride + v.head_dim;
}

class Call {
 public:
  explicit Call(const Case& c, std::uint32_t seed = 1)
      : c_(c),
        q_(size(c, c.rows, c.heads)),
        k_(size(c, c.keys, c.kv_heads)),
        v_(size(c, c.keys, c.kv_heads)),
        out_(size(c, c.rows, c.heads)),
        lse_(static_cast<std::size_t>(c.batches * c.heads * c.rows)) {
    options_ = c.options;
    options_.lse = lse_.data();
    fill(q_, c.rows, c.heads, seed);
    fill(k_, c.keys, c.kv_heads, seed + 1);
    fill(v_, c.keys, c.kv_heads, seed + 2);
    workspace_bytes_ = attention_workspace_bytes(q(), k(), v(), options_, num_sms());
    workspace_ = std::make_unique<Buffer<char>>(workspace_bytes_);
    workspace_->fill(0);
  }

  TensorView q() const { return make_view(c_, q_.data(), c_.rows, c_.heads); }
  TensorView k() const { return make_view(c_, k_.data(), c_.keys, c_.kv_heads); }
  TensorView v() const { return make_view(c_, v_.data(), c_.keys, c_.kv_heads); }
  TensorView out() const { return make_view(c_, out_.data(), c_.rows, c_.heads); }

  void poison() {
    out_.fill(0xff);
    lse_.fill(0xff);
  }
  void forward(cudaStream_t stream = nullptr) {
    attention_forward(q(), k(), v(), out(), options_, {workspace_->data(), workspace_bytes_},
                      {stream});
  }
  std::vector<std::uint16_t> output() const { return out_.host(); }
  std::vector<float> lse() const { return lse_.host(); }
  bool is_split() const { return workspace_bytes_ > 0 && !c_.options.causal; }
  Buffer<std::uint16_t>& values() { return v_; }
  Buffer<std::uint16_t>& keys() { return k_; }

  ReferenceArgs reference_args() const {
    ReferenceArgs args;
    args.num_keys = c_.options.kv_len < 0 ? c_.keys : c_.options.kv_len;
    args.causal = c_.options.causal;
    args.scale =
        c_.options.scale > 0 ? c_.options.scale : 1 / std::sqrt(static_cast<double>(c_.head_dim));
    return args;
  }

 private:
  static std::size_t size(const Case& c, std::int64_t rows, std::int64_t heads) {
    return static_cast<std::size_t>(extent(make_view(c, nullptr, rows, heads)) + kGuard);
  }
  void fill(Buffer<std::uint16_t>& buffer, std::int64_t rows, std::int64_t heads,
            std::uint32_t seed) {
    buffer.fill(0xff);
    fill_normal<<<1024, 256>>>(buffer.data(), extent(make_view(c_, nullptr, rows, heads)),
                               c_.dtype == DataType::fp16, seed, c_.spread);
  }

  Case c_;
  Buffer<std::uint16_t> q_, k_, v_, out_;
  Buffer<float> lse_;
  std::unique_ptr<Buffer<char>> workspace_;
  std::size_t workspace_bytes_ = 0;
  AttentionOptions options_;
};

// Probabilities and outputs are rounded to 16 bits; on long rows the two add up to a little more.
double bound_of(const Case& c) {
  if (c.dtype == DataType::fp16) return 3e-4;
  return c.keys > 8192 ? 2.4e-3 : 2.3e-3;
}

// Scores have a standard deviation of about this; the log-sum-exp carries their rounding.
double score_spread(const Case& c) {
  const double root = std::sqrt(static_cast<double>(c.head_dim));
  return c.spread * c.spread * root * (c.options.scale > 0 ? c.options.scale : 1 / root);
}

struct Errors {
  double relative = 0;  // Frobenius norm of the difference over that of the reference
  double lse = 0;       // largest absolute difference
};

// Compares chosen rows with the exact GPU reference.
Errors compare(Call& run, const Case& c, const std::vector<RowId>& ids) {
  const ReferenceArgs args = run.reference_args();
  const std::size_t dim = static_cast<std::size_t>(c.head_dim);
  Buffer<RowId> rows(ids);
  Buffer<double> scores(ids.size() *
                        static_cast<std::size_t>(std::max<std::int64_t>(args.num_keys, 1)));
  Buffer<double> expected(ids.size() * dim);
  Buffer<double> expected_lse(ids.size());
  reference_rows_kernel<<<static_cast<unsigned>(ids.size()), static_cast<unsigned>(dim)>>>(
      run.q(), run.k(), run.v(), args, rows.data(), scores.data(), expected.data(),
      expected_lse.data());
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto reference = expected.host();
  const auto reference_lse = expected_lse.host();
  auto actual = run.output();
  const auto actual_lse = run.lse();
  TensorView view = run.out();
  view.data = actual.data();
  Errors errors;
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (std::size_t d = 0; d < dim; ++d) {
      const double x =
          element(view, ids[i].batch, ids[i].row, ids[i].head, static_cast<std::int64_t>(d));
      const double delta = x - reference[i * dim + d];
      difference += delta * delta;
      norm += reference[i * dim + d] * reference[i * dim + d];
    }
    const double lse = actual_lse[static_cast<std::size_t>(
        (ids[i].batch * c.heads + ids[i].head) * c.rows + ids[i].row)];
    if (std::isinf(reference_lse[i])) {
      EXPECT_EQ(lse, reference_lse[i]) << "row " << ids[i].row;
    } else {
      errors.lse =
          std::fmax(errors.lse, std::isnan(lse) ? INFINITY : std::fabs(lse - reference_lse[i]));
    }
  }
  errors.relative = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  return errors;
}

std::vector<RowId> choose_rows(const Case& c, std::size_t limit) {
  std::vector<RowId> ids;
  const std::int64_t total = c.batches * c.heads * c.rows;
  const auto push = [&](std::int64_t i) {
    ids.push_back({static_cast<std::int32_t>(i / (c.heads * c.rows)),
                   static_cast<std::int32_t>(i % c.rows),
                   static_cast<std::int32_t>(i / c.rows % c.heads)});
  };
  if (total <= static_cast<std::int64_t>(limit)) {
    for (std::int64_t i = 0; i < total; ++i) push(i);
    return ids;
  }
  std::mt19937_64 random(7);
  for (std::size_t i = 0; i < limit; ++i)
    push(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(total)));
  push(0);
  push(total - 1);
  return ids;
}

// No poisoned element is left where output belongs, every other byte is still poisoned.
void expect_written_exactly(const Case& c, Call& run) {
  const auto bits = run.output();
  std::vector<char> belongs(bits.size(), 0);
  const TensorView view = run.out();
  for (std::int64_t b = 0; b < c.batches; ++b) {
    for (std::int64_t s = 0; s < c.rows; ++s) {
      for (std::int64_t h = 0; h < c.heads; ++h) {
        const auto at = static_cast<std::size_t>(b * view.batch_stride + s * view.row_stride +
                                                 h * view.head_stride);
        std::memset(belongs.data() + at, 1, static_cast<std::size_t>(c.head_dim));
      }
    }
  }
  std::size_t missing = 0;
  std::size_t stray = 0;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    missing += belongs[i] != 0 && bits[i] == 0xffff ? 1 : 0;
    stray += belongs[i] == 0 && bits[i] != 0xffff ? 1 : 0;
  }
  EXPECT_EQ(missing, 0u) << "elements never written";
  EXPECT_EQ(stray, 0u) << "elements written outside the output";
}

std::vector<Case> cases() {
  const auto causal = [] {
    AttentionOptions o;
    o.causal = true;
    return o;
  };
  const auto valid = [](std::int64_t n, bool is_causal = false) {
    AttentionOptions o;
    o.kv_len = n;
    o.causal = is_causal;
    return o;
  };
  const auto plain = [] {
    AttentionOptions o;
    o.split_last_wave = false;
    return o;
  };
  const auto threshold = [](float powers, bool is_causal = false) {
    AttentionOptions o;
    o.rescale_threshold = powers;
    o.causal = is_causal;
    return o;
  };
  const auto scaled = [] {
    AttentionOptions o;
    o.scale = 0.3f;
    return o;
  };
  const auto few_sms = [] {
    AttentionOptions o;
    o.num_sms = 7;
    return o;
  };
  const DataType bf16 = DataType::bf16;
  const DataType fp16 = DataType::fp16;
  return {
      {"one_tile", 1, 128, 160, 1, 1, 128, bf16, plain()},
      {"one_key", 1, 128, 1, 1, 1, 128},
      {"one_row", 2, 1, 300, 3, 3, 128},
      {"two_blocks", 1, 128, 320, 1, 1, 128, bf16, plain()},
      {"three_blocks_ragged", 1, 128, 333, 1, 1, 128, bf16, plain()},
      {"ragged_1000", 2, 1000, 1000, 4, 4, 128},
      {"ragged_777_heads_3", 1, 777, 777, 3, 3, 128},
      {"cross_512_keys", 1, 1500, 512, 5, 5, 128},
      {"head_major", 2, 640, 640, 3, 3, 128, bf16, {}, Layout::bhsd},
      {"padded_strides", 2, 333, 450, 4, 2, 128, bf16, {}, Layout::padded},
      {"gqa_4", 1, 1104, 1104, 16, 4, 128},
      {"mqa", 2, 200, 900, 6, 1, 128},
      {"valid_700_of_1024", 2, 1024, 1024, 4, 4, 128, bf16, valid(700)},
      {"no_keys", 1, 200, 64, 2, 2, 128, bf16, valid(0)},
      {"scale", 1, 512, 512, 2, 2, 128, bf16, scaled()},
      {"large_scores", 1, 512, 2048, 2, 2, 128, bf16, {}, Layout::bshd, 4.f},
      {"threshold_8", 1, 512, 2048, 2, 2, 128, bf16, threshold(8), Layout::bshd, 4.f},
      {"few_sms", 2, 1000, 1000, 4, 4, 128, bf16, few_sms()},
      {"split_4608_12", 1, 4608, 4608, 12, 12, 128},
      {"not_split_4608_12", 1, 4608, 4608, 12, 12, 128, bf16, plain()},
      {"full_4608_24", 1, 4608, 4608, 24, 24, 128},
      {"long_16384_4", 1, 16384, 16384, 4, 4, 128},
      {"causal_1000", 2, 1000, 1000, 3, 3, 128, bf16, causal()},
      {"causal_4096", 1, 4096, 4096, 8, 8, 128, bf16, causal()},
      {"causal_more_keys", 1, 300, 1000, 3, 3, 128, bf16, causal()},
      {"causal_more_rows", 1, 1000, 300, 3, 3, 128, bf16, causal()},
      {"causal_valid", 1, 640, 1024, 3, 3, 128, bf16, valid(700, true)},
      {"causal_gqa", 2, 1111, 1111, 8, 2, 128, bf16, causal()},
      {"causal_threshold_8", 1, 2048, 2048, 3, 3, 128, bf16, threshold(8, true), Layout::bshd, 4.f},
      {"causal_threshold_0", 1, 2048, 2048, 3, 3, 128, bf16, threshold(0, true)},
      {"causal_large_scores", 2, 1000, 1500, 3, 3, 128, bf16, causal(), Layout::bshd, 16.f},
      {"causal_long_16384", 1, 16384, 16384, 2, 2, 128, bf16, causal()},
      {"d64_causal_17776", 1, 17776, 17776, 2, 2, 64, bf16, causal()},
      {"fp16", 1, 1000, 1000, 4, 4, 128, fp16},
      {"fp16_causal", 1, 1000, 1000, 4, 4, 128, fp16, causal()},
      {"d64", 1, 4429, 4429, 6, 6, 64},
      {"d64_head_major", 2, 500, 700, 3, 3, 64, bf16, {}, Layout::bhsd},
      {"d64_causal", 1, 2000, 2000, 4, 4, 64, bf16, causal()},
      {"d64_fp16", 1, 1777, 1777, 5, 5, 64, fp16},
      {"d64_fp16_causal", 2, 333, 333, 5, 5, 64, fp16, causal()},
  };
}

class AttentionForward : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionForward, MatchesTheExactReference) {
  REQUIRE_HOPPER();
  const Case c = GetParam();
  Call run(c);
  run.poison();
  run.forward();
  ok(cudaDeviceSynchronize());
  const Errors errors = compare(run, c, choose_rows(c, 2000));
  EXPECT_LE(errors.relative, bound_of(c));
  EXPECT_LE(errors.lse, 2e-6 * std::fmax(1., score_spread(c)));
  RecordProperty("relative_error", std::to_string(errors.relative));
  std::printf("  %-22s relative error %.2e, lse %.1e%s\n", c.name.c_str(), errors.relative,
              errors.lse, run.is_split() ? ", split" : "");
  expect_written_exactly(c, run);

  // The same call gives the same bits, whatever the timing.
  const auto first = run.output();
  const auto first_lse = run.lse();
  for (int i = 0; i < 3; ++i) {
    run.poison();
    run.forward();
  }
  ok(cudaDeviceSynchronize());
  EXPECT_EQ(first, run.output());
  const auto again = run.lse();
  EXPECT_EQ(std::memcmp(first_lse.data(), again.data(), again.size() * sizeof(float)), 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionForward, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

TEST(AttentionReference, GpuAgreesWithCpu) {
  REQUIRE_HOPPER();
  AttentionOptions options;
  options.causal = true;
  const Case c{"cpu", 2, 90, 130, 4, 2, 128, DataType::bf16, options};
  Call run(c);
  const auto ids = choose_rows(c, 1000);
  Buffer<RowId> rows(ids);
  Buffer<double> scores(ids.size() * 130);
  Buffer<double> expected(ids.size() * 128);
  Buffer<double> expected_lse(ids.size());
  reference_rows_kernel<<<static_cast<unsigned>(ids.size()), 128>>>(
      run.q(), run.k(), run.v(), run.reference_args(), rows.data(), scores.data(), expected.data(),
      expected_lse.data());
  ok(cudaDeviceSynchronize());
  const auto on_gpu = expected.host();
  const auto lse_on_gpu = expected_lse.host();
  std::vector<std::uint16_t> host[3];
  TensorView views[3] = {run.q(), run.k(), run.v()};
  for (int i = 0; i < 3; ++i) {
    host[i].resize(static_cast<std::size_t>(extent(views[i])));
    cudaMemcpy(host[i].data(), views[i].data, host[i].size() * 2, cudaMemcpyDeviceToHost);
    views[i].data = host[i].data();
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    double row[128];
    const double lse = reference_row(views[0], views[1], views[2], run.reference_args(),
                                     ids[i].batch, ids[i].row, ids[i].head, row);
    ASSERT_NEAR(lse, lse_on_gpu[i], 1e-10);
    for (int d = 0; d < 128; ++d)
      ASSERT_NEAR(row[d], on_gpu[i * 128 + static_cast<std::size_t>(d)], 1e-10);
  }
}

// What lies behind the valid keys must not matter, not even if it is not a number.
TEST(AttentionForwardCall, IgnoresWhatLiesBehindTheValidKeys) {
  REQUIRE_HOPPER();
  AttentionOptions options;
  options.kv_len = 500;
  const Case c{"garbage", 1, 256, 1024, 2, 2, 128, DataType::bf16, options};
  Call run(c);
  run.forward();
  ok(cudaDeviceSynchronize());
  const auto clean = run.output();
  const std::size_t first = 500 * 2 * 128;
  cudaMemset(run.keys().data() + first, 0xff, 524 * 2 * 128 * 2);
  cudaMemset(run.values().data() + first, 0xff, 524 * 2 * 128 * 2);
  run.forward();
  ok(cudaDeviceSynchronize());
  EXPECT_EQ(clean, run.output());
}

TEST(AttentionForwardCall, CanBeCapturedAndReplayed) {
  REQUIRE_HOPPER();
  const Case c{"graph", 1, 4608, 4608, 2, 2, 128};
  Call run(c);
  ASSERT_TRUE(run.is_split());
  run.poison();
  run.forward();
  ok(cudaDeviceSynchronize());
  const auto expected = run.output();
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ok(cudaStreamCreate(&stream));
  ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  run.forward(stream);
  ok(cudaStreamEndCapture(stream, &graph));
  ok(cudaGraphInstantiate(&executable, graph, 0));
  run.poison();
  ok(cudaDeviceSynchronize());
  for (int i = 0; i < 100; ++i) ok(cudaGraphLaunch(executable, stream));
  ok(cudaStreamSynchronize(stream));
  EXPECT_EQ(expected, run.output());
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// One workspace serves calls of different shapes on one stream.
TEST(AttentionForwardCall, SharesAWorkspaceBetweenShapes) {
  REQUIRE_HOPPER();
  const Case a{"a", 1, 4608, 4608, 2, 2, 128};
  const Case b{"b", 1, 2048, 3000, 5, 5, 128};
  Call run_a(a);
  Call run_b(b);
  ASSERT_TRUE(run_a.is_split() && run_b.is_split());
  run_a.poison();
  run_b.poison();
  run_a.forward();
  run_b.forward();
  ok(cudaDeviceSynchronize());
  const auto expected_a = run_a.output();
  const auto expected_b = run_b.output();
  const AttentionOptions options;
  const std::size_t bytes =
      std::max(attention_workspace_bytes(run_a.q(), run_a.k(), run_a.v(), options, num_sms()),
               attention_workspace_bytes(run_b.q(), run_b.k(), run_b.v(), options, num_sms()));
  Buffer<char> workspace(bytes);
  workspace.fill(0);
  run_a.poison();
  run_b.poison();
  for (int i = 0; i < 5; ++i) {
    attention_forward(run_a.q(), run_a.k(), run_a.v(), run_a.out(), options,
                      {workspace.data(), bytes}, {});
    attention_forward(run_b.q(), run_b.k(), run_b.v(), run_b.out(), options,
                      {workspace.data(), bytes}, {});
  }
  ok(cudaDeviceSynchronize());
  EXPECT_EQ(expected_a, run_a.output());
  EXPECT_EQ(expected_b, run_b.output());
}

TEST(AttentionForwardCall, RefusesHostMemoryBeforeAnyLaunch) {
  REQUIRE_HOPPER();
  const Case c{"host", 1, 128, 128, 1, 1, 128};
  Call run(c);
  alignas(16) static std::uint16_t host[128 * 128];
  try {
    AttentionOptions options;
    options.split_last_wave = false;
    attention_forward(TensorView::bshd(host, DataType::bf16, 1, 128, 1, 128), run.k(), run.v(),
                      run.out(), options, {}, {});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::usage);
    EXPECT_NE(std::string(error.what()).find("q.data"), std::string::npos);
  }
}

}  // namespace
}  // namespace xstage::test
