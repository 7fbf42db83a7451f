// The probe: which pairs, which parts, in which order. A pair that fails loses only its own
// results.
#include "xstage/probe.hpp"

#include <sys/utsname.h>

#include <array>
#include <cctype>
#include <fstream>
#include <memory>
#include <optional>

#include "probe/experiments.hpp"
#include "xstage/topology.hpp"

namespace xstage {
namespace {

using probing::Context;
using probing::Link;
using probing::Target;

struct Part {
  std::string_view name;
  void (*run)(Context&);
  bool in_quick;
};

constexpr std::array kParts{
    Part{"canary", probing::part_canary, true},
    Part{"rate", probing::part_rate, true},
    Part{"isolated", probing::part_isolated, true},
    Part{"periodic", probing::part_periodic, true},
    Part{"directions", probing::part_directions, false},
    Part{"pieces", probing::part_pieces, false},
    Part{"placement", probing::part_placement, false},
    Part{"patterns", probing::part_patterns, false},
    Part{"kinds", probing::part_kinds, false},
    Part{"loads", probing::part_loads, false},
    Part{"pacing", probing::part_pacing, false},
    Part{"egress", probing::part_egress, false},
    Part{"fan_in", probing::part_fan_in, false},
    Part{"fan_out", probing::part_fan_out, false},
    Part{"costs", probing::part_costs, false},
    Part{"idle", probing::part_idle, false},
    Part{"control", probing::part_control, false},
    Part{"memory", probing::part_memory, false},
    Part{"mock_attention", probing::part_mock_attention, false},
};

struct Pair {
  int source = 0;  // index into Topology::gpus
  Endpoint::Type type = Endpoint::Type::gpu;
  int destination = 0;  // index into Topology::gpus; of the source for memory
};

void add_pairs(const Topology& topology, int source, const std::string& peer,
               std::vector<Pair>& pairs) {
  if (peer == "host") {
    pairs.push_back({source, Endpoint::Type::host_memory, source});
    return;
  }
  if (peer == "local") {
    pairs.push_back({source, Endpoint::Type::local_memory, source});
    return;
  }
  if (!peer.empty()) {
    const int destination = find_gpu(topology, peer);
    if (destination != source) pairs.push_back({source, Endpoint::Type::gpu, destination});
    return;
  }
  const std::size_t before = pairs.size();
  for (int other = 0; other < static_cast<int>(topology.gpus.size()); ++other) {
    const PeerEdge* edge = other == source ? nullptr : topology.edge(source, other);
    if (edge != nullptr && edge->access) {
      pairs.push_back({source, Endpoint::Type::gpu, other});
    }
  }
  if (pairs.size() == before) pairs.push_back({source, Endpoint::Type::host_memory, source});
}

std::vector<Pair> pairs_of(const Topology& topology, const ProbeOptions& options) {
  std::vector<int> sources;
  for (const std::string& device : options.devices) sources.push_back(find_gpu(topology, device));
  if (sources.empty()) {
    for (int i = 0; i < static_cast<int>(topology.gpus.size()); ++i) sources.push_back(i);
  }
  std::vector<Pair> pairs;
  for (const int source : sources) add_pairs(topology, source, options.peer, pairs);
  if (pairs.empty()) {
    throw Error(ErrorCategory::usage, "--peer " + options.peer +
                                          ": is the only source itself; legal are another GPU, "
                                          "host, local");
  }
  return pairs;
}

std::string link_name(const Topology& topology, const Pair& pair) {
  if (pair.type == Endpoint::Type::host_memory) return "host memory over PCIe";
  if (pair.type == Endpoint::Type::local_memory) return "own memory";
  const PeerEdge* edge = topology.edge(pair.source, pair.destination);
  if (edge == nullptr || edge->link != LinkKind::nvlink) return "PCIe peer access";
  const int links = topology.gpus[static_cast<std::size_t>(pair.source)].num_nvlinks;
  return links > 0 ? "NVLink, " + std::to_string(links) + " links" : "NVLink";
}

// "580.159.04", or "" if the kernel does not say.
std::string kernel_driver() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  while (file >> word) {
    if (word.find('.') != std::string::npos && std::isdigit(static_cast<unsigned char>(word[0]))) {
      return word;
    }
  }
  return "";
}

// Processor and kernel; no host name.
std::string host_description() {
  utsname name{};
  std::string text;
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; text.empty() && std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) == 0) text = line.substr(line.find(':') + 2);
  }
  if (uname(&name) == 0) {
    text += (text.empty() ? "" : ", ") + std::string(name.sysname) + " " + name.release;
  }
  return text;
}

ProbedPair describe(const Topology& topology, const Pair& pair) {
  const Gpu& source = topology.gpus[static_cast<std::size_t>(pair.source)];
  ProbedPair result;
  result.link = link_name(topology, pair);
  result.source = {Endpoint::Type::gpu, source.name, source.uuid, source.num_sms, 0};
  if (pair.type == Endpoint::Type::gpu) {
    const Gpu& other = topology.gpus[static_cast<std::size_t>(pair.destination)];
    result.destination = {Endpoint::Type::gpu, other.name, other.uuid, other.num_sms, 0};
  } else {
    const bool host = pair.type == Endpoint::Type::host_memory;
    result.destination = {pair.type, host ? "pinned host memory" : "own memory", "", 0, 0};
  }
  const auto version = [](int v) {
    return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
  };
  const std::string driver = kernel_driver();
  result.provenance.driver =
      (driver.empty() ? "" : driver + ", ") + "CUDA " + version(topology.driver_version);
  result.provenance.host = host_description();
  result.provenance.runtime = "CUDA " + version(topology.runtime_version);
  return result;
}

