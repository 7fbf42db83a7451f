// Replays the probe's mock attention in the simulator: tiles of a fixed main loop, 32 KiB to the
// peer after each, sent in bursts, paced or coupled, by a spare warp or by the consumers. Step and
// tile times come from the run without communication alone.
//
//   replay_mock TABLES.json LINK.json [SPREAD_NS] > bench/results/simulator_replay_mock.csv
//
// SPREAD_NS: of late loads, instead of the simulator's own.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "xstage/files.hpp"
#include "xstage/simulate.hpp"

namespace {

using namespace xstage;

constexpr std::uint32_t kTileBytes = 32 * 1024;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Measured {
  std::vector<double> total_ns;
  std::vector<double> main_loop_ns;
  std::vector<double> later_tile_ns;
  int num_tiles = 0;
};

class MockProgram : public SimProgram {
 public:
  MockProgram(int num_sms, int num_tiles, int steps, double step_ns, double tile_ns, bool sends)
      : num_sms_(num_sms),
        num_tiles_(num_tiles),
        steps_(steps),
        step_ns_(step_ns),
        tile_ns_(tile_ns),
        sends_(sends),
        at_(static_cast<std::size_t>(num_sms)) {}
  SimNext next(int gpu, int sm, SimTask& task) override {
    if (gpu != 0 || at_[static_cast<std::size_t>(sm)] >= num_tiles_) return SimNext::end;
    task.id = at_[static_cast<std::size_t>(sm)]++;
    task.step_ns = step_ns_;
    task.num_steps = steps_;
    task.epilogue_ns = tile_ns_;
    if (sends_) task.stores.push_back({1, kTileBytes});
    return SimNext::task;
  }

 private:
  int num_sms_, num_tiles_, steps_;
  double step_ns_, tile_ns_;
  bool sends_;
  std::vector<int> at_;
};

bool parse_case(const std::string& name, SimSender& sender) {
  sender.send.chunk_bytes = kTileBytes;
  sender.outbox_bytes = kTileBytes;
  sender.owner = name.rfind("consumers", 0) == 0 ? SendOwner::main_role : SendOwner::spare_role;
  if (name.find("coupled") != std::string::npos) sender.send.completion = Completion::visible;
  if (const auto at = name.find("paced "); at != std::string::npos) {
    const int kib = std::stoi(name.substr(at + 6));
    sender.send.chunk_bytes = static_cast<std::uint32_t>(kib) * 1024;
    return true;
  }
  return false;
}

int run(const char* tables_path, const char* link_path, std::optional<double> spread_ns) {
  const LinkProfile profile = read_link(link_path).profile;
  std::ifstream stream(tables_path);
  const auto file = nlohmann::json::parse(stream);
  std::map<std::pair<int, std::string>, Measured> cells;
  for (const auto& table : file.at("tables")) {
    if (table.at("name") != "mock_attention") continue;
    for (const auto& row : table.at("rows")) {
      Measured& cell = cells[{static_cast<int>(row[1].get<double>()), row[0].get<std::string>()}];
      cell.num_tiles = static_cast<int>(row[2].get<double>());
      cell.total_ns.push_back(row[5].get<double>());
      cell.main_loop_ns.push_back(row[7].get<double>());
      cell.later_tile_ns.push_back(row[11].get<double>());
    }
  }
  std::printf("# mock attention replayed, link %s (%s)\n", profile.name.c_str(),
              profile.hash.c_str());
  std::printf(
      "steps_per_tile,case,total_measured_us,total_simulated_us,added_measured_us,added_simulated_"
      "us,error_over_total\n");
  std::vector<double> errors;
  std::vector<double> increment_errors;
  std::vector<double> null_errors;
  for (const auto& [key, cell] : cells) {
    const auto& [steps, name] = key;
    if (name == "none") continue;
    const Measured& none = cells.at({steps, "none"});
    const double base_ns = median(none.total_ns);
    const double step_ns = median(none.later_tile_ns) / steps;
    const double tile_ns =
        std::max(0.0, (base_ns - steps * step_ns * none.num_tiles) / none.num_tiles);
    SimSender sender;
    sender.send.kind = StoreKind::bulk;
    if (parse_case(name, sender)) {
      const auto chunks = num_chunks(kTileBytes, sender.send.chunk_bytes);
      sender.send.steps_per_chunk = std::max(1u, static_cast<std::uint32_t>(steps) / chunks);
    }
    SimMachine machine;
    machine.link = profile.kind(StoreKind::bulk).params;
    if (spread_ns) machine.load_jitter_ns = *spread_ns;
    SimOptions options;
    options.segment_bytes = 1024;
    MockProgram program(machine.num_sms, cell.num_tiles, steps, step_ns, tile_ns, true);
    const double total = simulate(machine, sender, program, options).total_ns;
    const double measured_ns = median(cell.total_ns);
    const double error = std::abs(total - measured_ns) / measured_ns;
    errors.push_back(error);
    if (measured_ns - base_ns > 0.03 * base_ns) {
      increment_errors.push_back(std::abs(total - measured_ns) / (measured_ns - base_ns));
      null_errors.push_back(1.0);
    }
    std::printf("%d,\"%s\",%.1f,%.1f,%.1f,%.1f,%.4f\n", steps, name.c_str(), measured_ns / 1e3,
                total / 1e3, (measured_ns - base_ns) / 1e3, (total - base_ns) / 1e3, error);
  }
  std::sort(errors.begin(), errors.end());
  std::printf(
      "# %zu cells: error/total median %.2f %%, worst %.2f %%; error of the increment where it is "
      "over 3 %%: median %.0f %% of it (%zu cells; nothing-is-added would be 100 %%)\n",
      errors.size(), 100 * median(errors), 100 * (errors.empty() ? 0 : errors.back()),
      100 * median(increment_errors), increment_errors.size());
  return errors.empty() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: replay_mock TABLES.json LINK.json [SPREAD_NS]\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2],
               argc == 4 ? std::optional(std::strtod(argv[3], nullptr)) : std::nullopt);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "replay_mock: error: %s\n", error.what());
    return 6;
  }
}
