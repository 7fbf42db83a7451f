// The whole expert-parallel layer with co-located ranks against float64 on the CPU: every value of
// random shapes and routings; then the same bits in a thousand graph replays and ten thousand
// calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "moe_ranks.cuh"
#include "moe_reference.cuh"
#include "xstage/error.hpp"
#include "xstage/moe.hpp"

namespace xstage::test {
namespace {

__global__ void compare_kernel(const uint4* got, const uint4* wanted, int num_vectors,
                               unsigned long long* num_wrong) {
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < num_vectors;
       i += static_cast<int>(gridDim.x * blockDim.x)) {
    const uint4 a = got[i];
    const uint4 b = wanted[i];
    if (a.x != b.x || a.y != b.y || a.z != b.z || a.w != b.w) atomicAdd(num_wrong, 1ull);
  }
}

struct Group {
  MoeShape shape;
  MoeOptions options;
  std::vector<std::unique_ptr<MoeRank>> ranks;
  std::vector<Weights> weights;
  std::vector<MoeLayer> layers;

  Group(int num_ranks, const MoeShape& s, const MoeOptions& o, std::mt19937& random)
      : shape(s), options(o), ranks(make_moe_ranks(num_ranks, s, o)) {
    // Loading a kernel may wait for running ones: none is loaded while a rank waits for another.
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, compare_kernel), "loading");
    for (auto& rank : ranks) {
      const ExpertRange mine = moe_experts_of(shape, num_ranks, rank->memory.rank());
      check(cudaSetDevice(rank->memory.device()), "cudaSetDevice");
      weights.emplace_back(shape, mine.count + shape.num_shared_experts, rank->memory.device(),
                           rank->handle(), random);
      layers.emplace_back(rank->memory, shape, weights.back().view(),
                          Workspace{rank->workspace.data(), rank->workspace.size()}, options);
    }
  }
  void enqueue(std::size_t i) {
    check(cudaSetDevice(ranks[i]->memory.device()), "cudaSetDevice");
    layers[i].run(ranks[i]->call, ranks[i]->handle());
  }
  void finish() {
    for (const auto& rank : ranks) rank->stream.synchronize();
    for (const auto& layer : layers) ASSERT_TRUE(layer.status().fine) << layer.status().text;
  }

  void expect_right(std::size_t rank, const HostInputs& inputs) const {
    EXPECT_EQ(wrong_value(shape, options, weights, static_cast<int>(rank), inputs,
                          download<std::uint16_t>(ranks[rank]->y)),
              "");
  }
};

MoeOptions options_of(unsigned bits) {
  MoeOptions options;
  options.dispatch = (bits & 1) != 0 ? MoeTransfer::push : MoeTransfer::pull;
  options.combine = (bits & 2) != 0 ? MoeTransfer::push : MoeTransfer::pull;
  options.send_once = (bits & 4) == 0;
  return options;
}

// One call of every rank, and what each of them got; ends at the first rank that is wrong.
void run_and_compare(Group& group, const std::vector<HostInputs>& inputs) {
  for (std::size_t i = 0; i < group.ranks.size(); ++i) group.enqueue(i);
  group.finish();
  for (std::size_t i = 0; i < group.ranks.size() && !testing::Test::HasFailure(); ++i) {
    group.expect_right(i, inputs[i]);
  }
}

class MoeLayerTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string why = why_no_gpu();
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(MoeLayerTest, RandomShapesAndRoutings) {
  const std::uint32_t seed = choose_seed();
  SCOPED_TRACE("--gtest_random_seed=" + std::to_string(seed));
  std::mt19937 random(seed);
  for (const int num_ranks : {1, 2, 2, 3, 4, 8}) {
    for (const DataType dtype : {DataType::bf16, DataType::fp8}) {
      MoeShape shape;
      shape.max_tokens = 8 + static_cast<int>(random() % 33);
      shape.hidden = 64 * (1 + static_cast<int>(random() % 6));
      shape.intermediate = 64 * (1 + static_cast<int>(random() % 4));
      shape.num_experts = num_ranks + static_cast<int>(random() % 9);
      shape.top_k = 1 + static_cast<int>(random() % 5);
      shape.num_shared_experts = static_cast<int>(random() % 3);
      shape.dtype = dtype;
      MoeOptions options = options_of(random());
      options.clamp = random() % 2 == 0 ? 0.f : 0.7f;
      SCOPED_TRACE(
          "ranks " + std::to_string(num_ranks) + " hidden " + std::to_string(shape.hidden) +
          " intermediate " + std::to_string(shape.intermediate) + " experts " +
          std::to_string(shape.num_experts) + " top_k " + std::to_string(shape.top_k) + " shared " +
          std::to_string(shape.num_shared_experts) + " " + std::string(to_string(dtype)));
      Group group(num_ranks, shape, options, random);
      const RoutingKind kinds[] = {{0, 0, false}, {0.3, 0, true}, {0, 0.7, true}};
      for (int round = 0; round < 3; ++round) {
        std::vector<HostInputs> inputs;
        for (const auto& rank : group.ranks) {
          const auto most = static_cast<unsigned>(shape.max_tokens);
          const int num_tokens = random() % 4 == 0 ? 0 : static_cast<int>(random() % (most + 1));
          inputs.push_back(random_inputs(shape, num_tokens, kinds[round], random));
          rank->upload(inputs.back());
        }
        run_and_compare(group, inputs);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(MoeLayerTest, AnyNumberOfExpertsARank) {
  const std::uint32_t seed = choose_seed();
  SCOPED_TRACE("--gtest_random_seed=" + std::to_string(seed));
  std::mt19937 random(seed);
  for (const int per_rank : {1, 3, 36, 37, 48, 128, 192}) {
    SCOPED_TRACE("experts of a rank: " + std::to_string(per_rank));
    MoeShape shape;
    shape.max_tokens = 40;
    shape.hidden = 192;
    shape.intermediate = 64;
    shape.num_experts = 2 * per_rank;
    shape.top_k = std::min(6, shape.num_experts);
    shape.dtype = random() % 2 == 0 ? DataType::fp8 : DataType::bf16;
    Group group(2, shape, options_of(random()), random);
    std::vector<HostInputs> inputs;
    for (const auto& rank : group.ranks) {
      inputs.push_back(random_inputs(shape, inputs.empty() ? 40 : 11, {0.1, 0.2, true}, random));
      rank->upload(inputs.back());
    }
    run_and_compare(group, inputs);
    if (HasFailure()) return;
  }
}

// What the rows travel through does not change a bit of the result.
TEST_F(MoeLayerTest, AllWaysGiveTheSameBits) {
  const std::uint32_t seed = choose_seed();
  SCOPED_TRACE("--gtest_random_seed=" + std::to_string(seed));
  MoeShape shape;
  shape.max_tokens = 50;
  shape.hidden = 384;
  shape.intermediate = 192;
  shape.num_experts = 12;
  shape.top_k = 4;
  shape.num_shared_experts = 1;
  std::vector<std::vector<std::uint16_t>> first;
  for (const unsigned bits : {0u, 1u, 2u, 3u, 4u}) {
    std::mt19937 random(seed);  // the same weights and inputs
    Group group(2, shape, options_of(bits), random);
    for (std::size_t i = 0; i < 2; ++i) {
      group.ranks[i]->upload(random_inputs(shape, i == 0 ? 50 : 13, {}, random));
    }
    for (std::size_t i = 0; i < 2; ++i) group.enqueue(i);
    group.finish();
    for (std::size_t i = 0; i < 2; ++i) {
      const auto y = download<std::uint16_t>(group.ranks[i]->y);
      if (bits == 0) {
        first.push_back(y);
      } else {
        EXPECT_EQ(y, first[i]) << "way " << bits << ", rank " << i;
      }
    }
  }
}

// Inputs that lie in input() are taken from there.
TEST_F(MoeLayerTest, ReadsItsOwnInputs) {
  std::mt19937 random(11);
  MoeShape shape;
  shape.max_tokens = 20;
  shape.hidden = 256;
  shape.intermediate = 128;
  shape.num_experts = 4;
  shape.top_k = 2;
  Group group(1, shape, {}, random);
  MoeRank& rank = *group.ranks[0];
  const HostInputs inputs = random_inputs(shape, 20, {}, random);
  rank.upload(inputs);
  group.enqueue(0);
  group.finish();
  group.expect_right(0, inputs);
  const auto wanted = download<std::uint16_t>(rank.y);
  const MoeInput input = group.layers[0].input();
  check(cudaMemset(rank.y.data(), 0xff, rank.y.size()), "memset");
  check(cudaMemset2D(input.x, input.row_bytes, 0, 256 + 8, 20), "memset");
  check(cudaMemcpy2D(input.x, input.row_bytes, inputs.x.data(), 256, 256, 20, cudaMemcpyDefault),
        "x");
  check(cudaMemcpy2D(input.scales, input.scale_row_bytes, inputs.x_scales.data(), 8, 8, 20,
                     cudaMemcpyDefault),
        "scales");
  check(cudaDeviceSynchronize(), "copies");
  rank.call.x = nullptr;
  rank.call.x_scales = nullptr;
  group.enqueue(0);
  group.finish();
  EXPECT_EQ(download<std::uint16_t>(rank.y), wanted);
}

// Sets of inputs whose results were compared with the reference once; after that, bits.
struct Sets {
  static constexpr std::size_t kCount = 4;
  std::vector<std::vector<HostInputs>> inputs;             // [set][rank]
  std::vector<std::vector<std::vector<std::uint16_t>>> y;  // the same

  Sets(Group& group, const std::vector<int>& num_tokens, std::mt19937& random) {
    for (std::size_t set = 0; set < kCount; ++set) {
      inputs.emplace_back();
      y.emplace_back();
      for (std::size_t i = 0; i < group.ranks.size(); ++i) {
        inputs[set].push_back(random_inputs(group.shape, num_tokens[i], {0.1, 0.1, true}, random));
        group.ranks[i]->upload(inputs[set][i]);
      }
      for (std::size_t i = 0; i < group.ranks.size(); ++i) group.enqueue(i);
      group.finish();
      for (std::size_t i = 0; i < group.ranks.size(); ++i) {
        group.expect_right(i, inputs[set][i]);
        auto all = download<std::uint16_t>(group.ranks[i]->y);
        all.resize(static_cast<std::size_t>(num_tokens[i]) * group.shape.hidden);
        y[set].push_back(std::move(all));
      }
    }
  }
};

MoeShape soak_shape(DataType dtype) {
  MoeShape shape;
  shape.max_tokens = 48;
  shape.hidden = 256;
  shape.intermediate = 128;
  shape.num_experts = 6;
  shape.top_k = 3;
  shape.num_shared_experts = 1;
  shape.dtype = dtype;
  return shape;
}

TEST_F(MoeLayerTest, ThousandReplaysWithChangingInputs) {
  const std::uint32_t seed = choose_seed();
  SCOPED_TRACE("--gtest_random_seed=" + std::to_string(seed));
  std::mt19937 random(seed);
  Group group(2, soak_shape(DataType::fp8), {}, random);
  const std::vector<int> num_tokens = {48, 5};
  Sets sets(group, num_tokens, random);
  std::vector<cudaGraphExec_t> graphs;
  for (std::size_t i = 0; i < 2; ++i) {
    cudaGraph_t captured = nullptr;
    const cudaStream_t stream = group.ranks[i]->stream.get();
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    group.enqueue(i);
    check(cudaStreamEndCapture(stream, &captured), "capture");
    graphs.emplace_back();
    check(cudaGraphInstantiate(&graphs.back(), captured, 0), "instantiate");
    check(cudaGraphDestroy(captured), "destroy");
  }
  for (int replay = 0; replay < 1000; ++replay) {
    const std::size_t set = random() % Sets::kCount;
    for (std::size_t i = 0; i < 2; ++i) group.ranks[i]->upload(sets.inputs[set][i]);
    for (std::size_t i = 0; i < 2; ++i) {
      check(cudaSetDevice(group.ranks[i]->memory.device()), "cudaSetDevice");
      check(cudaGraphLaunch(graphs[i], group.ranks[i]->stream.get()), "launch");
    }
    group.finish();
    for (std::size_t i = 0; i < 2; ++i) {
      const auto got = download<std::uint16_t>(group.ranks[i]->y);
      ASSERT_TRUE(std::equal(sets.y[set][i].begin(), sets.y[set][i].end(), got.begin()))
          << "replay " << replay << ", rank " << i;
    }
  }
  for (const auto graph : graphs) (void)cudaGraphExecDestroy(graph);
}

TEST_F(MoeLayerTest, TenThousandCallsInARow) {
  const std::uint32_t seed = choose_seed();
  SCOPED_TRACE("--gtest_random_seed=" + std::to_string(seed));
  std::mt19937 random(seed);
  Group group(2, soak_shape(DataType::bf16), options_of(2), random);
  const std::vector<int> num_tokens = {31, 48};
  Sets sets(group, num_tokens, random);
  struct OnGpu {
    Buffer x, ids, weights, y;
  };
  std::vector<std::vector<OnGpu>> inputs(Sets::kCount);
  for (std::size_t set = 0; set < Sets::kCount; ++set) {
    for (std::size_t i = 0; i < 2; ++i) {
      const int gpu = group.ranks[i]->memory.device();
      OnGpu& on_gpu = inputs[set].emplace_back();
      on_gpu.x = test::upload(sets.inputs[set][i].x, gpu);
      on_gpu.ids = test::upload(sets.inputs[set][i].ids, gpu);
      on_gpu.weights = test::upload(sets.inputs[set][i].weights, gpu);
      on_gpu.y = test::upload(sets.y[set][i], gpu);
    }
  }
  std::vector<Buffer> num_wrong;
  for (const auto& rank : group.ranks) {
    num_wrong.push_back(test::upload(std::vector<unsigned long long>{0}, rank->memory.device()));
  }
  for (int call = 0; call < 10000; ++call) {
    auto& set = inputs[random() % Sets::kCount];
    for (std::size_t i = 0; i < 2; ++i) {
      MoeRank& rank = *group.ranks[i];
      rank.call.x = set[i].x.data();
      rank.call.topk_ids = set[i].ids.data();
      rank.call.topk_weights = set[i].weights.as<float>();
      group.enqueue(i);
      compare_kernel<<<8, 256, 0, rank.stream.get()>>>(rank.y.as<uint4>(), set[i].y.as<uint4>(),
                                                       num_tokens[i] * group.shape.hidden / 8,
                                                       num_wrong[i].as<unsigned long long>());
    }
    // Ranks must not get so far apart that one fills its queue before another is enqueued.
    if (call % 50 == 49) group.finish();
    if (HasFatalFailure()) return;
  }
  group.finish();
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(download<unsigned long long>(num_wrong[i])[0], 0u) << "rank " << i;
  }
}

TEST_F(MoeLayerTest, RefusesBadCallsBeforeAnyLaunch) {
  std::mt19937 random(5);
  const MoeShape shape = soak_shape(DataType::fp8);
  Group group(1, shape, {}, random);
  MoeCall call;
  call.num_tokens = 49;
  try {
    group.layers[0].run(call, group.ranks[0]->handle());
    ADD_FAILURE() << "49 tokens of 48 were taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::usage);
    EXPECT_NE(std::string(error.what()).find("num_tokens is 49: legal 0..48"), std::string::npos);
  }
  MoeWeights none;
  EXPECT_THROW(
      MoeLayer(group.ranks[0]->memory, shape, none,
               Workspace{group.ranks[0]->workspace.data(), group.ranks[0]->workspace.size()}),
      Error);
}

}  // namespace
}  // namespace xstage::test
