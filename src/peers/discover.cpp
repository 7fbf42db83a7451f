// Asks a machine, pair by pair; one bad answer costs only its own entry.
#include <fstream>
#include <string>

#include "peers/topology_api.hpp"
#include "xstage/error.hpp"

namespace xstage::peers {
namespace {

PeerEdge gpu_edge(TopologyApi& api, const Topology& topology, std::size_t from, std::size_t to) {
  PeerEdge edge;
  try {
    edge = api.edge(topology.gpus[from], topology.gpus[to]);
  } catch (const Error& error) {
    edge.access = false;
    edge.reason = error.what();
  }
  edge.from = static_cast<int>(from);
  edge.to = static_cast<int>(to);
  return edge;
}

PeerEdge host_edge(TopologyApi& api, const Topology& topology, std::size_t from) {
  PeerEdge edge;
  try {
    edge = api.host_edge(topology.gpus[from]);
  } catch (const Error& error) {
    edge.access = false;
    edge.reason = error.what();
  }
  edge.from = static_cast<int>(from);
  edge.to = kHostPeer;
  edge.link = LinkKind::host;
  return edge;
}

}  // namespace

std::string host_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  if (file >> id) return id;
  return "unknown";
}

Topology discover(TopologyApi& api) {
  Topology topology;
  topology.host_id = host_id();
  MachineFacts facts;
  try {
    facts = api.machine();
  } catch (const Error& error) {
    facts.missing = error.what();
  }
  topology.driver_version = facts.driver_version;
  topology.runtime_version = facts.runtime_version;
  topology.missing = facts.missing;
  for (int ordinal = 0; ordinal < facts.num_gpus; ++ordinal) {
    try {
      topology.gpus.push_back(api.gpu(ordinal));
    } catch (const Error& error) {
      topology.missing = "GPU " + std::to_string(ordinal) + ": " + error.what();
    }
  }
  for (std::size_t from = 0; from < topology.gpus.size(); ++from) {
    for (std::size_t to = 0; to < topology.gpus.size(); ++to) {
      if (from != to) topology.edges.push_back(gpu_edge(api, topology, from, to));
    }
  }
  for (std::size_t from = 0; from < topology.gpus.size(); ++from) {
    topology.edges.push_back(host_edge(api, topology, from));
  }
  return topology;
}

void run_canary(TopologyApi& api, Topology& topology, const CanaryOptions& options) {
  for (PeerEdge& edge : topology.edges) {
    if (!edge.access) continue;
    const Gpu& from = topology.gpus[static_cast<std::size_t>(edge.from)];
    const Gpu* to =
        edge.to == kHostPeer ? nullptr : &topology.gpus[static_cast<std::size_t>(edge.to)];
    try {
      const CanaryOutcome outcome = api.canary(from, to, options);
      edge.canary = outcome.state;
      edge.canary_detail = outcome.detail;
    } catch (const Error& error) {
      edge.canary = CanaryState::failed;
      edge.canary_detail = error.what();
    }
    edge.canary_bytes = options.bytes;
  }
}

}  // namespace xstage::peers

namespace xstage {

Topology discover() {
  return peers::discover(*peers::cuda_topology());
}

void run_canary(Topology& topology, const CanaryOptions& options) {
  peers::run_canary(*peers::cuda_topology(), topology, options);
}

}  // namespace xstage
