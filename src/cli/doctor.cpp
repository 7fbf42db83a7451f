// xstage doctor: which GPUs are here, who may store into whose memory, and whether that works.
#include <fmt/format.h>

#include <memory>

#include "cli/values.hpp"
#include "cli/verb.hpp"
#include "io/text.hpp"
#include "xstage/error.hpp"
#include "xstage/group.hpp"
#include "xstage/topology.hpp"

namespace xstage::cli {
namespace {

struct DoctorOptions {
  std::string bytes = "1M";
  std::string timeout = "2s";
  std::string seed = "1";
  bool no_canary = false;
};

std::string cuda_version(int version) {
  return version == 0 ? "none" : fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string gpu_table(const Topology& topology) {
  using enum io::TextTable::Align;
  io::TextTable table({"GPU", "name", "SMs", "cc", "memory", "free", "NVLink", "UUID"},
                      {right, left, right, right, right, right, left, left});
  for (const auto& gpu : topology.gpus) {
    std::string nvlink = "?";
    if (gpu.num_nvlinks == 0) nvlink = "none";
    if (gpu.num_nvlinks > 0) nvlink = fmt::format("{} links", gpu.num_nvlinks);
    if (gpu.num_nvlinks > 0 && gpu.nvlink_bytes_per_ns > 0) {
      nvlink += fmt::format(", {}", io::format_rate(gpu.nvlink_bytes_per_ns));
    }
    table.add({fmt::format("{}", gpu.ordinal), gpu.name, fmt::format("{}", gpu.num_sms),
               fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor),
               io::format_bytes(static_cast<double>(gpu.memory_bytes)),
               io::format_bytes(static_cast<double>(gpu.free_bytes)), nvlink, gpu.uuid});
  }
  return table.str();
}

// What one cell of the matrix says: the link and, if it was tried, whether bytes arrived.
std::string edge_cell(const PeerEdge* edge) {
  if (edge == nullptr) return "-";
  if (!edge->access) return "no";
  std::string cell(to_string(edge->link));
  switch (edge->canary) {
    case CanaryState::not_run:
      return cell + " not tried";
    case CanaryState::passed:
      return cell + " ok";
    default:
      return cell + " " + std::string(to_string(edge->canary));
  }
}

std::string peer_matrix(const Topology& topology) {
  std::vector<std::string> header{"stores from \\ into"};
  for (const auto& gpu : topology.gpus) header.push_back(fmt::format("GPU {}", gpu.ordinal));
  header.emplace_back("host");
  io::TextTable table(header, std::vector(header.size(), io::TextTable::Align::left));
  const int num_gpus = static_cast<int>(topology.gpus.size());
  for (int from = 0; from < num_gpus; ++from) {
    std::vector<std::string> row{
        fmt::format("GPU {}", topology.gpus[static_cast<std::size_t>(from)].ordinal)};
    for (int to = 0; to < num_gpus; ++to) {
      row.push_back(from == to ? "." : edge_cell(topology.edge(from, to)));
    }
    row.push_back(edge_cell(topology.edge(from, kHostPeer)));
    table.add(row);
  }
  return table.str();
}

Json to_json(const Gpu& gpu) {
  Json json = {{"ordinal", gpu.ordinal},
               {"uuid", gpu.uuid},
               {"name", gpu.name},
               {"pci_bus_id", gpu.pci_bus_id},
               {"compute_capability", fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor)},
               {"num_sms", gpu.num_sms},
               {"memory_bytes", gpu.memory_bytes},
               {"free_bytes", gpu.free_bytes},
               {"mig", gpu.mig},
               {"cooperative_launch", gpu.cooperative_launch},
               {"virtual_memory", gpu.virtual_memory},
               {"posix_descriptors", gpu.posix_descriptors}};
  json["num_nvlinks"] = gpu.num_nvlinks < 0 ? Json(nullptr) : Json(gpu.num_nvlinks);
  json["nvlink_bytes_per_ns"] =
      gpu.nvlink_bytes_per_ns <= 0 ? Json(nullptr) : Json(gpu.nvlink_bytes_per_ns);
  return json;
}

Json to_json(const PeerEdge& edge, const Topology& topology) {
  const auto end = [&topology](int idx) {
    return idx == kHostPeer ? std::string("host")
                            : topology.gpus.at(static_cast<std::size_t>(idx)).uuid;
  };
  return {{"from", end(edge.from)},
          {"to", end(edge.to)},
          {"access", edge.access},
          {"native_atomics", edge.native_atomics},
          {"link", to_string(edge.link)},
          {"reason", edge.reason},
          {"canary", to_string(edge.canary)},
          {"canary_detail", edge.canary_detail},
          {"canary_bytes", edge.canary_bytes}};
}

void add_json(const Topology& topology, const Verdict& verdict, Console& console) {
  console.result("schema", "xstage.doctor");
  console.result("version", 1);
  console.result("exit_code", verdict.exit_code);
  console.result("summary", verdict.summary);
  console.result("findings", verdict.findings);
  console.result("host_id", topology.host_id);
  console.result("driver_cuda", cuda_version(topology.driver_version));
  console.result("runtime_cuda", cuda_version(topology.runtime_version));
  Json gpus = Json::array();
  for (const auto& gpu : topology.gpus) gpus.push_back(to_json(gpu));
  console.result("gpus", std::move(gpus));
  Json edges = Json::array();
  for (const auto& edge : topology.edges) edges.push_back(to_json(edge, topology));
  console.result("edges", std::move(edges));
  Json groups = Json::array();
  for (const auto& group : verdict.peer_groups) {
    Json uuids = Json::array();
    for (const int idx : group)
      uuids.push_back(topology.gpus.at(static_cast<std::size_t>(idx)).uuid);
    groups.push_back(std::move(uuids));
  }
  console.result("peer_groups", std::move(groups));
}

int run_doctor(const DoctorOptions& options, Console& console) {
  CanaryOptions canary;
  canary.bytes =
      static_cast<std::uint64_t>(parse_size("--bytes", options.bytes, {4, 1073741824.0, "1 GiB"}));
  canary.seed = static_cast<std::uint64_t>(parse_count("--seed", options.seed, {0, 2e9, ""}));
  canary.timeout_ns =
      static_cast<std::uint64_t>(parse_time("--timeout", options.timeout, {1e6, 300e9, "300 s"}));

  Topology topology = discover();
  if (!options.no_canary) {
    console.progress("writing to every peer and reading back");
    run_canary(topology, canary);
  }
  // Under torchrun, mpirun or srun all ranks judge what all of them see; rank 0 alone speaks.
  const LaunchInfo launch = read_launch();
  if (launch.num_ranks > 1) {
    console.progress("meeting the other ranks");
    Group group = Group::join(launch);
    topology = gather_topology(group, topology);
  }
  const Verdict verdict = judge(topology);
  if (launch.rank != 0) {
    console.hush();
    return verdict.exit_code;
  }
  console.next(verdict.next);
  if (topology.gpus.empty()) {
    throw Error(static_cast<ErrorCategory>(verdict.exit_code), verdict.summary);
  }
  const bool good = verdict.exit_code == 0;
  console.print("{}\n", console.tone(good ? Tone::good : Tone::bad, verdict.summary));
  console.print("driver for CUDA {}, runtime {}\n\n", cuda_version(topology.driver_version),
                cuda_version(topology.runtime_version));
  console.print("{}\n{}", gpu_table(topology), peer_matrix(topology));
  if (!verdict.findings.empty()) console.print("\n");
  for (const auto& finding : verdict.findings) console.print("- {}\n", finding);
  add_json(topology, verdict, console);
  return verdict.exit_code;
}

}  // namespace

Action setup_doctor(CLI::App& app) {
  auto options = std::make_shared<DoctorOptions>();
  app.add_flag("--no-canary", options->no_canary, "Do not write to any peer");
  app.add_option("--bytes", options->bytes, "Bytes that the canary writes to each peer")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_option("--timeout", options->timeout, "Deadline of each pair")
      ->type_name("TIME")
      ->capture_default_str();
  app.add_option("--seed", options->seed, "Of the canary's pattern")
      ->type_name("N")
      ->capture_default_str();
  app.footer("example: xstage doctor --json");
  return [options](Console& console) { return run_doctor(*options, console); };
}

}  // namespace xstage::cli
