// Peer memory over fake memory: real processes, real descriptors, no GPU.
#include "xstage/peers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fake_memory.hpp"
#include "peers/group_impl.hpp"
#include "peers/memory_api.hpp"
#include "peers_rows.hpp"
#include "processes.hpp"
#include "xstage/error.hpp"
#include "xstage/topology.hpp"

namespace xstage {
namespace {

using peers::FakeMemory;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using testing_support::fresh_job;
using testing_support::join;
using testing_support::Outcome;
using testing_support::random_words;
using testing_support::run_ranks;
using testing_support::store;

std::size_t num_open_fds() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

class PeersOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, PeersOf, ::testing::Values(1, 2, 3, 5, 8));

// Everybody writes its own random words into its own section at everybody, and checks every byte of
// what it got.
std::string exchange_sections(const PeerMemory& memory, const std::function<void()>& barrier) {
  const int num_ranks = memory.num_ranks();
  const std::size_t section = memory.bytes() / static_cast<std::size_t>(num_ranks) / 4 * 4;
  for (int to = 0; to < num_ranks; ++to) {
    const auto seed = static_cast<std::uint32_t>(memory.rank() * 100 + to);
    store(memory, to, section * static_cast<std::size_t>(memory.rank()),
          random_words(section / 4, seed));
  }
  barrier();
  std::vector<std::uint32_t> got(section / 4);
  for (int from = 0; from < num_ranks; ++from) {
    memory.read(memory.rank(), section * static_cast<std::size_t>(from), got.data(), section);
    const auto seed = static_cast<std::uint32_t>(from * 100 + memory.rank());
    if (got != random_words(section / 4, seed)) return "wrong bytes from " + std::to_string(from);
  }
  barrier();
  return "right";
}

TEST_P(PeersOf, ProcessesReachEachOthersMemory) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(GetParam(), [&](int rank) {
    auto api = std::make_shared<FakeMemory>();
    Group group = join(rank, GetParam(), job);
    PeerMemory memory = peers::create(api, group, 200'000, {});
    return exchange_sections(memory, [&] { group.barrier(); });
  });
  EXPECT_THAT(outcomes, Each(AllOf(Field(&Outcome::exit_code, 0), Field(&Outcome::text, "right"))));
}

TEST_P(PeersOf, OneProcessReachesAllRanks) {
  auto api = std::make_shared<FakeMemory>();
  const std::vector<int> devices(static_cast<std::size_t>(GetParam()), 0);
  std::vector<PeerMemory> members = peers::create_local(api, devices, 100'000, {});
  ASSERT_EQ(members.size(), devices.size());
  std::vector<std::string> results(members.size());
  std::atomic<int> arrived{0};
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    threads.emplace_back([&, rank] {
      int phase = 0;
      results[rank] = exchange_sections(members[rank], [&] {
        ++arrived;
        ++phase;
        while (arrived < phase * GetParam()) std::this_thread::yield();
      });
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(results, Each("right"));
}

TEST(Peers, BytesAreZeroAndAlignedAndOverheadIsSmall) {
  auto api = std::make_shared<FakeMemory>();
  const int devices[] = {0, 0};
  std::vector<PeerMemory> members = peers::create_local(api, devices, 12'345, {});
  for (const PeerMemory& member : members) {
    std::vector<unsigned char> bytes(12'345, 1);
    member.read(member.rank(), 0, bytes.data(), bytes.size());
    EXPECT_THAT(bytes, Each(0));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(member.table().bases[member.rank()]) % 4096, 0u);
    EXPECT_LE(member.overhead_bytes(), 4u << 20);
    EXPECT_EQ(member.bytes(), 12'345u);
  }
}

TEST(Peers, ControlBlocksKnowTheirRanks) {
  auto api = std::make_shared<FakeMemory>();
  const int devices[] = {0, 1, 0};
  std::vector<PeerMemory> members = peers::create_local(api, devices, 64, {});
  for (const PeerMemory& member : members) {
    const RankControl* control = member.wait_context().control;
    EXPECT_EQ(control, control_of(member.table(), member.rank()));
    EXPECT_EQ(control->rank, member.rank());
    EXPECT_EQ(control->num_ranks, 3);
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(control->peers[peer], control_of(member.table(), peer));
    }
    EXPECT_EQ(member.wait_context().abort, &control->abort);
    EXPECT_EQ(member.wait_context().deadline_ns, PeerOptions{}.deadline_ns);
  }
  EXPECT_EQ(members[0].num_co_located(), 2);
  EXPECT_EQ(members[1].num_co_located(), 1);
  EXPECT_EQ(members[2].co_located_idx(), 1);
}

TEST(Peers, SharesOfAGpuAddUp) {
  for (int count = 1; count <= 8; ++count) {
    int sum = 0;
    for (int idx = 0; idx < count; ++idx) sum += sm_share(132, count, idx);
    EXPECT_EQ(sum, 132);
  }
}

TEST(Peers, SeventyTwoRanksByType) {
  auto api = std::make_shared<FakeMemory>();
  const std::vector<int> most(72, 0);
  EXPECT_EQ(peers::create_local(api, most, 64, {}).size(), 72u);
  for (const std::size_t count : {std::size_t{0}, std::size_t{73}}) {
    const std::vector<int> devices(count, 0);
    try {
      (void)peers::create_local(api, devices, 64, {});
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.category(), ErrorCategory::usage);
      EXPECT_THAT(error.what(), HasSubstr("1..72"));
    }
  }
}

TEST(Peers, UuidsDecideWhoIsCoLocatedNotOrdinals) {
  const std::string job = fresh_job();
  // Each process has its own CUDA_VISIBLE_DEVICES: ordinal 0 is another GPU in each, or the same
  // one under another number.
  const std::vector<std::vector<std::string>> masks = {
      {"gpu-a", "gpu-b"}, {"gpu-b"}, {"gpu-b", "gpu-a"}, {"gpu-c"}};
  const std::vector<int> devices = {0, 0, 1, 0};
  const auto outcomes = run_ranks(4, [&](int rank) {
    const auto idx = static_cast<std::size_t>(rank);
    auto api = std::make_shared<FakeMemory>();
    api->uuids = masks[idx];
    Group group = join(rank, 4, job);
    PeerOptions options;
    options.device = devices[idx];
    PeerMemory memory = peers::create(api, group, 4096, options);
    const std::string exchange = exchange_sections(memory, [&] { group.barrier(); });
    return exchange + " " + std::to_string(memory.num_co_located()) + " " +
           std::to_string(memory.co_located_idx());
  });
  EXPECT_EQ(outcomes[0].text, "right 2 0");  // gpu-a, with rank 2
  EXPECT_EQ(outcomes[1].text, "right 1 0");
  EXPECT_EQ(outcomes[2].text, "right 2 1");
  EXPECT_EQ(outcomes[3].text, "right 1 0");
}

struct Failure {
  const char* where;
  ErrorCategory category;
};
void PrintTo(const Failure& failure, std::ostream* out) {
  *out << failure.where;
}

class FailingRank : public ::testing::TestWithParam<Failure> {};
INSTANTIATE_TEST_SUITE_P(Steps, FailingRank,
                         ::testing::Values(Failure{"require", ErrorCategory::not_possible},
                                           Failure{"create", ErrorCategory::runtime},
                                           Failure{"page", ErrorCategory::runtime},
                                           Failure{"export", ErrorCategory::not_possible},
                                           Failure{"import", ErrorCategory::runtime},
                                           Failure{"write", ErrorCategory::runtime}));

TEST_P(FailingRank, FailsAllAlikeLeavesNothingAndTheGroupLives) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(3, [&](int rank) {
    auto api = std::make_shared<FakeMemory>();
    Group group = join(rank, 3, job);
    const std::size_t fds_before = num_open_fds();
    if (rank == 1) {
      api->fail_at = GetParam().where;
      api->fail_category = GetParam().category;
    }
    std::string text;
    try {
      (void)peers::create(api, group, 4096, {});
      text = "created";
    } catch (const Error& error) {
      text = std::to_string(error.exit_code()) + " " + error.what();
    }
    text += " | left: " + std::to_string(api->num_blocks) + " blocks, " +
            std::to_string(api->num_pages) + " pages, " +
            std::to_string(num_open_fds() - fds_before) + " descriptors";
    api->fail_at.clear();  // and now again, with the same group
    PeerMemory memory = peers::create(api, group, 4096, {});
    return text + " | " + exchange_sections(memory, [&] { group.barrier(); });
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
    EXPECT_EQ(outcome.text, outcomes[0].text);
    EXPECT_THAT(outcome.text,
                HasSubstr("rank 1: made to fail at " + std::string(GetParam().where)));
    EXPECT_THAT(outcome.text, HasSubstr("left: 0 blocks, 0 pages, 0 descriptors | right"));
    EXPECT_EQ(outcome.text[0], static_cast<char>('0' + static_cast<int>(GetParam().category)));
  }
}

TEST(Peers, DifferentSizesAreTheSameErrorEverywhere) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(3, [&](int rank) {
    auto api = std::make_shared<FakeMemory>();
    Group group = join(rank, 3, job);
    (void)peers::create(api, group, rank == 2 ? 8192 : 4096, {});
    return std::string("created");
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.text, HasSubstr("rank 0 asks for 4096 bytes, rank 2 for 8192"));
  }
}

TEST(Peers, ImpossibleSizesAreRefused) {
  auto api = std::make_shared<FakeMemory>();
  const int devices[] = {0};
  EXPECT_THROW((void)peers::create_local(api, devices, ~std::size_t{0}, {}), Error);
  EXPECT_EQ(api->num_calls, 0);
}

TEST(Peers, NothingIsAllocatedDuringCapture) {
  auto api = std::make_shared<FakeMemory>();
  api->is_capturing = true;
  const int devices[] = {0, 0};
  try {
    (void)peers::create_local(api, devices, 64, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::usage);
    EXPECT_THAT(error.what(), HasSubstr("captured"));
  }
  EXPECT_EQ(api->num_calls, 0);
}

TEST(Peers, ARankLostDuringCreationIsNamed) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(3, [&](int rank) {
    auto api = std::make_shared<FakeMemory>();
    Group group = join(rank, 3, job);
    if (rank == 2) ::kill(::getpid(), SIGKILL);
    (void)peers::create(api, group, 4096, {});
    return std::string("created");
  });
  EXPECT_EQ(outcomes[0].exit_code, 5) << outcomes[0].text;
  EXPECT_EQ(outcomes[1].exit_code, 5) << outcomes[1].text;
  EXPECT_THAT(outcomes[1].text, HasSubstr("rank 2"));
}

TEST(Peers, ALostRankStopsTheWaitsOfAllOthers) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(3, [&](int rank) {
    auto api = std::make_shared<FakeMemory>();
    Group group = join(rank, 3, job);
    PeerMemory memory = peers::create(api, group, 4096, {});
    memory.check();
    group.barrier();
    if (rank == 1) ::kill(::getpid(), SIGKILL);
    // What a kernel's wait looks at.
    const HostPage* page = memory.wait_context().control->host_page;
    for (int i = 0; i < 1000 && __atomic_load_n(&page->abort, __ATOMIC_ACQUIRE) == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (__atomic_load_n(&page->abort, __ATOMIC_ACQUIRE) == 0) return std::string("not stopped");
    memory.check();
    return std::string("check passed");
  });
  for (const int rank : {0, 2}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.exit_code, 5) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("rank 1 was lost"));
  }
}

