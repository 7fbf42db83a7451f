// What the ranks of a group see together, and a test of the pairs that none of them sees alone.
#include <cstdint>
#include <string>
#include <vector>

#include "peers/memory_api.hpp"
#include "peers/topology_merge.hpp"
#include "xstage/error.hpp"
#include "xstage/group.hpp"

namespace xstage::peers {
namespace {

constexpr std::size_t kSectionBytes = 64 * 1024;

std::vector<std::uint32_t> pattern(int from, int to) {
  std::vector<std::uint32_t> words(kSectionBytes / sizeof(std::uint32_t));
  auto state = static_cast<std::uint32_t>(from * 1000 + to + 1);
  for (std::uint32_t& word : words) word = state = state * 1664525u + 1013904223u;
  return words;
}

// The GPU that a rank speaks for, as an index into what it sees; -1: it sees none.
int own_gpu(const Group& group, const Topology& mine) {
  if (mine.gpus.empty()) return -1;
  return group.launch().local_rank % static_cast<int>(mine.gpus.size());
}

bool any_unseen(const Topology& topology) {
  for (const PeerEdge& edge : topology.edges) {
    if (is_unseen(edge)) return true;
  }
  return false;
}

// Collective. Everybody writes to everybody and checks what arrived: one letter per sender, 'r'
// right, 'w' wrong.
std::vector<std::string> try_pairs(std::shared_ptr<MemoryApi> api, Group& group, int device) {
  const int num_ranks = group.num_ranks();
  PeerOptions options;
  options.device = device;
  PeerMemory memory =
      create(std::move(api), group, kSectionBytes * static_cast<std::size_t>(num_ranks), options);
  for (int to = 0; to < num_ranks; ++to) {
    const auto words = pattern(memory.rank(), to);
    memory.write(to, kSectionBytes * static_cast<std::size_t>(memory.rank()), words.data(),
                 kSectionBytes);
  }
  group.barrier();
  std::string letters;
  std::vector<std::uint32_t> words(kSectionBytes / sizeof(std::uint32_t));
  for (int from = 0; from < num_ranks; ++from) {
    memory.read(memory.rank(), kSectionBytes * static_cast<std::size_t>(from), words.data(),
                kSectionBytes);
    letters += words == pattern(from, memory.rank()) ? 'r' : 'w';
  }
  return group.all_gather(letters);
}

// Puts what the ranks found into the unseen edges between their GPUs.
void record(Topology& topology, const std::vector<std::string>& uuids,
            const std::vector<std::string>& letters) {
  for (PeerEdge& edge : topology.edges) {
    if (!is_unseen(edge)) continue;
    const std::string& from = topology.gpus[static_cast<std::size_t>(edge.from)].uuid;
    const std::string& to = topology.gpus[static_cast<std::size_t>(edge.to)].uuid;
    for (std::size_t sender = 0; sender < uuids.size(); ++sender) {
      for (std::size_t receiver = 0; receiver < uuids.size(); ++receiver) {
        if (uuids[sender] != from || uuids[receiver] != to) continue;
        const bool right = letters[receiver].size() > sender && letters[receiver][sender] == 'r';
        edge.access = true;
        edge.reason.clear();
        edge.canary = right ? CanaryState::passed : CanaryState::corrupt;
        edge.canary_detail = right ? "" : "a copy between two processes delivered wrong bytes";
        edge.canary_bytes = kSectionBytes;
      }
    }
  }
}

}  // namespace

Topology gather_topology(const std::function<std::shared_ptr<MemoryApi>()>& api, Group& group,
                         const Topology& mine) {
  std::vector<Topology> all;
  for (const std::string& text : group.all_gather(pack(mine))) {
    all.push_back(unpack_topology(text));
  }
  Topology merged = merge(all);
  const int own = own_gpu(group, mine);
  const std::string uuid = own < 0 ? "" : mine.gpus[static_cast<std::size_t>(own)].uuid;
  const std::vector<std::string> uuids = group.all_gather(uuid);
  bool everybody_has_one = true;
  for (const std::string& each : uuids) everybody_has_one = everybody_has_one && !each.empty();
  if (!any_unseen(merged) || !everybody_has_one) return merged;
  try {
    record(merged, uuids,
           try_pairs(api(), group, mine.gpus[static_cast<std::size_t>(own)].ordinal));
  } catch (const Error& error) {  // the same on every rank
    for (PeerEdge& edge : merged.edges) {
      if (is_unseen(edge))
        edge.reason += ", and peer memory could not be made: " + std::string(error.what());
    }
  }
  return merged;
}

}  // namespace xstage::peers

namespace xstage {

Topology gather_topology(Group& group, const Topology& mine) {
  return peers::gather_topology([] { return peers::cuda_memory(); }, group, mine);
}

}  // namespace xstage
