// Attention with its exchange against the same plan with all owners local: bit for bit, every byte
// of every rank's buffers, guards included. Ranks share one GPU.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <sstream>

#include "gpu/ulysses_harness.cuh"
#include "processes.hpp"
#include "xstage/error.hpp"

namespace xstage::test {
namespace {

std::string why_no_hopper() {
  int major = 0;
  if (num_gpus() == 0) return "no GPU or no driver here";
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "GPU attribute");
  return major == 9 ? "" : "GPU 0 is not sm_90";
}

#define REQUIRE_HOPPER()                                       \
  if (const std::string why = why_no_hopper(); !why.empty()) { \
    GTEST_SKIP() << why;                                       \
  }

UlyssesCase plain_case(std::int64_t rows) {
  UlyssesCase c;
  c.num_rows = c.num_keys = rows;
  return c;
}

AttentionShape plain_shape(std::int64_t rows, std::int64_t heads, bool lse = false) {
  AttentionShape max;
  max.max_rows = rows;
  max.num_heads = heads;
  max.lse = lse;
  return max;
}

// One process a rank; first of all cases, since this process must not have touched the GPU.
TEST(UlyssesProcesses, RanksThatDisagreeAreToldSoAlike) {
  const std::string job = "ulysses-" + std::to_string(::getpid());
  const auto outcomes = testing_support::run_ranks(2, [&](int rank) -> std::string {
    if (std::string why = why_no_hopper(); !why.empty()) return why;
    LaunchInfo launch;
    launch.rank = launch.local_rank = rank;
    launch.num_ranks = launch.num_local_ranks = 2;
    launch.job = job;
    Group group = Group::join(launch);
    AttentionShape max = plain_shape(300, 4);
    PeerMemory memory =
        PeerMemory::create(group, UlyssesAttention::buffer_bytes(plain_shape(300, 8), 2));
    UlyssesAttention agreed(memory, max, {}, 0, &group);
    max.num_heads = rank == 0 ? 4 : 8;
    UlyssesAttention refused(memory, max, {}, 0, &group);
    return "accepted";
  });
  const auto has_no_gpu = [](const auto& outcome) {
    return outcome.exit_code == 0 && outcome.text != "accepted";
  };
  if (std::all_of(outcomes.begin(), outcomes.end(), has_no_gpu)) GTEST_SKIP() << outcomes[0].text;
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ErrorCategory::usage)) << outcome.text;
    EXPECT_EQ(outcome.text, outcomes[0].text);
    EXPECT_NE(outcome.text.find("heads 4"), std::string::npos) << outcome.text;
    EXPECT_NE(outcome.text.find("heads 8"), std::string::npos) << outcome.text;
  }
}

class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}
  std::int64_t operator()(std::int64_t first, std::int64_t last) {
    return std::uniform_int_distribution<std::int64_t>(first, last)(engine_);
  }
  bool one_in(int n) { return (*this)(1, n) == 1; }
  template <typename T, std::size_t kCount>
  T of(const T (&values)[kCount]) {
    return values[(*this)(0, kCount - 1)];
  }

 private:
  std::mt19937 engine_;
};

constexpr std::int64_t kMaxRows = 640;

AttentionShape random_shape(Random& random, int num_ranks) {
  AttentionShape max;
  max.dtype = random.one_in(3) ? DataType::fp16 : DataType::bf16;
  max.head_dim = random.one_in(8) ? 64 : 128;
  max.num_batches = random(1, 2);
  max.max_rows = kMaxRows;
  max.max_rows_per_rank = kMaxRows;
  const std::int64_t group = random(1, 3);
  max.num_kv_heads = random(1, 2) * (group > 1 ? num_ranks : 1) + (group > 1 ? 0 : random(0, 7));
  max.num_heads = max.num_kv_heads * group;
  max.lse = random.one_in(2);
  return max;
}