TEST(Peers, AFailedWaitIsToldInFull) {
  auto api = std::make_shared<FakeMemory>();
  const int devices[] = {0, 0};
  std::vector<PeerMemory> members = peers::create_local(api, devices, 64, {});
  EXPECT_NO_THROW(members[0].check());
  HostPage* page = members[0].wait_context().control->host_page;
  page->local_wait = {0, -1, 2, 66, 65, 0, 2'500'000'000, 1};
  EXPECT_THAT(members[0].status().text, HasSubstr("its own other CTAs, tag grid_barrier"));
  // The wait that the others waited for tells more.
  page->peer_wait = {0, 1, 1, 7, 6, 0, 2'500'000'000, 2};
  try {
    members[0].check();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::timeout);
    EXPECT_STREQ(error.what(),
                 "rank 0 waited 2.5 s for rank 1, tag rank_barrier (1): expected 7, saw 6; its "
                 "deadline passed");
  }
  EXPECT_NO_THROW(members[1].check());
  members[1].abort();
  EXPECT_THROW(members[1].check(), Error);
}

TEST(Peers, CloseOrderDoesNotMatterAndCloseIsIdempotent) {
  std::vector<int> order = {0, 1, 2};
  do {
    auto api = std::make_shared<FakeMemory>();
    const int devices[] = {0, 0, 0};
    std::vector<PeerMemory> members = peers::create_local(api, devices, 4096, {});
    const auto words = random_words(8, 1);
    for (const int rank : order) {
      const auto idx = static_cast<std::size_t>(rank);
      for (int to = 0; to < 3; ++to) store(members[idx], to, 0, words);  // still mapped
      members[idx].close();
      members[idx].close();
      EXPECT_EQ(members[idx].table().bases[0], nullptr);
      EXPECT_EQ(members[idx].wait_context().abort, nullptr);
      EXPECT_THROW(members[idx].write(0, 0, words.data(), 4), Error);
    }
    EXPECT_EQ(api->num_blocks, 0);
    EXPECT_EQ(api->num_pages, 0);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Peers, MemoryOutlivesGroupAndPeers) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(3, [&](int rank) {
    auto api = std::make_shared<FakeMemory>();
    Group group = join(rank, 3, job);
    PeerMemory memory = peers::create(api, group, 4096, {});
    group.barrier();
    if (rank == 0) group.leave();  // the hub first
    if (rank == 1) memory.close();
    std::this_thread::sleep_for(std::chrono::milliseconds(50 * rank));
    const auto words = random_words(8, 1);
    if (rank != 1) {
      for (int to = 0; to < 3; ++to) store(memory, to, 0, words);
      memory.check();
    }
    memory.close();
    return std::to_string(api->num_blocks + api->num_pages);
  });
  EXPECT_THAT(outcomes, Each(AllOf(Field(&Outcome::exit_code, 0), Field(&Outcome::text, "0"))));
}

TEST(Peers, AThousandCyclesLeakNothing) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(2, [&](int rank) {
    auto api = std::make_shared<FakeMemory>();
    Group group = join(rank, 2, job);
    std::size_t fds = 0;
    for (int i = 0; i < 1000; ++i) {
      PeerMemory memory = peers::create(api, group, 4096, {});
      memory.close();
      if (i == 0) fds = num_open_fds();
    }
    return std::to_string(api->num_blocks) + " " + std::to_string(api->num_pages) + " " +
           std::to_string(static_cast<long>(num_open_fds()) - static_cast<long>(fds));
  });
  EXPECT_THAT(outcomes, Each(Field(&Outcome::text, "0 0 0")));
}

