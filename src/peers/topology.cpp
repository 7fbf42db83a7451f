// What a topology means. Pure: no GPU, no system call.
#include "xstage/topology.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <sstream>

#include "xstage/error.hpp"

namespace xstage {
namespace {

std::string gpu_label(const Topology& topology, int idx) {
  if (idx == kHostPeer) return "host memory";
  return "GPU " + std::to_string(topology.gpus[static_cast<std::size_t>(idx)].ordinal);
}

std::string pair_label(const Topology& topology, const PeerEdge& edge) {
  return gpu_label(topology, edge.from) + " -> " + gpu_label(topology, edge.to);
}

bool usable_both_ways(const Topology& topology, int a, int b) {
  const PeerEdge* there = topology.edge(a, b);
  const PeerEdge* back = topology.edge(b, a);
  return there != nullptr && back != nullptr && usable(*there) && usable(*back);
}

std::string groups_text(const Topology& topology, const std::vector<std::vector<int>>& groups) {
  std::ostringstream text;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    text << (i == 0 ? "{" : " {");
    for (std::size_t j = 0; j < groups[i].size(); ++j) {
      text << (j == 0 ? "" : " ") << topology.gpus[static_cast<std::size_t>(groups[i][j])].ordinal;
    }
    text << "}";
  }
  return text.str();
}

bool went_wrong(CanaryState state) {
  return state == CanaryState::corrupt || state == CanaryState::failed ||
         state == CanaryState::timed_out;
}

// What is wrong with one edge, or an empty string.
std::string finding(const Topology& topology, const PeerEdge& edge) {
  if (!edge.access) {
    return pair_label(topology, edge) +
           ": no access: " + (edge.reason.empty() ? std::string("no reason given") : edge.reason);
  }
  if (!went_wrong(edge.canary)) return {};
  std::string text = pair_label(topology, edge) + ": canary " + std::string(to_string(edge.canary));
  if (!edge.canary_detail.empty()) text += ": " + edge.canary_detail;
  return text;
}

struct EdgeCounts {
  int gpu_pairs = 0;
  int gpu_pairs_usable = 0;
  int corrupt = 0;
  int failed = 0;
  int timed_out = 0;
  int host_usable = 0;
};

EdgeCounts count_edges(const Topology& topology) {
  EdgeCounts counts;
  for (const PeerEdge& edge : topology.edges) {
    const bool host = edge.to == kHostPeer;
    counts.gpu_pairs += host ? 0 : 1;
    counts.gpu_pairs_usable += !host && usable(edge) ? 1 : 0;
    counts.host_usable += host && usable(edge) ? 1 : 0;
    counts.corrupt += edge.canary == CanaryState::corrupt ? 1 : 0;
    counts.failed += edge.canary == CanaryState::failed ? 1 : 0;
    counts.timed_out += edge.canary == CanaryState::timed_out ? 1 : 0;
  }
  return counts;
}

void add_gpu_findings(const Topology& topology, Verdict& verdict) {
  for (const Gpu& gpu : topology.gpus) {
    const std::string label = "GPU " + std::to_string(gpu.ordinal);
    if (gpu.mig) verdict.findings.push_back(label + ": a MIG slice, which has no peer access");
    if (!gpu.cooperative_launch) {
      verdict.findings.push_back(label + ": no cooperative launch, fused kernels cannot run");
    }
    if (gpu.virtual_memory && !gpu.posix_descriptors) {
      verdict.findings.push_back(
          label +
          ": memory cannot be exported as a file descriptor, so ranks must share a process");
    }
    if (gpu.compute_major < 8) {
      verdict.findings.push_back(label + ": compute capability " +
                                 std::to_string(gpu.compute_major) + "." +
                                 std::to_string(gpu.compute_minor) + ", measuring needs 8.0");
    }
  }
}

void conclude(const EdgeCounts& counts, std::size_t num_gpus, Verdict& verdict) {
  const std::string host_note =
      counts.host_usable > 0 ? "; pinned host memory is a usable peer" : "";
  if (counts.corrupt > 0) {
    verdict.exit_code = 1;
    verdict.summary = std::to_string(counts.corrupt) +
                      " directed pair(s) deliver wrong bytes without an error: do not use them";
    verdict.next = "check IOMMU and ACS settings, then run xstage doctor again";
  } else if (counts.timed_out > 0) {
    verdict.exit_code = 5;
    verdict.summary = std::to_string(counts.timed_out) + " directed pair(s) did not answer in time";
    verdict.next = "xstage probe --devices with a pair that answered";
  } else if (counts.failed > 0) {
    verdict.exit_code = 4;
    verdict.summary = std::to_string(counts.failed) + " directed pair(s) failed their canary";
    verdict.next = "see the findings, then run xstage doctor again";
  } else if (num_gpus == 1) {
    verdict.exit_code = 3;
    verdict.summary = "one GPU: there is no GPU peer" + host_note;
    verdict.next = "xstage probe --quick --peer host";
  } else if (counts.gpu_pairs_usable == 0) {
    verdict.exit_code = 3;
    verdict.summary = "no GPU may access another one" + host_note;
    verdict.next = "xstage probe --quick --peer host";
  } else if (counts.gpu_pairs_usable < counts.gpu_pairs) {
    verdict.exit_code = 3;
    verdict.summary = std::to_string(counts.gpu_pairs - counts.gpu_pairs_usable) + " of " +
                      std::to_string(counts.gpu_pairs) +
                      " directed pairs have no access; ranks must lie in one peer group";
    verdict.next = "xstage probe --quick --devices with one peer group";
  } else {
    verdict.summary = std::to_string(num_gpus) + " GPUs, all " + std::to_string(counts.gpu_pairs) +
                      " directed pairs usable";
    verdict.next = "xstage probe --quick";
  }
}

}  // namespace