Send random_send(Random& random) {
  Send send;
  send.kind =
      random.of({StoreKind::tensor, StoreKind::tensor, StoreKind::bulk, StoreKind::register16});
  send.chunk_bytes =
      random.of({0u, 1024u, 1536u, 2048u, 4096u, 5000u, 8192u, 12288u, 16384u, 65536u});
  send.steps_per_chunk = static_cast<std::uint32_t>(random.one_in(2) ? 0 : random(1, 6));
  send.completion = random.of({Completion::accepted, Completion::read, Completion::visible});
  return send;
}

UlyssesCase random_case(Random& random, const AttentionShape& max, int num_ranks) {
  UlyssesCase c;
  c.num_batches = random.one_in(30) ? 0 : random(1, max.num_batches);
  c.num_rows = random.one_in(8) ? random(0, num_ranks) : random(1, kMaxRows);
  c.num_keys = random.one_in(3) ? random(1, kMaxRows) : c.num_rows;
  if (random.one_in(3)) c.call.kv_len = random(0, c.num_keys);
  if (random.one_in(3)) c.call.prefix_rows = random(0, std::min<std::int64_t>(c.num_rows, 200));
  if (random.one_in(3)) {
    c.call.suffix_rows = random(0, std::min<std::int64_t>(c.num_rows - c.call.prefix_rows, 200));
  }
  if (random.one_in(3)) {
    std::int64_t left = c.num_rows - c.call.prefix_rows - c.call.suffix_rows;
    for (int p = 0; p < num_ranks; ++p) {
      c.seq_splits.push_back(p + 1 == num_ranks ? left : random(0, left));
      left -= c.seq_splits.back();
    }
  }
  const std::int64_t unit = max.num_heads / max.num_kv_heads;
  if (unit == 1 && random.one_in(3)) {
    std::int64_t left = max.num_heads;
    for (int p = 0; p < num_ranks; ++p) {
      c.head_splits.push_back(p + 1 == num_ranks ? left : random(0, left));
      left -= c.head_splits.back();
    }
  }
  c.call.causal = random.one_in(12);
  c.call.order = random.of({TileOrder::linear, TileOrder::rank_rotated, TileOrder::remote_first,
                            TileOrder::remote_first, TileOrder::longest_first});
  c.call.lse = max.lse && random.one_in(2);
  c.call.split_last_wave = !random.one_in(3);
  c.call.rescale_threshold = random.one_in(4) ? 8.f : 0.f;
  c.call.wait = random.one_in(2);
  c.options.send = random_send(random);
  c.options.path = random.one_in(6) ? ExchangePath::serial : ExchangePath::automatic;
  if (random.one_in(3)) c.options.num_sms = static_cast<int>(random(1, 8));
  return c;
}

// The variant with SMs that only send: a cooperative launch, which other cases do without.
UlyssesCase random_carrier_case(Random& random, const AttentionShape& max, int num_ranks) {
  UlyssesCase c = random_case(random, max, num_ranks);
  c.call.causal = false;
  c.options.path = ExchangePath::fused;
  c.options.num_sms = static_cast<int>(random(2, 16));
  c.options.num_sending_sms = static_cast<int>(random(1, c.options.num_sms - 1));
  return c;
}

std::string text_of(const UlyssesCase& c, const AttentionShape& max, int num_ranks) {
  std::ostringstream out;
  out << "P " << num_ranks << ", B " << c.num_batches << ", S " << c.num_rows << ", keys "
      << c.num_keys << " of which " << c.call.kv_len << ", H " << max.num_heads << "/"
      << max.num_kv_heads << ", D " << max.head_dim << ", prefix " << c.call.prefix_rows
      << ", suffix " << c.call.suffix_rows << ", rows";
  for (const auto n : c.seq_splits) out << " " << n;
  out << ", heads";
  for (const auto n : c.head_splits) out << " " << n;
  out << ", order " << static_cast<int>(c.call.order) << (c.call.causal ? ", causal" : "")
      << (c.call.lse ? ", lse" : "") << (c.call.split_last_wave ? ", split" : "") << ", kind "
      << static_cast<int>(c.options.send.kind) << ", chunk " << c.options.send.chunk_bytes
      << " every " << c.options.send.steps_per_chunk << ", completion "
      << static_cast<int>(c.options.send.completion) << ", path " << to_string(c.options.path)
      << ", SMs " << c.options.num_sms << " of which " << c.options.num_sending_sms << " send";
  return out.str();
}

