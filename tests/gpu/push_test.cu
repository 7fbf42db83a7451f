// The serial exchange on GPUs: every rank pushes into every rank's buffer, with flags, twice into
// the same buffers, by bulk copies, register stores and the copy engine. Ranks are co-located, and
// spread over two GPUs where there are two. Every byte of every buffer, guards included.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "attention/exchange_reference.hpp"
#include "attention/push.hpp"
#include "device/ptx.cuh"
#include "gpu/exchange_cases.hpp"
#include "gpu/gpu.hpp"
#include "xstage/peers.hpp"

namespace xstage::test {
namespace {

using attention::PushOptions;
using attention::PushPlan;
using attention::PushSync;

constexpr std::size_t kHeaderBytes = 4096;
constexpr int kNumCalls = 2;

// At the start of every rank's memory.
struct Header {
  std::uint32_t epoch;
  std::uint32_t last_use;
  std::uint32_t counter;
  alignas(128) std::uint32_t arrived[kMaxRanks];
  alignas(128) std::uint32_t released[kMaxRanks];
};
static_assert(sizeof(Header) <= kHeaderBytes);

Header* header_of(const PeerTable& table, int rank) {
  return static_cast<Header*>(table.bases[rank]);
}

// This rank has read everything that its latest call brought.
__global__ void release_kernel(PeerTable table) {
  const std::uint32_t epoch = static_cast<Header*>(table.bases[table.rank])->epoch;
  for (int r = static_cast<int>(threadIdx.x); r < table.num_ranks; r += 32) {
    device::store_release_system(&static_cast<Header*>(table.bases[r])->released[table.rank],
                                 epoch);
  }
}

PushSync sync_of(const PeerMemory& memory) {
  const PeerTable table = memory.table();
  Header* mine = header_of(table, table.rank);
  PushSync sync;
  sync.wait = memory.wait_context();
  sync.epoch = &mine->epoch;
  sync.last_use = &mine->last_use;
  sync.counter = &mine->counter;
  for (int p = 0; p < table.num_ranks; ++p) {
    sync.owners.push_back({&header_of(table, p)->arrived[table.rank], &mine->released[p]});
  }
  return sync;
}

enum class Way { bulk, register16, copy_engine };
constexpr Way kWays[] = {Way::bulk, Way::register16, Way::copy_engine};

void carry_out(Way way, const PushPlan& plan, const PushSync& sync, int num_sms, Stream& stream) {
  const xstage::Stream s{stream.get()};
  if (way == Way::copy_engine) {
    attention::copy_by_engine(plan, sync, s);
    return;
  }
  PushOptions options;
  options.kind = way == Way::bulk ? PushOptions::Kind::bulk : PushOptions::Kind::register16;
  options.num_sms = num_sms;
  attention::push(plan, sync, options, s);
}

struct Rank {
  PeerMemory memory;
  std::unique_ptr<Stream> stream;
  std::vector<Buffer> sources;    // [call * tensors + tensor]
  std::vector<Buffer> snapshots;  // [call]: what the rank's memory held
  int num_sms = 1;

  explicit Rank(PeerMemory m) : memory(std::move(m)) {
    stream = std::make_unique<Stream>(memory.device());
    int sms = 0;
    check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, memory.device()), "SMs");
    num_sms = sm_share(sms, memory.num_co_located(), memory.co_located_idx());
  }
};

// Ranks whose memory holds header | guard tensor guard | guard tensor guard ...
class Ranks {
 public:
  Ranks(const ExchangeCase& c, int num_gpus, bool scatter, int num_tensors) {
    for (int p = 0; p < c.num_ranks; ++p) {
      const TensorView v = scatter ? c.local_view(nullptr, p) : c.owned_view(nullptr, p);
      tensor_bytes_ = std::max(tensor_bytes_, (extent_bytes(v) + 255) / 256 * 256);
    }
    stride_ = tensor_bytes_ + 2 * kGuardBytes;
    bytes_ = kHeaderBytes + static_cast<std::size_t>(num_tensors) * stride_;
    std::vector<int> devices;
    for (int p = 0; p < c.num_ranks; ++p) devices.push_back(p % num_gpus);
    PeerOptions options;
    options.deadline_ns = 20'000'000'000;
    for (auto& m : PeerMemory::create_local(devices, bytes_, options)) {
      ranks_.push_back(std::make_unique<Rank>(std::move(m)));
    }
    const std::vector<std::uint8_t> poison(bytes_ - kHeaderBytes, kPoison);
    for (auto& rank : ranks_) {
      rank->memory.write(rank->memory.rank(), kHeaderBytes, poison.data(), poison.size());
      for (int call = 0; call < kNumCalls; ++call) {
        rank->snapshots.emplace_back(Buffer::Place::device, rank->memory.device(), bytes_);
      }
    }
  }

