#include "peers/topology_merge.hpp"

#include <algorithm>
#include <map>
#include <sstream>
#include <tuple>
#include <utility>

#include "xstage/error.hpp"

namespace xstage::peers {
namespace {

// Fields are separated by tabs, records by line ends; texts lose both.
std::string clean(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\t' || c == '\n'; }, ' ');
  return text;
}

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> fields;
  for (std::size_t at = 0; at <= line.size();) {
    const std::size_t end = std::min(line.find('\t', at), line.size());
    fields.push_back(line.substr(at, end - at));
    at = end + 1;
  }
  return fields;
}

int as_int(const std::string& text) {
  std::istringstream stream(text);
  int value = 0;
  if (!(stream >> value)) throw Error(ErrorCategory::runtime, "unreadable topology of a peer");
  return value;
}

std::uint64_t as_bytes(const std::string& text) {
  std::istringstream stream(text);
  std::uint64_t value = 0;
  if (!(stream >> value)) throw Error(ErrorCategory::runtime, "unreadable topology of a peer");
  return value;
}

Gpu unpack_gpu(const std::vector<std::string>& fields) {
  if (fields.size() != 13) throw Error(ErrorCategory::runtime, "unreadable topology of a peer");
  Gpu gpu;
  gpu.ordinal = as_int(fields[1]);
  gpu.uuid = fields[2];
  gpu.name = fields[3];
  gpu.pci_bus_id = fields[4];
  gpu.compute_major = as_int(fields[5]);
  gpu.compute_minor = as_int(fields[6]);
  gpu.num_sms = as_int(fields[7]);
  gpu.memory_bytes = as_bytes(fields[8]);
  gpu.free_bytes = as_bytes(fields[9]);
  const int flags = as_int(fields[10]);
  gpu.mig = (flags & 1) != 0;
  gpu.cooperative_launch = (flags & 2) != 0;
  gpu.virtual_memory = (flags & 4) != 0;
  gpu.posix_descriptors = (flags & 8) != 0;
  gpu.num_nvlinks = as_int(fields[11]);
  gpu.nvlink_bytes_per_ns = as_int(fields[12]);
  return gpu;
}

PeerEdge unpack_edge(const std::vector<std::string>& fields, int num_gpus) {
  if (fields.size() != 10) throw Error(ErrorCategory::runtime, "unreadable topology of a peer");
  PeerEdge edge;
  edge.from = as_int(fields[1]);
  edge.to = as_int(fields[2]);
  if (edge.from < 0 || edge.from >= num_gpus || edge.to < kHostPeer || edge.to >= num_gpus) {
    throw Error(ErrorCategory::runtime, "unreadable topology of a peer");
  }
  edge.access = as_int(fields[3]) != 0;
  edge.native_atomics = as_int(fields[4]) != 0;
  edge.link = static_cast<LinkKind>(std::clamp(as_int(fields[5]), 0, 4));
  edge.reason = fields[6];
  edge.canary = static_cast<CanaryState>(std::clamp(as_int(fields[7]), 0, 4));
  edge.canary_detail = fields[8];
  edge.canary_bytes = as_bytes(fields[9]);
  return edge;
}

// How bad an edge is; the worse of two reports stands.
int badness(const PeerEdge& edge) {
  switch (edge.canary) {
    case CanaryState::corrupt:
      return 5;
    case CanaryState::timed_out:
      return 4;
    case CanaryState::failed:
      return 3;
    case CanaryState::not_run:
    case CanaryState::passed:
      break;
  }
  return edge.access ? 0 : 2;
}

constexpr const char* kUnseen = "no process sees both GPUs (CUDA_VISIBLE_DEVICES)";

using NamedPair = std::pair<std::string, std::string>;  // UUIDs; an empty one is the host

std::string uuid_at(const Topology& topology, int idx) {
  return idx == kHostPeer ? std::string() : topology.gpus[static_cast<std::size_t>(idx)].uuid;
}

PeerEdge unseen_edge() {
  PeerEdge edge;
  edge.reason = kUnseen;
  return edge;
}

}  // namespace

