// The data movement of the expert-parallel layer with co-located ranks: every row, scale, origin
// and table entry of random calls, and the sum to the last bit. In place of the experts' products
// stands a function of row and expert that the host computes as well.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "moe_ranks.cuh"
#include "peers/cuda_check.hpp"
#include "xstage/error.hpp"

namespace xstage::test {
namespace {

using moe::Exchange;

__host__ __device__ inline std::uint32_t mix(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// The bits of a bf16 in (-2, 2) that depend on the row's bytes (by their hash), expert and column.
__host__ __device__ inline std::uint16_t expert_value(std::uint32_t row_hash, int expert,
                                                      int column) {
  const std::uint32_t dice =
      mix(row_hash ^ mix(static_cast<std::uint32_t>(expert * 4099 + column)));
  return static_cast<std::uint16_t>((dice & 0x8000u) | (0x3d80u + (dice >> 16) % 0x27fu));
}

__host__ __device__ inline std::uint32_t hash_row(const std::uint8_t* row, int row_bytes,
                                                  const float* scales, int num_scales,
                                                  std::int64_t scale_stride) {
  std::uint32_t hash = 1;
  for (int i = 0; i < row_bytes; i += 4) {
    std::uint32_t word = 0;
    for (int byte = 0; byte < 4; ++byte)
      word |= static_cast<std::uint32_t>(row[i + byte]) << 8 * byte;
    hash = mix(hash ^ word) + static_cast<std::uint32_t>(i);
  }
  for (int block = 0; block < num_scales; ++block) {
    const float scale = scales[block * scale_stride];
    std::uint32_t word;
    memcpy(&word, &scale, 4);
    hash = mix(hash ^ word) + 7u;
  }
  return hash;
}

struct StubParams {
  moe::Geometry g;
  const moe::RouteTables* tables;
  const std::uint8_t* pool;
  const float* pool_scales;
  std::uint16_t* outputs;
  int first_expert;
  int num_routed;
};

// A row a block; shared expert s counts as expert num_experts + s.
__global__ void stub_kernel(StubParams p) {
  const int local = static_cast<int>(blockIdx.y);
  const int expert = local < p.num_routed ? p.first_expert + local
                                          : p.g.experts.num_experts + local - p.num_routed;
  for (int i = static_cast<int>(blockIdx.x); i < p.tables->num_rows[local];
       i += static_cast<int>(gridDim.x)) {
    const std::int64_t row = p.tables->first_row[local] + i;
    const std::uint32_t hash = hash_row(p.pool + row * p.g.row_bytes, p.g.row_bytes,
                                        p.pool_scales + row, p.g.num_scales, p.g.pool_rows);
    for (int column = static_cast<int>(threadIdx.x); column < p.g.hidden; column += blockDim.x) {
      p.outputs[row * p.g.hidden + column] = expert_value(hash, expert, column);
    }
  }
}

void run_stub(const Exchange& exchange, const MoeRank& rank) {
  StubParams params{};
  params.g = exchange.geometry();
  params.tables = exchange.tables();
  params.pool = reinterpret_cast<const std::uint8_t*>(exchange.pool());
  params.pool_scales = exchange.pool_scales();
  params.outputs = reinterpret_cast<std::uint16_t*>(exchange.outputs());
  params.first_expert = params.g.experts.first(rank.memory.rank());
  params.num_routed = params.g.experts.count(rank.memory.rank());
  check(cudaSetDevice(rank.memory.device()), "cudaSetDevice");
  stub_kernel<<<dim3(16, static_cast<unsigned>(exchange.num_local())), 64, 0, rank.stream.get()>>>(
      params);
  check(cudaGetLastError(), "stub");
}

HostInputs random_inputs(const MoeShape& shape, int num_tokens, const RoutingKind& kind,
                         std::mt19937& random) {
  HostInputs inputs;
  inputs.num_tokens = num_tokens;
  inputs.x.resize(static_cast<std::size_t>(num_tokens) * shape.hidden * element_bytes(shape.dtype));
  for (auto& byte : inputs.x) byte = static_cast<std::uint8_t>(random());
  if (shape.dtype == DataType::fp8) {
    inputs.x_scales.resize(static_cast<std::size_t>(num_tokens) * ((shape.hidden + 127) / 128));
    for (auto& scale : inputs.x_scales) scale = static_cast<float>(random() % 1000 + 1);
  }
  inputs.ids = random_ids(shape, num_tokens, kind, random);
  for (std::size_t i = 0; i < inputs.ids.size(); ++i) {
    const bool is_zero = random() % 16 == 0;
    inputs.weights.push_back(is_zero ? 0.f : static_cast<float>(random() % 4096) / 4096.f);
  }
  return inputs;
}

// y of one rank, as the sum kernel promises it.
std::vector<std::uint16_t> expected_y(const MoeShape& shape, const HostInputs& inputs) {
  const int row_bytes = shape.hidden * element_bytes(shape.dtype);
  const int num_scales = shape.dtype == DataType::fp8 ? (shape.hidden + 127) / 128 : 0;
  std::vector<std::uint16_t> y(static_cast<std::size_t>(inputs.num_tokens) * shape.hidden);
  for (int token = 0; token < inputs.num_tokens; ++token) {
    const auto at = static_cast<std::size_t>(token);
    const std::uint32_t hash = hash_row(
        inputs.x.data() + at * row_bytes, row_bytes,
        num_scales > 0 ? inputs.x_scales.data() + at * num_scales : nullptr, num_scales, 1);
    for (int column = 0; column < shape.hidden; ++column) {
      float sum = 0;
      for (int k = 0; k < shape.top_k + shape.num_shared_experts; ++k) {
        const bool is_shared = k >= shape.top_k;
        const std::size_t entry = at * static_cast<std::size_t>(shape.top_k) + k;
        const int expert = is_shared ? shape.num_experts + k - shape.top_k : inputs.ids[entry];
        if (expert < 0) continue;
        const float weight = is_shared ? 1.f : inputs.weights[entry];
        sum = std::fmaf(weight, bf16_to_float(expert_value(hash, expert, column)), sum);
      }
      y[at * static_cast<std::size_t>(shape.hidden) + column] = float_to_bf16(sum);
    }
  }
  return y;
}

// The tables of every rank against place_rows(), the pools against the inputs.
void expect_pools(const std::vector<std::unique_ptr<MoeRank>>& ranks,
                  const std::vector<std::unique_ptr<Exchange>>& exchanges,
                  const std::vector<HostInputs>& inputs) {
  const moe::Geometry& g = exchanges[0]->geometry();
  const auto num_ranks = static_cast<int>(ranks.size());
  const int num_experts = g.experts.num_experts;
  std::vector<std::uint32_t> counts(ranks.size() * static_cast<std::size_t>(num_experts));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const int id : inputs[rank].ids) {
      if (id >= 0) ++counts[rank * static_cast<std::size_t>(num_experts) + id];
    }
  }
  for (int me = 0; me < num_ranks; ++me) {
    const Exchange& exchange = *exchanges[static_cast<std::size_t>(me)];
    const HostInputs& mine = inputs[static_cast<std::size_t>(me)];
    std::vector<std::int32_t> first_row(moe::kMaxExperts + moe::kMaxShared);
    std::vector<std::int32_t> num_rows(first_row.size()), my_row(moe::kMaxExperts);
    std::vector<std::int32_t> rank_row(ranks.size() *
                                       static_cast<std::size_t>(g.experts.max_count()));
    const std::int32_t in_use = place_rows(g, counts.data(), me, mine.num_tokens, first_row.data(),
                                           num_rows.data(), my_row.data(), rank_row.data());
    std::vector<char> raw(sizeof(moe::RouteTables) + rank_row.size() * 4);
    check(cudaMemcpy(raw.data(), exchange.tables(), raw.size(), cudaMemcpyDefault), "tables");
    const auto* tables = reinterpret_cast<const moe::RouteTables*>(raw.data());
    for (int local = 0; local < exchange.num_local(); ++local) {
      ASSERT_EQ(tables->first_row[local], first_row[static_cast<std::size_t>(local)]) << local;
      ASSERT_EQ(tables->num_rows[local], num_rows[static_cast<std::size_t>(local)]) << local;
    }
    for (int expert = 0; expert < num_experts; ++expert) {
      ASSERT_EQ(tables->my_row[expert], my_row[static_cast<std::size_t>(expert)]) << expert;
    }
    std::vector<std::uint8_t> pool(static_cast<std::size_t>(in_use) * g.row_bytes);
    check(cudaMemcpy(pool.data(), exchange.pool(), pool.size(), cudaMemcpyDefault), "pool");
    std::vector<float> scales(static_cast<std::size_t>(g.num_scales) * g.pool_rows);
    if (g.num_scales > 0) {
      check(cudaMemcpy(scales.data(), exchange.pool_scales(), scales.size() * 4, cudaMemcpyDefault),
            "scales");
    }
    const auto expect_row = [&](std::int32_t row, int source, int token) {
      const HostInputs& from = inputs[static_cast<std::size_t>(source)];
      ASSERT_EQ(std::memcmp(pool.data() + static_cast<std::size_t>(row) * g.row_bytes,
                            from.x.data() + static_cast<std::size_t>(token) * g.row_bytes,
                            static_cast<std::size_t>(g.row_bytes)),
                0)
          << "rank " << me << ", row " << row << ": token " << token << " of rank " << source;
      for (int block = 0; block < g.num_scales; ++block) {
        ASSERT_EQ(scales[static_cast<std::size_t>(block) * g.pool_rows + row],
                  from.x_scales[static_cast<std::size_t>(token) * g.num_scales + block])
            << "rank " << me << ", row " << row << ", block " << block;
      }
    };
    for (int source = 0; source < num_ranks; ++source) {
      std::map<int, std::int32_t> ordinals;
      const HostInputs& from = inputs[static_cast<std::size_t>(source)];
      for (std::size_t entry = 0; entry < from.ids.size(); ++entry) {
        const int expert = from.ids[entry];
        if (expert < 0 || g.experts.owner(expert) != me) continue;
        const std::int32_t row = rank_row[static_cast<std::size_t>(source * g.experts.max_count() +
                                                                   expert - g.experts.first(me))] +
                                 ordinals[expert]++;
        expect_row(row, source, static_cast<int>(entry) / g.top_k);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
    for (int shared = 0; shared < g.num_shared; ++shared) {
      for (int token = 0; token < mine.num_tokens; ++token) {
        expect_row(first_row[static_cast<std::size_t>(g.experts.count(me) + shared)] + token, me,
                   token);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

void expect_y(const std::vector<std::unique_ptr<MoeRank>>& ranks, const MoeShape& shape,
              const std::vector<HostInputs>& inputs) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::vector<std::uint16_t> wanted = expected_y(shape, inputs[rank]);
    const auto got = download<std::uint16_t>(ranks[rank]->y);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_EQ(got[i], wanted[i])
          << "rank " << rank << ", token " << i / shape.hidden << ", column " << i % shape.hidden;
    }
  }
}

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
  std::vector<std::unique_ptr<MoeRank>> ranks;
  std::vector<std::unique_ptr<Exchange>> exchanges;

  Group(int num_ranks, const MoeShape& shape, const MoeOptions& options, double deadline_s = 20)
      : ranks(make_moe_ranks(num_ranks, shape, options, deadline_s)) {
    // Loading a kernel may wait for running ones: none is loaded while a rank waits for another.
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, stub_kernel), "loading");
    check(cudaFuncGetAttributes(&attributes, compare_kernel), "loading");
    for (auto& rank : ranks) {
      exchanges.push_back(std::make_unique<Exchange>(
          rank->memory, shape, Workspace{rank->workspace.data(), rank->workspace.size()}, options));
    }
  }
  void enqueue(std::size_t i) const {
    const MoeRank& rank = *ranks[i];
    const Exchange& exchange = *exchanges[i];
    check(cudaSetDevice(rank.memory.device()), "cudaSetDevice");
    exchange.stage(rank.call, rank.handle());
    exchange.route(rank.call, rank.handle());
    exchange.dispatch(rank.call, rank.handle());
    run_stub(exchange, rank);
    exchange.scatter(rank.handle());
    exchange.meet(rank.handle());
    exchange.sum(rank.call, rank.handle());
  }
  void finish() const {
    for (const auto& rank : ranks) rank->stream.synchronize();
    for (const auto& exchange : exchanges) {
      const MoeStatus status = exchange->status();
      ASSERT_TRUE(status.fine) << status.text;
    }
  }
};

MoeOptions options_of(int bits) {
  MoeOptions options;
  options.dispatch = (bits & 1) != 0 ? MoeTransfer::push : MoeTransfer::pull;
  options.combine = (bits & 2) != 0 ? MoeTransfer::push : MoeTransfer::pull;
  options.send_once = (bits & 4) == 0;
  return options;
}

class MoeExchange : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const std::string why = why_no_gpu();
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

MoeShape random_shape(int num_ranks, std::mt19937& random) {
  MoeShape shape;
  shape.max_tokens = 1 + static_cast<int>(random() % 150);
  shape.hidden = 64 * (1 + static_cast<int>(random() % 20));
  shape.intermediate = 64;
  const int per_rank[] = {1, 3, 36, 37, 48, 128, 192};
  shape.num_experts = num_ranks * per_rank[random() % 7] + static_cast<int>(random() % num_ranks);
  shape.num_experts = std::min(shape.num_experts, moe::kMaxExperts);
  if (shape.num_experts <= 37 * num_ranks && random() % 4 == 0) {  // rows as real models have them
    shape.max_tokens = 1 + static_cast<int>(random() % 20);
    shape.hidden = 4096 + 64 * static_cast<int>(random() % 65);
  }
  shape.top_k = 1 + static_cast<int>(random() % 10);
  shape.num_shared_experts = static_cast<int>(random() % 3);
  shape.dtype = random() % 2 == 0 ? DataType::fp8 : DataType::bf16;
  return shape;
}

// Tokens of each rank in a round: some full, some empty; in one round of eight all are empty.
int random_tokens(const MoeShape& shape, int round, std::mt19937& random) {
  if (round % 8 == 7) return 0;
  const auto dice = random() % 4;
  if (dice == 0) return 0;
  if (dice == 1) return shape.max_tokens;
  return static_cast<int>(random() % static_cast<unsigned>(shape.max_tokens + 1));
}

TEST_P(MoeExchange, MovesEveryRowOfRandomCalls) {
  const std::uint32_t seed = choose_seed();
  SCOPED_TRACE("--gtest_random_seed=" + std::to_string(seed));
  std::mt19937 random(seed);
  for (int num_ranks : {1, 2, 3, 4, 8}) {
    const MoeShape shape = random_shape(num_ranks, random);
    SCOPED_TRACE("ranks " + std::to_string(num_ranks) + " hidden " + std::to_string(shape.hidden) +
                 " experts " + std::to_string(shape.num_experts) + " top_k " +
                 std::to_string(shape.top_k) + " " + std::string(to_string(shape.dtype)));
    Group group(num_ranks, shape, options_of(GetParam()));
    for (int round = 0; round < 8; ++round) {
      const RoutingKind kinds[] = {
          {0, 0, false}, {0.1, 0, true}, {0.5, 0.3, true}, {1, 0, true}, {0, 1, true}};
      const RoutingKind kind = kinds[random() % 5];
      std::vector<HostInputs> inputs;
      for (const auto& rank : group.ranks) {
        inputs.push_back(random_inputs(shape, random_tokens(shape, round, random), kind, random));
        rank->upload(inputs.back(), round % 2 == 1);
      }
      for (std::size_t i = 0; i < group.ranks.size(); ++i) group.enqueue(i);
      group.finish();
      if (HasFatalFailure()) return;  // a wait that failed leaves garbage, which says nothing more
      expect_pools(group.ranks, group.exchanges, inputs);
      expect_y(group.ranks, shape, inputs);
      if (HasFatalFailure()) return;
    }
  }
}

std::string way_name(const testing::TestParamInfo<int>& info) {
  const MoeOptions options = options_of(info.param);
  const auto name = [](MoeTransfer t) { return t == MoeTransfer::push ? "Push" : "Pull"; };
  return std::string("Dispatch") + name(options.dispatch) + (options.send_once ? "" : "Twice") +
         "Combine" + name(options.combine);
}
INSTANTIATE_TEST_SUITE_P(Ways, MoeExchange, testing::Values(0, 1, 2, 3, 4, 6), way_name);

class MoeExchangeOne : public MoeExchange {};
INSTANTIATE_TEST_SUITE_P(Ways, MoeExchangeOne, testing::Values(0, 3), way_name);

// Captured once, replayed with new inputs; the ranks' replays follow each other without a pause.
TEST_P(MoeExchangeOne, ThousandReplaysWithChangingInputs) {
  const std::uint32_t seed = choose_seed();
  SCOPED_TRACE("--gtest_random_seed=" + std::to_string(seed));
  std::mt19937 random(seed);
  MoeShape shape;
  shape.max_tokens = 24;
  shape.hidden = 256;
  shape.intermediate = 64;
  shape.num_experts = 10;
  shape.top_k = 3;
  shape.num_shared_experts = 1;
  Group group(2, shape, options_of(GetParam()));
  constexpr int kNumInputs = 8;  // sets of inputs that the replays go through
  std::vector<std::vector<HostInputs>> sets(kNumInputs);
  std::vector<std::vector<std::vector<std::uint16_t>>> wanted(kNumInputs);
  for (int set = 0; set < kNumInputs; ++set) {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      sets[static_cast<std::size_t>(set)].push_back(
          random_inputs(shape, rank == 0 ? 24 : 7, {0.2, 0.1, true}, random));
      wanted[static_cast<std::size_t>(set)].push_back(
          expected_y(shape, sets[static_cast<std::size_t>(set)].back()));
    }
  }
  std::vector<cudaGraphExec_t> graphs;
  for (std::size_t i = 0; i < 2; ++i) {
    group.ranks[i]->upload(sets[0][i]);
    cudaGraph_t captured = nullptr;
    const cudaStream_t stream = group.ranks[i]->stream.get();
    check(cudaSetDevice(group.ranks[i]->memory.device()), "cudaSetDevice");
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    group.enqueue(i);
    check(cudaStreamEndCapture(stream, &captured), "capture");
    graphs.emplace_back();
    check(cudaGraphInstantiate(&graphs.back(), captured, 0), "instantiate");
    check(cudaGraphDestroy(captured), "destroy");
  }
  for (int replay = 0; replay < 1000; ++replay) {
    const auto set = static_cast<std::size_t>(random() % kNumInputs);
    for (std::size_t i = 0; i < 2; ++i) group.ranks[i]->upload(sets[set][i]);
    for (std::size_t i = 0; i < 2; ++i) {
      check(cudaSetDevice(group.ranks[i]->memory.device()), "cudaSetDevice");
      check(cudaGraphLaunch(graphs[i], group.ranks[i]->stream.get()), "launch");
    }
    group.finish();
    for (std::size_t i = 0; i < 2; ++i) {
      const auto got = download<std::uint16_t>(group.ranks[i]->y);
      ASSERT_TRUE(std::equal(wanted[set][i].begin(), wanted[set][i].end(), got.begin()))
          << "replay " << replay << ", rank " << i;
    }
  }
  for (const auto graph : graphs) (void)cudaGraphExecDestroy(graph);
}

