// Peer memory that somebody else mapped, and images of ranks that do not exist.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fake_memory.hpp"
#include "peers/memory_api.hpp"
#include "peers_rows.hpp"
#include "processes.hpp"
#include "xstage/error.hpp"
#include "xstage/peers.hpp"

namespace xstage {
namespace {

using peers::FakeMemory;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using testing_support::fresh_job;
using testing_support::join;
using testing_support::Outcome;
using testing_support::random_words;
using testing_support::run_ranks;
using testing_support::store;

class AdoptedPeers : public ::testing::Test {
 protected:
  std::shared_ptr<FakeMemory> api = std::make_shared<FakeMemory>();
  struct alignas(4096) Room {
    unsigned char bytes[3 * 4096];
  };
  std::vector<Room> rooms{std::vector<Room>(3)};
  std::vector<void*> bases{rooms[0].bytes, rooms[1].bytes, rooms[2].bytes};

  std::string refusal(int rank, std::size_t bytes) {
    try {
      (void)peers::adopt(api, bases, rank, bytes, {});
    } catch (const Error& error) {
      return std::to_string(error.exit_code()) + " " + error.what();
    }
    return "accepted";
  }
};

TEST_F(AdoptedPeers, BecomePeers) {
  std::memset(rooms.data(), 0xee, rooms.size() * sizeof(Room));
  for (int rank = 0; rank < 3; ++rank) {
    PeerMemory memory = peers::adopt(api, bases, rank, sizeof(Room), {});
    EXPECT_EQ(memory.bytes(), sizeof(Room) - kControlBytes);
    EXPECT_EQ(memory.table().bases[2], rooms[2].bytes + kControlBytes);
    EXPECT_EQ(memory.wait_context().control->rank, rank);
    EXPECT_EQ(memory.wait_context().control->epoch, 0u);
  }
  EXPECT_EQ(rooms[1].bytes[kControlBytes], 0xee) << "the user's bytes are left alone";
  EXPECT_EQ(api->num_pages, 0);
}

TEST_F(AdoptedPeers, BadPointersAreRefusedByRank) {
  EXPECT_THAT(refusal(3, sizeof(Room)), HasSubstr("2 rank 3: legal 0..2"));
  EXPECT_THAT(refusal(-1, sizeof(Room)), HasSubstr("2 rank -1"));
  EXPECT_THAT(refusal(0, 100), HasSubstr("at least 4096"));
  bases[1] = nullptr;
  EXPECT_THAT(refusal(0, sizeof(Room)), HasSubstr("3 rank 1 has no mapped pointer"));
  bases[1] = bases[2];
  EXPECT_THAT(refusal(0, sizeof(Room)), HasSubstr("rank 2 has the same base"));
  bases[1] = rooms[1].bytes + 4;
  EXPECT_THAT(refusal(0, sizeof(Room)), HasSubstr("rank 1 is not a multiple"));
}

TEST(EmulatedPeers, GhostsHavePoisonedImagesOfTheirOwn) {
  auto api = std::make_shared<FakeMemory>();
  const int devices[] = {0, 1};
  std::vector<PeerMemory> real = peers::create_local(api, devices, 1000, {});
  std::vector<PeerMemory> members;
  for (PeerMemory& member : real) {
    members.push_back(PeerMemory::emulate(std::move(member), 8));
  }
  std::map<void*, int> seen;
  for (const PeerMemory& member : members) {
    EXPECT_TRUE(member.emulated());
    EXPECT_EQ(member.num_ranks(), 8);
    EXPECT_EQ(member.num_computing_ranks(), 2);
    for (int ghost = 2; ghost < 8; ++ghost) {
      EXPECT_EQ(seen.count(member.table().bases[ghost]), 0u);
      seen[member.table().bases[ghost]] = ghost;
      std::vector<std::uint32_t> words(250);
      member.read(ghost, 0, words.data(), 1000);
      EXPECT_THAT(words, Each(poison(ghost)));
    }
  }
  EXPECT_EQ(members[0].table().bases[1], members[1].table().bases[1]) << "real ranks stay joined";
}

TEST(EmulatedPeers, GhostsHaveArrivedAtEveryBarrierAndComputingRanksHaveNot) {
  auto api = std::make_shared<FakeMemory>();
  const int devices[] = {0, 0};
  std::vector<PeerMemory> real = peers::create_local(api, devices, 64, {});
  // Rank 1 has already arrived at its first barrier when rank 0 becomes emulated.
  real[1].wait_context().control->peers[0]->arrivals[1] = 1;
  const PeerMemory member = PeerMemory::emulate(std::move(real[0]), 8);
  const RankControl* control = member.wait_context().control;
  EXPECT_EQ(control->num_ranks, 8);
  EXPECT_EQ(control->arrivals[1], 1u);
  for (int ghost = 2; ghost < 8; ++ghost) {
    for (const std::uint32_t epoch : {1u, 1'000'000'000u, 0x7fffffffu}) {
      EXPECT_GE(static_cast<std::int32_t>(control->arrivals[ghost] - epoch), 0);
    }
    EXPECT_EQ(control->peers[ghost], control_of(member.table(), ghost));
  }
}

TEST(EmulatedPeers, RowsSentToGhostsCanBeCheckedAndInputsPrefilled) {
  auto api = std::make_shared<FakeMemory>();
  const int devices[] = {0};
  std::vector<PeerMemory> real = peers::create_local(api, devices, 4096, {});
  PeerMemory member = PeerMemory::emulate(std::move(real[0]), 4);
  const auto row = random_words(64, 5);
  store(member, 2, 1024, row);
  std::vector<std::uint32_t> got(64);
  member.read(2, 1024, got.data(), 256);
  EXPECT_EQ(got, row);
  member.read(3, 1024, got.data(), 256);
  EXPECT_THAT(got, Each(poison(3)));
  member.write(3, 0, row.data(), 256);  // what the ghost would have computed
  member.read(3, 0, got.data(), 256);
  EXPECT_EQ(got, row);
}

TEST(EmulatedPeers, WorkAcrossProcesses) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(2, [&](int rank) {
    auto api = std::make_shared<FakeMemory>();
    Group group = join(rank, 2, job);
    PeerMemory memory = PeerMemory::emulate(peers::create(api, group, 4096, {}), 6);
    const auto mine = random_words(16, static_cast<std::uint32_t>(rank));
    for (int to = 0; to < 6; ++to) store(memory, to, static_cast<std::size_t>(rank) * 64, mine);
    group.barrier();
    std::vector<std::uint32_t> got(16);
    memory.read(rank, static_cast<std::size_t>(1 - rank) * 64, got.data(), 64);
    const bool from_peer = got == random_words(16, static_cast<std::uint32_t>(1 - rank));
    memory.read(4, static_cast<std::size_t>(1 - rank) * 64, got.data(), 64);
    const bool own_image = got[0] == poison(4);  // the other's rows go to the other's image
    group.barrier();
    memory.close();
    return std::string(from_peer && own_image ? "right" : "wrong") + " " +
           std::to_string(api->num_blocks);
  });
  EXPECT_THAT(outcomes, Each(Field(&Outcome::text, "right 0")));
}

TEST(EmulatedPeers, ImpossibleRankCountsAreRefused) {
  auto api = std::make_shared<FakeMemory>();
  const int devices[] = {0, 0};
  for (const int num_ranks : {1, 0, -5, 73}) {
    std::vector<PeerMemory> real = peers::create_local(api, devices, 64, {});
    EXPECT_THROW((void)PeerMemory::emulate(std::move(real[0]), num_ranks), Error) << num_ranks;
  }
  std::vector<PeerMemory> real = peers::create_local(api, devices, 64, {});
  EXPECT_FALSE(PeerMemory::emulate(std::move(real[0]), 2).emulated());
}

}  // namespace
}  // namespace xstage