TEST(Peers, MovedFromIsHarmless) {
  auto api = std::make_shared<FakeMemory>();
  const int devices[] = {0};
  PeerMemory first = std::move(peers::create_local(api, devices, 64, {})[0]);
  PeerMemory second = std::move(first);
  first.close();  // NOLINT(bugprone-use-after-move): that is the test
  EXPECT_EQ(first.table().num_ranks, 0);
  EXPECT_TRUE(first.status().fine);
  EXPECT_THROW(first.write(0, 0, nullptr, 0), Error);
  EXPECT_EQ(second.num_ranks(), 1);
}

TEST(Peers, AccessOutsideTheBytesIsRefused) {
  auto api = std::make_shared<FakeMemory>();
  const int devices[] = {0, 0};
  std::vector<PeerMemory> members = peers::create_local(api, devices, 64, {});
  std::uint64_t word = 0;
  EXPECT_NO_THROW(members[0].write(1, 56, &word, 8));
  EXPECT_THROW(members[0].write(1, 57, &word, 8), Error);
  EXPECT_THROW(members[0].read(1, ~std::size_t{0}, &word, 8), Error);
  EXPECT_THROW(members[0].read(2, 0, &word, 8), Error);
  EXPECT_THROW(members[0].read(-1, 0, &word, 8), Error);
}