const PeerEdge* Topology::edge(int from, int to) const noexcept {
  const auto found = std::find_if(edges.begin(), edges.end(), [&](const PeerEdge& edge) {
    return edge.from == from && edge.to == to;
  });
  return found == edges.end() ? nullptr : &*found;
}

bool usable(const PeerEdge& edge) noexcept {
  return edge.access && !went_wrong(edge.canary);
}

std::vector<std::vector<int>> peer_groups(const Topology& topology) {
  std::vector<std::vector<int>> groups;
  std::vector<bool> taken(topology.gpus.size(), false);
  for (std::size_t first = 0; first < topology.gpus.size(); ++first) {
    if (taken[first]) continue;
    std::vector<int> group{static_cast<int>(first)};
    for (std::size_t other = first + 1; other < topology.gpus.size(); ++other) {
      const bool fits = !taken[other] && std::all_of(group.begin(), group.end(), [&](int member) {
        return usable_both_ways(topology, member, static_cast<int>(other));
      });
      if (!fits) continue;
      taken[other] = true;
      group.push_back(static_cast<int>(other));
    }
    groups.push_back(std::move(group));
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return groups;
}

Verdict judge(const Topology& topology) {
  Verdict verdict;
  if (topology.gpus.empty()) {
    verdict.exit_code = static_cast<int>(ErrorCategory::not_possible);
    verdict.summary = topology.missing.empty() ? "no GPU" : topology.missing;
    verdict.next = "make demo shows shipped measurements";
    return verdict;
  }
  add_gpu_findings(topology, verdict);
  for (const PeerEdge& edge : topology.edges) {
    std::string text = finding(topology, edge);
    if (!text.empty()) verdict.findings.push_back(std::move(text));
  }
  verdict.peer_groups = peer_groups(topology);
  if (verdict.peer_groups.size() > 1) {
    verdict.findings.push_back("peer groups: " + groups_text(topology, verdict.peer_groups));
  }
  conclude(count_edges(topology), topology.gpus.size(), verdict);
  return verdict;
}

int find_gpu(const Topology& topology, std::string_view name) {
  int ordinal = 0;
  const auto [end, status] = std::from_chars(name.data(), name.data() + name.size(), ordinal);
  const bool is_number = status == std::errc{} && end == name.data() + name.size();
  std::vector<int> found;
  for (std::size_t i = 0; i < topology.gpus.size(); ++i) {
    const Gpu& gpu = topology.gpus[i];
    const bool match = is_number ? gpu.ordinal == ordinal
                                 : !name.empty() && gpu.uuid.compare(0, name.size(), name) == 0;
    if (match) found.push_back(static_cast<int>(i));
  }
  if (found.size() == 1) return found.front();
  std::ostringstream text;
  text << "GPU " << name << (found.empty() ? ": not here" : ": ambiguous") << ", legal:";
  if (topology.gpus.empty()) text << " none, " << topology.missing;
  for (const Gpu& gpu : topology.gpus) text << " " << gpu.ordinal << " (" << gpu.uuid << ")";
  throw Error(ErrorCategory::usage, text.str());
}

void require_one_group(const Topology& topology, const std::vector<int>& gpus) {
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    for (std::size_t j = i + 1; j < gpus.size(); ++j) {
      const int a = gpus[i];
      const int b = gpus[j];
      if (a == b || usable_both_ways(topology, a, b)) continue;
      const PeerEdge* there = topology.edge(a, b);
      const PeerEdge* back = topology.edge(b, a);
      const PeerEdge* bad = there != nullptr && !usable(*there) ? there : back;
      std::string why = bad == nullptr ? "not examined" : finding(topology, *bad);
      throw Error(ErrorCategory::not_possible,
                  gpu_label(topology, a) + " and " + gpu_label(topology, b) +
                      " cannot be ranks of one group: " + why +
                      "; peer groups: " + groups_text(topology, peer_groups(topology)));
    }
  }
}

std::string_view to_string(LinkKind kind) noexcept {
  switch (kind) {
    case LinkKind::unknown:
      return "unknown";
    case LinkKind::local:
      return "local";
    case LinkKind::nvlink:
      return "nvlink";
    case LinkKind::pcie:
      return "pcie";
    case LinkKind::host:
      return "host";
  }
  return "unknown";
}

std::string_view to_string(CanaryState state) noexcept {
  switch (state) {
    case CanaryState::not_run:
      return "not run";
    case CanaryState::passed:
      return "passed";
    case CanaryState::corrupt:
      return "corrupt";
    case CanaryState::failed:
      return "failed";
    case CanaryState::timed_out:
      return "timed out";
  }
  return "not run";
}

}  // namespace xstage