// Calls follow each other without the host: what one leaves behind must not disturb the next.
TEST_P(MoeExchangeOne, TenThousandCallsInARow) {
  const std::uint32_t seed = choose_seed();
  SCOPED_TRACE("--gtest_random_seed=" + std::to_string(seed));
  std::mt19937 random(seed);
  MoeShape shape;
  shape.max_tokens = 40;
  shape.hidden = 512;
  shape.intermediate = 64;
  shape.num_experts = 9;
  shape.top_k = 4;
  constexpr std::size_t kNumRanks = 3;
  constexpr int kNumSets = 4;
  Group group(kNumRanks, shape, options_of(GetParam()));
  // Inputs and results of each set and rank, on the GPU.
  struct Set {
    Buffer x, x_scales, ids, weights, y;
    MoeCall call;
  };
  std::vector<std::vector<Set>> sets(kNumSets);
  for (auto& set : sets) {
    for (std::size_t rank = 0; rank < kNumRanks; ++rank) {
      const int gpu = group.ranks[rank]->memory.device();
      const int num_tokens = static_cast<int>(random() % 41);
      const HostInputs inputs = random_inputs(shape, num_tokens, {0.1, 0.2, true}, random);
      Set& s = set.emplace_back();
      s.x = test::upload(inputs.x, gpu);
      s.x_scales = test::upload(inputs.x_scales, gpu);
      s.ids = test::upload(inputs.ids, gpu);
      s.weights = test::upload(inputs.weights, gpu);
      s.y = test::upload(expected_y(shape, inputs), gpu);
      s.call = group.ranks[rank]->call;
      s.call.num_tokens = num_tokens;
      s.call.x = s.x.data();
      s.call.x_scales = s.x_scales.as<float>();
      s.call.topk_ids = s.ids.data();
      s.call.topk_weights = s.weights.as<float>();
      s.call.y = group.ranks[rank]->y.data();
    }
  }
  std::vector<Buffer> num_wrong;
  for (const auto& rank : group.ranks) {
    num_wrong.push_back(test::upload(std::vector<unsigned long long>{0}, rank->memory.device()));
  }
  for (int call = 0; call < 10000; ++call) {
    auto& set = sets[random() % kNumSets];
    for (std::size_t i = 0; i < kNumRanks; ++i) {
      MoeRank& rank = *group.ranks[i];
      rank.call = set[i].call;
      group.enqueue(i);
      const int num_vectors = set[i].call.num_tokens * shape.hidden / 8;
      compare_kernel<<<8, 256, 0, rank.stream.get()>>>(rank.y.as<uint4>(), set[i].y.as<uint4>(),
                                                       num_vectors,
                                                       num_wrong[i].as<unsigned long long>());
    }
    // Ranks must not get so far apart that one fills its queue before another is enqueued.
    if (call % 50 == 49) group.finish();
    if (HasFatalFailure()) return;
  }
  group.finish();
  for (std::size_t i = 0; i < kNumRanks; ++i) {
    EXPECT_EQ(download<unsigned long long>(num_wrong[i])[0], 0u) << "rank " << i;
  }
}