  Rank& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] std::size_t offset(int tensor) const {
    return kHeaderBytes + static_cast<std::size_t>(tensor) * stride_ + kGuardBytes;
  }
  // Tensor `t` of all ranks, as `rank` sees them.
  [[nodiscard]] std::vector<void*> tensors(int rank, int tensor) {
    std::vector<void*> at;
    const PeerTable table = (*this)[rank].memory.table();
    for (int p = 0; p < table.num_ranks; ++p) {
      at.push_back(static_cast<char*>(table.bases[p]) + offset(tensor));
    }
    return at;
  }

 private:
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::size_t tensor_bytes_ = 0;
  std::size_t stride_ = 0;
  std::size_t bytes_ = 0;
};

// Guard, tensor, guard as the reference has them; behind the tensor all of the region is guard.
void expect_tensor(const std::vector<std::uint8_t>& snapshot, std::size_t offset,
                   const std::vector<std::uint8_t>& expected, int rank, int call) {
  const auto first = static_cast<std::ptrdiff_t>(offset - kGuardBytes);
  const std::vector<std::uint8_t> seen(
      snapshot.begin() + first,
      snapshot.begin() + first + static_cast<std::ptrdiff_t>(expected.size()));
  EXPECT_EQ(seen, expected) << "rank " << rank << ", call " << call;
}

// All calls of all ranks are enqueued before the host looks.
void run_case(const ExchangeCase& c, Way way, int num_gpus, bool scatter) {
  const int num_tensors = scatter ? attention::kMaxPushTensors : 1;
  Ranks ranks(c, num_gpus, scatter, num_tensors);
  std::vector<std::vector<PushPlan>> plans(static_cast<std::size_t>(c.num_ranks));
  for (int r = 0; r < c.num_ranks; ++r) {
    for (int call = 0; call < kNumCalls; ++call) {
      std::vector<void*> sources;
      for (int t = 0; t < num_tensors; ++t) {
        const auto salt = static_cast<std::uint32_t>(call);
        ranks[r].sources.push_back(
            upload(scatter ? owned_bytes(c, r, t, salt) : local_bytes(c, r, t, salt),
                   ranks[r].memory.device()));
        sources.push_back(ranks[r].sources.back().data() + kGuardBytes);
      }
      std::vector<std::vector<void*>> to;
      for (int t = 0; t < num_tensors; ++t) to.push_back(ranks.tensors(r, t));
      plans[static_cast<std::size_t>(r)].push_back(scatter ? plan_scatter(c, r, sources, to)
                                                           : plan_gather(c, r, sources[0], to[0]));
    }
  }
  for (int call = 0; call < kNumCalls; ++call) {
    for (int r = 0; r < c.num_ranks; ++r) {
      Rank& rank = ranks[r];
      check(cudaSetDevice(rank.memory.device()), "cudaSetDevice");
      const PushSync sync = sync_of(rank.memory);
      const PeerTable table = rank.memory.table();
      carry_out(way, plans[static_cast<std::size_t>(r)][static_cast<std::size_t>(call)], sync,
                rank.num_sms, *rank.stream);
      attention::wait_for_rows(sync.wait, sync.epoch, header_of(table, r)->arrived, c.num_ranks,
                               {rank.stream->get()});
      check(cudaMemcpyAsync(rank.snapshots[static_cast<std::size_t>(call)].data(), table.bases[r],
                            ranks.bytes(), cudaMemcpyDefault, rank.stream->get()),
            "snapshot");
      release_kernel<<<1, 32, 0, rank.stream->get()>>>(table);
      check(cudaGetLastError(), "release");
    }
  }
  for (int r = 0; r < c.num_ranks; ++r) {
    ranks[r].stream->synchronize();
    ranks[r].memory.check();
  }
  for (int r = 0; r < c.num_ranks; ++r) {
    for (int call = 0; call < kNumCalls; ++call) {
      const auto snapshot =
          download<std::uint8_t>(ranks[r].snapshots[static_cast<std::size_t>(call)]);
      for (int t = 0; t < num_tensors; ++t) {
        const auto salt = static_cast<std::uint32_t>(call);
        expect_tensor(snapshot, ranks.offset(t),
                      scatter ? local_bytes(c, r, t, salt) : owned_bytes(c, r, t, salt), r, call);
      }
      Header header{};
      std::memcpy(&header, snapshot.data(), sizeof header);
      EXPECT_EQ(header.epoch, static_cast<std::uint32_t>(call + 1));
      EXPECT_EQ(header.counter, 0u);
      for (int p = 0; p < c.num_ranks; ++p) {
        EXPECT_GE(header.arrived[p], header.epoch) << "rank " << r << " of " << p;
      }
    }
  }
}

// Loading a kernel waits for those that run: all are loaded before a rank waits for another.
void load_kernels() {
  attention::load_push_kernels();
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, release_kernel), "load");
}

void run_random(int num_gpus, int num_cases, bool scatter) {
  load_kernels();
  const std::uint32_t seed = choose_seed();
  std::cout << "seed " << seed << "\n";
  std::mt19937 random(seed);
  for (int i = 0; i < num_cases && !testing::Test::HasFailure(); ++i) {
    const ExchangeCase c = random_case(random);
    SCOPED_TRACE("case " + std::to_string(i) + ": " + c.text());
    for (const Way way : kWays) {
      SCOPED_TRACE("way " + std::to_string(static_cast<int>(way)));
      run_case(c, way, num_gpus, scatter);
    }
  }
}