std::string pack(const Topology& topology) {
  std::ostringstream text;
  text << "machine\t" << clean(topology.host_id) << '\t' << topology.driver_version << '\t'
       << topology.runtime_version << '\t' << clean(topology.missing) << '\n';
  for (const Gpu& gpu : topology.gpus) {
    const int flags = (gpu.mig ? 1 : 0) | (gpu.cooperative_launch ? 2 : 0) |
                      (gpu.virtual_memory ? 4 : 0) | (gpu.posix_descriptors ? 8 : 0);
    text << "gpu\t" << gpu.ordinal << '\t' << clean(gpu.uuid) << '\t' << clean(gpu.name) << '\t'
         << clean(gpu.pci_bus_id) << '\t' << gpu.compute_major << '\t' << gpu.compute_minor << '\t'
         << gpu.num_sms << '\t' << gpu.memory_bytes << '\t' << gpu.free_bytes << '\t' << flags
         << '\t' << gpu.num_nvlinks << '\t' << static_cast<int>(gpu.nvlink_bytes_per_ns) << '\n';
  }
  for (const PeerEdge& edge : topology.edges) {
    text << "edge\t" << edge.from << '\t' << edge.to << '\t' << edge.access << '\t'
         << edge.native_atomics << '\t' << static_cast<int>(edge.link) << '\t' << clean(edge.reason)
         << '\t' << static_cast<int>(edge.canary) << '\t' << clean(edge.canary_detail) << '\t'
         << edge.canary_bytes << '\n';
  }
  return text.str();
}

Topology unpack_topology(const std::string& text) {
  Topology topology;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> fields = split(line);
    if (fields[0] == "machine" && fields.size() == 5) {
      topology.host_id = fields[1];
      topology.driver_version = as_int(fields[2]);
      topology.runtime_version = as_int(fields[3]);
      topology.missing = fields[4];
    } else if (fields[0] == "gpu") {
      topology.gpus.push_back(unpack_gpu(fields));
    } else if (fields[0] == "edge") {
      topology.edges.push_back(unpack_edge(fields, static_cast<int>(topology.gpus.size())));
    } else {
      throw Error(ErrorCategory::runtime, "unreadable topology of a peer");
    }
  }
  return topology;
}

Topology merge(const std::vector<Topology>& topologies) {
  Topology merged;
  std::map<std::string, Gpu> gpus;  // by UUID
  std::map<NamedPair, PeerEdge> edges;
  for (const Topology& each : topologies) {
    if (merged.host_id.empty()) merged.host_id = each.host_id;
    merged.driver_version = std::max(merged.driver_version, each.driver_version);
    merged.runtime_version = std::max(merged.runtime_version, each.runtime_version);
    if (merged.missing.empty()) merged.missing = each.missing;
    for (const Gpu& gpu : each.gpus) gpus.emplace(gpu.uuid, gpu);
    for (const PeerEdge& edge : each.edges) {
      const NamedPair pair{uuid_at(each, edge.from), uuid_at(each, edge.to)};
      const auto [found, is_new] = edges.emplace(pair, edge);
      if (!is_new && badness(edge) > badness(found->second)) found->second = edge;
    }
  }
  for (const auto& [uuid, gpu] : gpus) merged.gpus.push_back(gpu);
  std::sort(merged.gpus.begin(), merged.gpus.end(), [](const Gpu& a, const Gpu& b) {
    return std::tie(a.pci_bus_id, a.uuid) < std::tie(b.pci_bus_id, b.uuid);
  });
  const int count = static_cast<int>(merged.gpus.size());
  for (int i = 0; i < count; ++i) merged.gpus[static_cast<std::size_t>(i)].ordinal = i;
  if (count > 0 && topologies.size() > 1) merged.missing.clear();
  for (int from = 0; from < count; ++from) {
    for (int to = -1; to < count; ++to) {
      if (from == to) continue;
      const auto found = edges.find({uuid_at(merged, from), uuid_at(merged, to)});
      PeerEdge edge = found == edges.end() ? unseen_edge() : found->second;
      edge.from = from;
      edge.to = to;
      merged.edges.push_back(edge);
    }
  }
  std::stable_partition(merged.edges.begin(), merged.edges.end(),
                        [](const PeerEdge& edge) { return edge.to != kHostPeer; });
  return merged;
}

bool is_unseen(const PeerEdge& edge) {
  return !edge.access && edge.reason == kUnseen;
}

}  // namespace xstage::peers
