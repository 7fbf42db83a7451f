// Topology on machines that exist only here: bridged pairs, one-way links, MIG, wrong bytes.
#include "xstage/topology.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "peers/topology_api.hpp"
#include "peers/topology_merge.hpp"
#include "xstage/error.hpp"

namespace xstage {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Pair = std::pair<int, int>;

// A machine with `num_gpus` GPUs, all joined unless listed.
class FakeMachine final : public peers::TopologyApi {
 public:
  int num_gpus = 0;
  std::string missing;
  std::set<Pair> no_access;
  std::set<Pair> edge_throws;
  std::set<int> gpu_throws;
  std::map<Pair, CanaryState> canaries;
  std::set<Pair> canary_throws;
  std::set<Pair> canaries_run;
  bool mig = false;

  peers::MachineFacts machine() override { return {13000, 13000, num_gpus, missing}; }
  Gpu gpu(int ordinal) override {
    if (gpu_throws.count(ordinal) != 0) throw Error(ErrorCategory::runtime, "fell off the bus");
    Gpu gpu;
    gpu.ordinal = ordinal;
    gpu.uuid = "GPU-" + std::string(1, static_cast<char>('a' + ordinal)) + "0000";
    gpu.compute_major = 9;
    gpu.num_sms = 132;
    gpu.cooperative_launch = true;
    gpu.virtual_memory = true;
    gpu.posix_descriptors = true;
    gpu.mig = mig;
    return gpu;
  }
  PeerEdge edge(const Gpu& from, const Gpu& to) override {
    const Pair pair{from.ordinal, to.ordinal};
    if (edge_throws.count(pair) != 0) throw Error(ErrorCategory::runtime, "invalid ordinal");
    PeerEdge edge;
    edge.access = no_access.count(pair) == 0;
    edge.link = edge.access ? LinkKind::nvlink : LinkKind::pcie;
    if (!edge.access) edge.reason = "cudaDeviceCanAccessPeer says no";
    return edge;
  }
  PeerEdge host_edge(const Gpu&) override {
    PeerEdge edge;
    edge.access = true;
    return edge;
  }
  peers::CanaryOutcome canary(const Gpu& from, const Gpu* to, const CanaryOptions&) override {
    const Pair pair{from.ordinal, to == nullptr ? kHostPeer : to->ordinal};
    canaries_run.insert(pair);
    if (canary_throws.count(pair) != 0) throw Error(ErrorCategory::runtime, "launch failed");
    const auto found = canaries.find(pair);
    if (found == canaries.end()) return {CanaryState::passed, ""};
    return {found->second, "3 of 262144 words differ, the first at byte 128"};
  }
};

FakeMachine machine(int num_gpus) {
  FakeMachine fake;
  fake.num_gpus = num_gpus;
  return fake;
}

Topology examined(FakeMachine& fake) {
  Topology topology = peers::discover(fake);
  peers::run_canary(fake, topology, {});
  return topology;
}

TEST(Topology, WholeMeshIsUsable) {
  FakeMachine fake = machine(8);
  const Topology topology = examined(fake);
  EXPECT_EQ(topology.edges.size(), 8u * 7u + 8u);
  const Verdict verdict = judge(topology);
  EXPECT_EQ(verdict.exit_code, 0);
  EXPECT_THAT(verdict.findings, IsEmpty());
  EXPECT_THAT(verdict.peer_groups, ElementsAre(ElementsAre(0, 1, 2, 3, 4, 5, 6, 7)));
}

TEST(Topology, NoDriverIsSaidNotThrown) {
  FakeMachine fake = machine(0);
  fake.missing = "no NVIDIA driver";
  const Verdict verdict = judge(examined(fake));
  EXPECT_EQ(verdict.exit_code, 3);
  EXPECT_EQ(verdict.summary, "no NVIDIA driver");
}

TEST(Topology, OneGpuHasTheHostAsPeer) {
  FakeMachine fake = machine(1);
  const Topology topology = examined(fake);
  EXPECT_THAT(fake.canaries_run, ElementsAre(Pair{0, kHostPeer}));
  const Verdict verdict = judge(topology);
  EXPECT_EQ(verdict.exit_code, 3);
  EXPECT_THAT(verdict.summary, HasSubstr("host memory"));
}

TEST(Topology, BridgedPairsAreTwoGroups) {
  FakeMachine fake = machine(4);
  for (int a : {0, 1}) {
    for (int b : {2, 3}) {
      fake.no_access.insert({a, b});
      fake.no_access.insert({b, a});
    }
  }
  const Topology topology = examined(fake);
  const Verdict verdict = judge(topology);
  EXPECT_EQ(verdict.exit_code, 3);
  EXPECT_THAT(verdict.peer_groups, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(verdict.findings, Contains(HasSubstr("GPU 1 -> GPU 2: no access")));
  EXPECT_THAT(verdict.findings, Contains(HasSubstr("{0 1} {2 3}")));
  EXPECT_NO_THROW(require_one_group(topology, {2, 3}));
  try {
    require_one_group(topology, {0, 1, 2});
    FAIL() << "accepted a split group";
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::not_possible);
    EXPECT_THAT(error.what(), HasSubstr("{0 1} {2 3}"));
  }
}

TEST(Topology, OneWayLinkIsNoGroup) {
  FakeMachine fake = machine(2);
  fake.no_access.insert({1, 0});
  const Topology topology = examined(fake);
  EXPECT_TRUE(usable(*topology.edge(0, 1)));
  EXPECT_FALSE(usable(*topology.edge(1, 0)));
  EXPECT_EQ(judge(topology).peer_groups.size(), 2u);
  EXPECT_EQ(fake.canaries_run.count({1, 0}), 0u) << "a pair without access has nothing to test";
}

TEST(Topology, WrongBytesCostOnlyTheirPair) {
  FakeMachine fake = machine(3);
  fake.canaries[{0, 2}] = CanaryState::corrupt;
  const Topology topology = examined(fake);
  EXPECT_EQ(topology.edge(0, 2)->canary, CanaryState::corrupt);
  EXPECT_EQ(topology.edge(2, 0)->canary, CanaryState::passed);
  EXPECT_EQ(topology.edge(1, 2)->canary, CanaryState::passed);
  const Verdict verdict = judge(topology);
  EXPECT_EQ(verdict.exit_code, 1);
  EXPECT_THAT(verdict.findings, Contains(HasSubstr("GPU 0 -> GPU 2: canary corrupt: 3 of")));
  EXPECT_THAT(verdict.peer_groups, ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
}

TEST(Topology, SilentPairIsGivenUpAlone) {
  FakeMachine fake = machine(2);
  fake.canaries[{1, 0}] = CanaryState::timed_out;
  const Verdict verdict = judge(examined(fake));
  EXPECT_EQ(verdict.exit_code, 5);
  EXPECT_TRUE(fake.canaries_run.count({0, kHostPeer}) == 1 &&
              fake.canaries_run.count({1, kHostPeer}) == 1);
}

TEST(Topology, ErrorsBecomeReasons) {
  FakeMachine fake = machine(3);
  fake.edge_throws.insert({0, 1});
  fake.canary_throws.insert({1, 2});
  const Topology topology = examined(fake);
  EXPECT_THAT(topology.edge(0, 1)->reason, HasSubstr("invalid ordinal"));
  EXPECT_EQ(topology.edge(1, 2)->canary, CanaryState::failed);
  EXPECT_THAT(topology.edge(1, 2)->canary_detail, HasSubstr("launch failed"));
  EXPECT_TRUE(usable(*topology.edge(2, 1)));
}

TEST(Topology, ALostGpuIsNamed) {
  FakeMachine fake = machine(2);
  fake.gpu_throws.insert(1);
  const Topology topology = examined(fake);
  ASSERT_EQ(topology.gpus.size(), 1u);
  EXPECT_THAT(topology.missing, HasSubstr("GPU 1: fell off the bus"));
}

TEST(Topology, MigIsNotPossible) {
  FakeMachine fake = machine(1);
  fake.mig = true;
  const Verdict verdict = judge(examined(fake));
  EXPECT_EQ(verdict.exit_code, 3);
  EXPECT_THAT(verdict.findings, Contains(HasSubstr("MIG")));
}

TEST(Topology, GpusAreFoundByOrdinalAndUuid) {
  FakeMachine fake = machine(3);
  const Topology topology = peers::discover(fake);
  EXPECT_EQ(find_gpu(topology, "2"), 2);
  EXPECT_EQ(find_gpu(topology, "GPU-b"), 1);
  for (const char* bad : {"3", "-1", "GPU-", "GPU-z", "", "1x", "99999999999999"}) {
    try {
      (void)find_gpu(topology, bad);
      ADD_FAILURE() << "accepted " << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.category(), ErrorCategory::usage);
      EXPECT_THAT(error.what(), HasSubstr("GPU-c0000"));
    }
  }
}

TEST(Topology, ThisMachineIsDescribedWithoutThrowing) {
  const Topology topology = discover();
  EXPECT_THAT(topology.host_id, Not(IsEmpty()));
  EXPECT_EQ(topology.gpus.empty(), !topology.missing.empty());
  const Verdict verdict = judge(topology);
  EXPECT_THAT(verdict.summary, Not(IsEmpty()));
  EXPECT_THAT(verdict.next, Not(IsEmpty()));
}

// What each of several processes sees through its own CUDA_VISIBLE_DEVICES.
Topology masked(const std::vector<int>& visible) {
  FakeMachine fake = machine(4);
  Topology all = examined(fake);
  for (std::size_t i = 0; i < all.gpus.size(); ++i) {
    all.gpus[i].pci_bus_id = "0000:0" + std::to_string(i) + ":00.0";
  }
  Topology mine;
  mine.host_id = all.host_id;
  for (const int gpu : visible) {
    mine.gpus.push_back(all.gpus[static_cast<std::size_t>(gpu)]);
    mine.gpus.back().ordinal = static_cast<int>(mine.gpus.size()) - 1;
  }
  for (std::size_t from = 0; from < visible.size(); ++from) {
    for (std::size_t to = 0; to < visible.size(); ++to) {
      if (from == to) continue;
      PeerEdge edge = *all.edge(visible[from], visible[to]);
      edge.from = static_cast<int>(from);
      edge.to = static_cast<int>(to);
      mine.edges.push_back(edge);
    }
    PeerEdge host = *all.edge(visible[from], kHostPeer);
    host.from = static_cast<int>(from);
    mine.edges.push_back(host);
  }
  return mine;
}

TEST(MergedTopology, PermutedMasksAreOneMachine) {
  const std::vector<Topology> views = {masked({0, 1, 2, 3}), masked({3, 1, 0, 2}),
                                       masked({2, 3, 1, 0})};
  const Topology merged = peers::merge(views);
  ASSERT_EQ(merged.gpus.size(), 4u);
  for (int gpu = 0; gpu < 4; ++gpu) {
    const std::string uuid = "GPU-" + std::string(1, static_cast<char>('a' + gpu)) + "0000";
    EXPECT_EQ(merged.gpus[static_cast<std::size_t>(gpu)].uuid, uuid);
  }
  EXPECT_EQ(merged.edges.size(), 16u);
  EXPECT_EQ(judge(merged).exit_code, 0) << judge(merged).summary;
}

TEST(MergedTopology, TheWorstReportOfAPairStands) {
  std::vector<Topology> views = {masked({0, 1}), masked({1, 0})};
  for (PeerEdge& edge : views[1].edges) {
    if (edge.from == 1 && edge.to == 0) edge.canary = CanaryState::corrupt;  // a -> b
  }
  for (const bool swapped : {false, true}) {
    if (swapped) std::swap(views[0], views[1]);
    const Topology merged = peers::merge(views);
    EXPECT_EQ(merged.edge(0, 1)->canary, CanaryState::corrupt);
    EXPECT_EQ(merged.edge(1, 0)->canary, CanaryState::passed);
    EXPECT_EQ(judge(merged).exit_code, 1);
  }
}

TEST(MergedTopology, PairsThatNobodySeesAreSaid) {
  const Topology merged = peers::merge({masked({0}), masked({1})});
  ASSERT_EQ(merged.gpus.size(), 2u);
  EXPECT_FALSE(merged.edge(0, 1)->access);
  EXPECT_THAT(merged.edge(0, 1)->reason, HasSubstr("CUDA_VISIBLE_DEVICES"));
  EXPECT_TRUE(merged.edge(1, kHostPeer)->access);
}

TEST(MergedTopology, SurvivesTheWire) {
  Topology topology = masked({2, 0});
  topology.gpus[0].name = "a name\twith a tab\nand a line end";
  topology.edges[0].reason = "";
  topology.gpus[1].num_nvlinks = 18;
  topology.gpus[1].nvlink_bytes_per_ns = 450;
  const std::string packed = peers::pack(topology);
  const Topology again = peers::unpack_topology(packed);
  EXPECT_EQ(peers::pack(again), packed);
  EXPECT_EQ(again.gpus[0].name, "a name with a tab and a line end");
  EXPECT_EQ(again.gpus[1].num_nvlinks, 18);
  EXPECT_EQ(again.edges.size(), topology.edges.size());
}

TEST(MergedTopology, HostileTextIsRefused) {
  const std::string packed = peers::pack(masked({0, 1}));
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = packed;
    const std::size_t at = random() % damaged.size();
    switch (random() % 3) {
      case 0:
        damaged[at] = static_cast<char>(random());
        break;
      case 1:
        damaged.resize(at);
        break;
      default:
        damaged.insert(at, "\t\n-99999999999");
    }
    try {
      (void)judge(peers::merge({peers::unpack_topology(damaged)}));
    } catch (const Error& error) {
      EXPECT_EQ(error.category(), ErrorCategory::runtime);
    }
  }
}

}  // namespace
}  // namespace xstage