TEST_P(MoeExchangeOne, AnIdOutOfRangeIsSaidAndItsSlotLeftEmpty) {
  std::mt19937 random(7);
  MoeShape shape;
  shape.max_tokens = 16;
  shape.hidden = 128;
  shape.intermediate = 64;
  shape.num_experts = 6;
  shape.top_k = 2;
  Group group(2, shape, options_of(GetParam()));
  std::vector<HostInputs> inputs;
  for (int rank = 0; rank < 2; ++rank) inputs.push_back(random_inputs(shape, 16, {}, random));
  std::vector<HostInputs> given = inputs;
  given[1].ids[2 * 5 + 1] = 6;
  inputs[1].ids[2 * 5 + 1] = -1;
  for (std::size_t i = 0; i < 2; ++i) group.ranks[i]->upload(given[i]);
  for (std::size_t i = 0; i < 2; ++i) group.enqueue(i);
  for (const auto& rank : group.ranks) rank->stream.synchronize();
  expect_y(group.ranks, shape, inputs);
  EXPECT_TRUE(group.exchanges[0]->status().fine);
  EXPECT_EQ(group.exchanges[1]->status().text,
            "moe: topk_ids[5, 1] is 6: legal -1..5; the slot was left empty");
}

// Ranks whose layers differ: all end, all say so.
TEST_P(MoeExchangeOne, RanksThatDisagreeAreTold) {
  std::mt19937 random(7);
  MoeShape shape;
  shape.max_tokens = 16;
  shape.hidden = 128;
  shape.intermediate = 64;
  shape.num_experts = 6;
  shape.top_k = 2;
  const MoeOptions options = options_of(GetParam());
  Group group(2, shape, options);
  MoeShape other = shape;
  other.intermediate = 128;
  // The workspace is as large as the other shape asks for.
  const Buffer workspace(Buffer::Place::device, 0, MoeLayer::workspace_bytes(other, 2, options));
  check(cudaMemset(workspace.data(), 0, workspace.size()), "memset");
  group.exchanges[1] = std::make_unique<Exchange>(
      group.ranks[1]->memory, other, Workspace{workspace.data(), workspace.size()}, options);
  for (std::size_t i = 0; i < 2; ++i) {
    group.ranks[i]->upload(random_inputs(shape, 16, {}, random));
  }
  for (std::size_t i = 0; i < 2; ++i) group.enqueue(i);
  for (const auto& rank : group.ranks) rank->stream.synchronize();
  for (std::size_t i = 0; i < 2; ++i) {
    const MoeStatus status = group.exchanges[i]->status();
    EXPECT_FALSE(status.fine);
    EXPECT_NE(status.text.find("rank " + std::to_string(1 - i) + " has another shape"),
              std::string::npos)
        << status.text;
  }
}