constexpr std::uint64_t kDeadlineNs = 20'000'000'000;
constexpr int kNumShapes = 72;
constexpr int kCasesPerShape = 30;

// Bytes of all buffers that are not as expected after one call of all ranks. Throws if a wait of
// theirs has failed.
std::uint64_t num_different(UlyssesRanks& ranks, const UlyssesCase& c, std::uint32_t seed,
                            int slot) {
  ranks.fill(c, seed);
  ranks.poison();
  ranks.expect(c, slot);
  check(cudaDeviceSynchronize(), "reference");
  ranks.run(c);
  check(cudaDeviceSynchronize(), "run");
  ranks.check_groups();
  return ranks.take_different();
}

TEST(Ulysses, RandomCallsMatchTheSamePlanWithAllOwnersLocal) {
  REQUIRE_HOPPER();
  const std::uint32_t seed = choose_seed();
  std::cout << "seed " << seed << std::endl;
  Random random(seed);
  int num_cases = 0;
  int num_fused = 0;
  int num_failed = 0;
  for (int shape = 0; shape < kNumShapes; ++shape) {
    const int num_ranks = 1 + shape % 8;
    const AttentionShape max = random_shape(random, num_ranks);
    // Far longer than a case takes; a rank that is not served is then named.
    UlyssesRanks ranks(max, num_ranks, {}, kDeadlineNs);
    for (int i = 0; i < kCasesPerShape; ++i) {
      const UlyssesCase c = random_case(random, max, num_ranks);
      const std::uint32_t fill = static_cast<std::uint32_t>(random(0, 1 << 20));
      std::uint64_t different = 0;
      ASSERT_NO_THROW(different = num_different(ranks, c, fill, i % attention::kNumSlots))
          << "case " << num_cases << ": " << text_of(c, max, num_ranks);
      num_failed += different != 0 ? 1 : 0;
      EXPECT_EQ(different, 0u) << "case " << num_cases << ": " << text_of(c, max, num_ranks);
      ASSERT_LT(num_failed, 5);
      ++num_cases;
      num_fused += ranks.ops[0].status().path == ExchangePath::fused ? 1 : 0;
    }
  }
  std::cout << num_cases << " cases, " << num_fused << " fused\n";
  EXPECT_GE(num_cases, 2000);
  EXPECT_GT(num_fused, num_cases / 2);
}

TEST(Ulysses, SmsThatOnlySendGiveTheSameBits) {
  REQUIRE_HOPPER();
  const std::uint32_t seed = choose_seed();
  std::cout << "seed " << seed << std::endl;
  Random random(seed);
  for (int num_ranks = 1; num_ranks <= 8; ++num_ranks) {
    AttentionShape max = random_shape(random, num_ranks);
    max.dtype = DataType::bf16;
    max.head_dim = 128;
    UlyssesRanks ranks(max, num_ranks, {}, kDeadlineNs);
    for (int i = 0; i < kCasesPerShape; ++i) {
      const UlyssesCase c = random_carrier_case(random, max, num_ranks);
      std::uint64_t different = 0;
      ASSERT_NO_THROW(different = num_different(ranks, c, static_cast<std::uint32_t>(i),
                                                i % attention::kNumSlots))
          << text_of(c, max, num_ranks);
      ASSERT_EQ(different, 0u) << text_of(c, max, num_ranks);
    }
  }
}

// Rows sent to ghosts lie in their images as they would lie with a real peer.
TEST(Ulysses, GhostsGetWhatPeersWouldGet) {
  REQUIRE_HOPPER();
  for (const Placement placement : {Placement::device, Placement::host}) {
    for (const StoreKind kind : {StoreKind::tensor, StoreKind::register16}) {
      for (const ExchangePath path : {ExchangePath::fused, ExchangePath::serial}) {
        GhostOptions ghosts;
        ghosts.placement = placement;
        const AttentionShape max = plain_shape(1500, 16, true);
        UlyssesRanks ranks(max, 8, ghosts);
        UlyssesCase c = plain_case(1500);
        c.call.lse = true;
        c.options.send.kind = kind;
        c.options.path = path;
        for (int call = 0; call < 5; ++call) {
          EXPECT_EQ(num_different(ranks, c, static_cast<std::uint32_t>(call),
                                  call % attention::kNumSlots),
                    0u)
              << "host " << (placement == Placement::host) << ", kind " << static_cast<int>(kind)
              << ", " << to_string(path) << ", call " << call;
        }
      }
    }
  }
}