TEST(Peers, WithoutAGpuTheReasonIsGiven) {
  if (!discover().gpus.empty()) GTEST_SKIP() << "this machine has a GPU";
  const int devices[] = {0};
  try {
    (void)PeerMemory::create_local(devices, 64);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::not_possible);
  }
}

// Each process sees one GPU alone, as srun gives them out.
Topology alone_with(const std::string& uuid) {
  Topology topology;
  topology.host_id = "here";
  Gpu gpu;
  gpu.uuid = uuid;
  gpu.pci_bus_id = "bus of " + uuid;
  gpu.compute_major = 9;
  gpu.cooperative_launch = gpu.virtual_memory = gpu.posix_descriptors = true;
  topology.gpus.push_back(gpu);
  PeerEdge host;
  host.to = kHostPeer;
  host.access = true;
  topology.edges.push_back(host);
  return topology;
}

TEST(GroupTopology, UnseenPairsAreTriedOutAndAllRanksAgree) {
  for (const std::string fail_at : {"", "import"}) {
    const std::string job = fresh_job();
    const auto outcomes = run_ranks(3, [&](int rank) {
      auto api = std::make_shared<FakeMemory>();
      if (rank == 2) api->fail_at = fail_at;
      Group group = join(rank, 3, job);
      const Topology merged = peers::gather_topology([&] { return api; }, group,
                                                     alone_with("gpu-" + std::to_string(rank)));
      const Verdict verdict = judge(merged);
      std::string text = std::to_string(verdict.exit_code) + " " + verdict.summary;
      for (const std::string& finding : verdict.findings) text += "\n" + finding;
      return text;
    });
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
      EXPECT_EQ(outcome.text, outcomes[0].text);
    }
    if (fail_at.empty()) {
      EXPECT_EQ(outcomes[0].text, "0 3 GPUs, all 6 directed pairs usable");
    } else {
      EXPECT_EQ(outcomes[0].text[0], '3');
      EXPECT_THAT(outcomes[0].text, HasSubstr("rank 2: made to fail at import"));
    }
  }
}

TEST(GroupTopology, ARankWithoutAGpuDoesNotHoldUpTheOthers) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(2, [&](int rank) {
    auto api = std::make_shared<FakeMemory>();
    Group group = join(rank, 2, job);
    Topology mine = alone_with("gpu-0");
    if (rank == 1) mine = Topology{};
    const Verdict verdict = judge(peers::gather_topology([&] { return api; }, group, mine));
    return std::to_string(verdict.exit_code) + " " + verdict.summary;
  });
  EXPECT_EQ(outcomes[0].exit_code, 0);
  EXPECT_EQ(outcomes[0].text, outcomes[1].text);
  EXPECT_THAT(outcomes[0].text, HasSubstr("one GPU"));
}

}  // namespace
}  // namespace xstage