// A rank that does not call: the others give up at the deadline and say whom they waited for.
TEST_P(MoeExchangeOne, AMissingRankIsNamed) {
  std::mt19937 random(7);
  MoeShape shape;
  shape.max_tokens = 16;
  shape.hidden = 128;
  shape.intermediate = 64;
  shape.num_experts = 6;
  shape.top_k = 2;
  Group group(2, shape, options_of(GetParam()), 0.2);
  group.ranks[0]->upload(random_inputs(shape, 16, {}, random));
  group.enqueue(0);
  group.ranks[0]->stream.synchronize();
  const MoeStatus status = group.exchanges[0]->status();
  EXPECT_FALSE(status.fine);
  EXPECT_NE(status.text.find("rank 1"), std::string::npos) << status.text;
}

TEST_P(MoeExchangeOne, RefusesTooLittleMemory) {
  MoeShape shape;
  shape.max_tokens = 16;
  shape.hidden = 128;
  shape.intermediate = 64;
  shape.num_experts = 6;
  shape.top_k = 2;
  const MoeOptions options = options_of(GetParam());
  auto ranks = make_moe_ranks(1, shape, options);
  const auto refused = [&](const MoeShape& s, const Workspace& workspace,
                           const MoeOptions& o) -> std::string {
    try {
      const Exchange exchange(ranks[0]->memory, s, workspace, o);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.category(), ErrorCategory::usage);
      return error.what();
    }
  };
  const Workspace whole{ranks[0]->workspace.data(), ranks[0]->workspace.size()};
  EXPECT_EQ(refused(shape, whole, options), "");
  Workspace less = whole;
  less.bytes -= 1;
  EXPECT_NE(refused(shape, less, options).find("workspace holds"), std::string::npos);
  MoeShape more = shape;
  more.max_tokens = 4096;
  EXPECT_NE(refused(more, whole, options).find("peer memory holds"), std::string::npos);
  MoeOptions greedy = options;
  greedy.num_sms = 1000;
  EXPECT_NE(refused(shape, whole, greedy).find("num_sms is 1000: legal 1.."), std::string::npos);
}

}  // namespace
}  // namespace xstage::test