TEST(Push, GathersRandomCasesOfCoLocatedRanks) {
  if (const auto why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  run_random(1, 120, false);
}

TEST(Push, ScattersRandomCasesOfCoLocatedRanks) {
  if (const auto why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  run_random(1, 40, true);
}

TEST(Push, GathersAndScattersAcrossTwoGpus) {
  if (const auto why = why_absent(Place::peer); !why.empty()) GTEST_SKIP() << why;
  for (int gpu = 0; gpu < 2; ++gpu) {
    check(cudaSetDevice(gpu), "cudaSetDevice");
    attention::load_push_kernels();
  }
  run_random(2, 60, false);
  run_random(2, 20, true);
}

TEST(Push, ManyRanksUseTheLargeParameterBlock) {
  if (const auto why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  load_kernels();
  ExchangeCase c;
  c.num_ranks = 12;
  c.num_batches = 2;
  c.prefix = 3;
  for (int p = 0; p < c.num_ranks; ++p) {
    c.shard_rows.push_back(p % 5);
    c.shard_heads.push_back(p % 3);
  }
  for (const Way way : kWays) {
    run_case(c, way, 1, false);
    run_case(c, way, 1, true);
  }
}

// Millions of bytes, against the reference on the GPU; no flags.
TEST(Push, LargeExchangeEqualsTheReference) {
  if (const auto why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  constexpr std::int64_t kRows = 8200;
  constexpr std::int64_t kHeads = 4;
  constexpr int kRanks = 8;
  const xstage::Stream stream{};
  const auto shards = SequenceShards::even(kRows, kRanks, 3, 5, 77);
  Buffer source(Buffer::Place::device, 0, kRows * kHeads * 128 * 2);
  std::vector<std::uint16_t> values(source.size() / 2);
  std::mt19937 random(choose_seed());
  for (auto& v : values) v = static_cast<std::uint16_t>(random());
  check(cudaMemcpy(source.data(), values.data(), source.size(), cudaMemcpyDefault), "upload");
  const auto from = TensorView::bshd(source.data(), DataType::bf16, 1, kRows, kHeads, 128);
  Buffer count(Buffer::Place::device, 0, sizeof(std::uint64_t));
  check(cudaMemset(count.data(), 0, count.size()), "memset");
  for (const Way way : kWays) {
    std::vector<Buffer> mine;
    std::vector<Buffer> reference;
    std::vector<TensorView> to;
    for (int p = 0; p < kRanks; ++p) {
      const std::int64_t rows = shards.owner_rows(p);
      const auto bytes = static_cast<std::size_t>(rows * kHeads * kRanks * 128 * 2);
      for (auto* list : {&mine, &reference}) {
        list->emplace_back(p % 2 == 0 ? Buffer::Place::device : Buffer::Place::pinned_host, 0,
                           bytes);
        check(cudaMemset(list->back().data(), 0x5a, bytes), "memset");
      }
      const auto view = [&](const Buffer& b) {
        return attention::heads_of(
            TensorView::bshd(b.data(), DataType::bf16, 1, rows, kHeads * kRanks, 128), 3 * kHeads,
            kHeads);
      };
      to.push_back(view(mine.back()));
      attention::reference_gather(shards, p, from, view(reference.back()), stream);
    }
    Stream side(0);
    check(cudaDeviceSynchronize(), "reference");
    carry_out(way, attention::gather_plan(shards, from, to), {}, 0, side);
    side.synchronize();
    for (int p = 0; p < kRanks; ++p) {
      const auto at = static_cast<std::size_t>(p);
      attention::count_different_bytes(mine[at].data(), reference[at].data(),
                                       static_cast<std::int64_t>(mine[at].size()),
                                       count.as<std::uint64_t>(), stream);
    }
    EXPECT_EQ(download<std::uint64_t>(count)[0], 0u) << "way " << static_cast<int>(way);
  }
}

TEST(Push, SaysWhyMemoryCannotBeStoredTo) {
  if (const auto why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  Buffer device(Buffer::Place::device, 0, 4096);
  Buffer host(Buffer::Place::pinned_host, 0, 4096);
  PeerTable table;
  table.num_ranks = 2;
  table.bases[0] = device.data();
  table.bases[1] = host.data();
  EXPECT_EQ(attention::why_not_storable(table, 0), "");
  std::vector<char> ordinary(4096);
  table.bases[1] = ordinary.data();
  EXPECT_NE(attention::why_not_storable(table, 0).find("ordinary host memory"), std::string::npos);
  table.bases[1] = nullptr;
  EXPECT_EQ(attention::why_not_storable(table, 0), "the memory of rank 1 is not mapped here");
}

}  // namespace
}  // namespace xstage::test