// Holds one SM until *release is not 0.
__global__ void hold_sm(const volatile std::uint32_t* release) {
  while (*release == 0) __nanosleep(1000);
}

class Graph {
 public:
  Graph(UlyssesRanks& ranks, const UlyssesCase& c, int rank, int num_calls) {
    cudaGraph_t graph = nullptr;
    const auto stream = static_cast<cudaStream_t>(ranks.stream(rank).handle);
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < num_calls; ++i) ranks.run(c, rank);
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&graph_, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  ~Graph() { (void)cudaGraphExecDestroy(graph_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(xstage::Stream stream) {
    check(cudaGraphLaunch(graph_, static_cast<cudaStream_t>(stream.handle)), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

// One captured call, always into the same buffer: destinations are reused from call to call, with
// new inputs each time, while another stream holds an SM.
TEST(Ulysses, GraphsReplayWithNewInputsWhileAnotherStreamHoldsAnSm) {
  REQUIRE_HOPPER();
  constexpr int kNumRanks = 4;
  constexpr int kNumReplays = 1000;
  AttentionShape max = plain_shape(700, 8);
  max.max_rows_per_rank = 240;  // a shard and the replicated rows
  UlyssesRanks ranks(max, kNumRanks);
  UlyssesCase c = plain_case(700);
  c.call.prefix_rows = 30;
  c.options.send.chunk_bytes = 4096;
  c.options.send.steps_per_chunk = 1;
  UlyssesCase warm = c;  // nothing is loaded during the capture
  warm.num_rows = warm.num_keys = 700;
  ranks.run(warm);
  check(cudaDeviceSynchronize(), "warm-up");
  std::vector<std::unique_ptr<Graph>> graphs;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    graphs.push_back(std::make_unique<Graph>(ranks, c, rank, 1));
  }
  const int slot = ranks.slot_of(0);
  check(cudaFuncSetAttribute(hold_sm, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024),
        "cudaFuncSetAttribute");
  Buffer release(Buffer::Place::pinned_host, 0, 64);
  *release.as<volatile std::uint32_t>() = 0;
  Stream holder(0);
  hold_sm<<<1, 32, 200 * 1024, holder.get()>>>(release.as<std::uint32_t>());
  std::uint64_t different = 0;
  for (int replay = 0; replay < kNumReplays; ++replay) {
    ranks.fill(c, static_cast<std::uint32_t>(replay));
    ranks.poison();
    ranks.expect(c, slot);
    check(cudaStreamSynchronize(nullptr), "reference");
    for (int rank = 0; rank < kNumRanks; ++rank) {
      graphs[static_cast<std::size_t>(rank)]->launch(ranks.stream(rank));
    }
    for (int rank = 0; rank < kNumRanks; ++rank) ranks.streams[rank]->synchronize();
    different += ranks.take_different();
    if (different != 0) break;
  }
  *release.as<volatile std::uint32_t>() = 1;
  check(cudaDeviceSynchronize(), "holder");
  ranks.check_groups();
  EXPECT_EQ(different, 0u);
}

// Ranks run free of each other for thousands of calls; each looks at its own result, poisons it and
// goes on.
TEST(Ulysses, TenThousandCalls) {
  REQUIRE_HOPPER();
  constexpr int kNumCalls = 10'000;
  const int sizes[] = {2, 3, 8};
  for (const int num_ranks : sizes) {
    const AttentionShape max = plain_shape(300, 8);
    UlyssesRanks ranks(max, num_ranks, {}, kDeadlineNs);
    UlyssesCase c = plain_case(300);
    c.call.suffix_rows = 0;
    ranks.fill(c, 1);
    ranks.poison();
    ranks.expect(c, 0);
    ranks.expect(c, 1);
    (void)ranks.take_different();  // nothing is loaded while ranks wait for each other
    c.options.path = ExchangePath::serial;
    ranks.reserve(c);
    check(cudaDeviceSynchronize(), "reference");
    const std::size_t bytes = ranks.layout().out_bytes;
    const int calls = kNumCalls / static_cast<int>(std::size(sizes)) + 1;
    for (int call = 0; call < calls; ++call) {
      const std::size_t at = ranks.layout().out_offset[call % attention::kNumSlots];
      for (int rank = 0; rank < num_ranks; ++rank) {
        c.options.send.steps_per_chunk = static_cast<std::uint32_t>(call % 3);
        c.options.path = call % 7 == 0 ? ExchangePath::serial : ExchangePath::automatic;
        ranks.run(c, rank);
        const auto stream = static_cast<cudaStream_t>(ranks.stream(rank).handle);
        ranks.count_different_at(rank, at, bytes, ranks.stream(rank));
        check(cudaMemsetAsync(ranks.region(rank) + at, kPoisonByte, bytes, stream), "poison");
      }
    }
    check(cudaDeviceSynchronize(), "calls");
    ranks.check_groups();
    EXPECT_EQ(ranks.read_different(), 0u) << num_ranks << " ranks";
  }
}

// Every tile's rows are seen to be finished, sent, read and visible, in this order.
TEST(Ulysses, RecordsWhatItsSendersDo) {
  REQUIRE_HOPPER();
  const AttentionShape max = plain_shape(1024, 4);
  UlyssesRanks ranks(max, 2);
  UlyssesCase c = plain_case(1024);
  c.call.split_last_wave = false;
  c.options.num_sms = 5;
  for (UlyssesAttention& op : ranks.ops) op.record(8);
  ranks.fill(c, 1);
  check(cudaDeviceSynchronize(), "inputs");
  for (int call = 0; call < 2; ++call) {
    ranks.run(c);
    for (const UlyssesAttention& op : ranks.ops) {
      const Timeline timeline = op.timeline();
      std::vector<int> num_seen(16, 0);  // 8 query blocks of 2 heads; twice, for two groups
      for (const Span& span : timeline.spans) {
        ASSERT_GE(span.sm, 0);
        ASSERT_LT(span.sm, 5);
        ASSERT_LT(span.start_ns, span.end_ns);
        ASSERT_GE(span.task, 0);
        ASSERT_LT(span.task, 16);
        if (span.kind == SpanKind::compute) ++num_seen[static_cast<std::size_t>(span.task)];
      }
      for (const int count : num_seen) EXPECT_EQ(count, 2);
    }
  }
}

TEST(Ulysses, APeerThatNeverCallsIsNamed) {
  REQUIRE_HOPPER();
  const AttentionShape max = plain_shape(300, 4);
  UlyssesRanks ranks(max, 2, {}, 50'000'000);
  const UlyssesCase c = plain_case(300);
  ranks.fill(c, 1);
  check(cudaDeviceSynchronize(), "inputs");
  ranks.run(c, 0);
  check(cudaDeviceSynchronize(), "a call without the peer");
  try {
    ranks.memories[0].check();
    FAIL() << "nothing failed";
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::timeout);
    EXPECT_NE(std::string(error.what()).find("rank 0 waited"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(ranks.ops[0].status().peers.fine);
}

TEST(Ulysses, MemoryThatIsTooSmallIsRefused) {
  REQUIRE_HOPPER();
  const AttentionShape max = plain_shape(300, 4);
  const std::size_t bytes = UlyssesAttention::buffer_bytes(max, 1);
  const int device = 0;
  auto memories = PeerMemory::create_local({&device, 1}, bytes - 1);
  try {
    UlyssesAttention op(memories[0], max);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::usage);
    EXPECT_NE(std::string(error.what()).find(std::to_string(bytes) + " are needed"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace xstage::test