// Clock of the source under load: cycles of its SMs against the global timer during a long run.
double loaded_clock_mhz(Context& context) {
  probing::BurstSpec spec =
      probing::burst_of(context, StoreKind::register16, context.link.num_sms(), 8192);
  spec.num_bursts = 400;
  return 1e3 * probing::run_checked(context, spec).cycles_per_ns;
}

bool wanted(const ProbeOptions& options, const Part& part) {
  if (part.name == "canary" || part.name == "rate") return true;  // the others need them
  if (options.quick && !part.in_quick) return false;
  if (options.parts.empty()) return true;
  for (const std::string& name : options.parts) {
    if (name == part.name) return true;
  }
  return false;
}

void run_parts(Context& context, const ProbeOptions& options) {
  double done = 0;
  for (const Part& part : kParts) {
    if (!wanted(options, part)) continue;
    if (options.progress) options.progress(part.name, done / kParts.size());
    part.run(context);
    if (part.name == "rate") {
      context.pair.source.sm_clock_mhz = loaded_clock_mhz(context);
    }
    done += 1;
  }
}

void check_parts(const ProbeOptions& options) {
  for (const std::string& name : options.parts) {
    bool known = false;
    std::string legal;
    for (const Part& part : kParts) {
      known = known || part.name == name;
      legal += (legal.empty() ? "" : ", ") + std::string(part.name);
    }
    if (!known) throw Error(ErrorCategory::usage, "--parts " + name + ": legal are " + legal);
  }
}

void check_axes(const ProbeOptions& options, int num_sms) {
  for (const int k : options.producers) {
    if (k < 1 || k > num_sms) {
      throw Error(ErrorCategory::usage,
                  "--producers " + std::to_string(k) + ": legal 1.." + std::to_string(num_sms));
    }
  }
  for (const double bytes : options.bytes) {
    if (!(bytes >= 1024 && bytes <= 192 * 1024) || static_cast<long>(bytes) % 1024 != 0) {
      throw Error(ErrorCategory::usage, "--bytes " + std::to_string(static_cast<long>(bytes)) +
                                            ": legal are multiples of 1K from 1K to 192K");
    }
  }
}

// Who else can take part in fan-in at the destination and fan-out from the source.
void add_third_gpus(const Topology& topology, const Pair& pair, Context& context) {
  for (int other = 0; other < static_cast<int>(topology.gpus.size()); ++other) {
    if (other == pair.source || other == pair.destination) continue;
    const int ordinal = topology.gpus[static_cast<std::size_t>(other)].ordinal;
    const PeerEdge* in = topology.edge(other, pair.destination);
    if (in != nullptr && in->access) context.senders.push_back(ordinal);
    const PeerEdge* out = topology.edge(pair.source, other);
    if (out != nullptr && out->access) context.receivers.push_back(ordinal);
  }
}

ProbedPair probe_pair(const Topology& topology, const Pair& pair, const ProbeOptions& options) {
  ProbedPair result = describe(topology, pair);
  const Gpu& source = topology.gpus[static_cast<std::size_t>(pair.source)];
  const Gpu& other = topology.gpus[static_cast<std::size_t>(pair.destination)];
  try {
    check_axes(options, source.num_sms);
    if (!source.cooperative_launch) {
      throw Error(ErrorCategory::not_possible, source.name + " has no cooperative launch");
    }
    Link link(source.ordinal, {pair.type, other.ordinal}, options.timeout_s);
    std::unique_ptr<Link> back;
    const PeerEdge* reverse =
        pair.type == Endpoint::Type::gpu ? topology.edge(pair.destination, pair.source) : nullptr;
    if (!options.quick && reverse != nullptr && reverse->access) {
      back = std::make_unique<Link>(other.ordinal, Target{Endpoint::Type::gpu, source.ordinal},
                                    options.timeout_s);
    }
    Context context{
        link, back.get(), result, options, std::mt19937(static_cast<std::uint32_t>(options.seed)),
        0};
    if (pair.type == Endpoint::Type::gpu) add_third_gpus(topology, pair, context);
    run_parts(context, options);
  } catch (const Error& error) {
    if (error.category() == ErrorCategory::usage) throw;
    result.samples.clear();
    result.measurements.clear();
    result.tables.clear();
    result.failure = error.what();
    result.failure_category = error.category();
  }
  return result;
}

}  // namespace

std::vector<std::string_view> probe_parts() {
  std::vector<std::string_view> names;
  for (const Part& part : kParts) names.push_back(part.name);
  return names;
}

ProbeResult probe(const ProbeOptions& options) {
  check_parts(options);
  const Topology topology = discover();
  if (topology.gpus.empty()) {
    throw Error(ErrorCategory::not_possible,
                topology.missing.empty() ? "no GPU here" : topology.missing);
  }
  ProbeResult result;
  for (const Pair& pair : pairs_of(topology, options)) {
    result.pairs.push_back(probe_pair(topology, pair, options));
  }
  return result;
}

}  // namespace xstage
