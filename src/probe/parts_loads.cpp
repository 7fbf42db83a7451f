// The parts about a full stage and its neighbours: local loads, pacing, the mock attention.
#include <cmath>

#include "probe/experiments.hpp"
#include "probe/loads.hpp"
#include "probe/mock_attention.hpp"
#include "xstage/grid.hpp"

namespace xstage::probing {
namespace {

using Row = std::vector<std::variant<std::string, double>>;

double largest(const std::vector<double>& values, std::size_t begin, std::size_t end) {
  double result = 0;
  for (std::size_t i = begin; i < std::min(end, values.size()); ++i) {
    result = std::max(result, values[i]);
  }
  return result;
}

LoadSpec load_spec(Context& context, StoreKind kind, double bytes, double demand_share,
                   bool aligned, int num_in_flight) {
  LoadSpec spec;
  spec.kind = kind;
  spec.bytes = static_cast<std::uint32_t>(bytes);
  spec.send.kind = kind;
  spec.send.chunk_bytes = piece_bytes(kind, spec.bytes);
  spec.gap_ns = demand_share > 0 ? context.gap_for(bytes, context.link.num_sms(), demand_share) : 0;
  spec.aligned = aligned;
  spec.num_in_flight = num_in_flight;
  // Enough bursts for a steady state, short enough for a slow link.
  spec.num_bursts = bytes > 16 * kKib ? 24 : 64;
  spec.seed = context.next_seed();
  return spec;
}

Row load_row(const LoadSpec& spec, const LoadRun& run, double demand_share) {
  const auto bursts = run.max_by_burst_ns.size();
  return {std::string(spec.stores ? to_string(spec.kind) : "none"),
          std::string(spec.aligned ? "lockstep" : "drifting"),
          double(spec.stores ? spec.bytes : 0),
          spec.gap_ns,
          demand_share,
          double(spec.num_in_flight),
          run.load_rate,
          run.latency_mean_ns,
          largest(run.max_by_burst_ns, 0, 1),
          largest(run.max_by_burst_ns, 1, bursts / 2),
          largest(run.max_by_burst_ns, bursts / 2, bursts),
          run.store_rate};
}

const std::vector<std::string> kLoadColumns = {"kind",
                                               "phase",
                                               "bytes",
                                               "gap_ns",
                                               "demand",
                                               "in_flight",
                                               "load_gb_s_per_sm",
                                               "latency_mean_ns",
                                               "max_burst_0_ns",
                                               "max_early_ns",
                                               "max_late_ns",
                                               "store_gb_s"};

void add_load_control(Context& context, int num_in_flight, Table& table) {
  LoadSpec spec = load_spec(context, StoreKind::bulk, 8 * kKib, 0.25, false, num_in_flight);
  spec.stores = false;
  spec.gap_ns = 5000;
  (void)run_loads(context.link, spec);  // warms L2
  table.rows.push_back(load_row(spec, run_loads(context.link, spec), 0));
}

// Tensor-core rounds that make a step of the mock attention last `step_ns`.
int rounds_for(Context& context, double step_ns) {
  const auto step_of = [&](int rounds) {
    MockSpec spec;
    spec.owner = MockSpec::Owner::none;
    spec.num_tiles = 4;
    spec.steps_per_tile = 16;
    spec.rounds_per_step = rounds;
    return run_mock_attention(context.link, spec).main_loop_ns / (4 * 16);
  };
  (void)step_of(64);
  const double few = step_of(64);
  const double many = step_of(192);
  return std::max(8, static_cast<int>(std::lround(64 + (step_ns - few) / ((many - few) / 128))));
}

struct MockCase {
  const char* name;
  MockSpec::Owner owner;
  Send send;
};

std::vector<MockCase> mock_cases(int steps_per_tile) {
  const auto paced = [&](std::uint32_t chunk) {
    // The chunks of a tile spread over three quarters of the next tile's steps.
    const std::uint32_t chunks = kTileSendBytes / chunk;
    return Send{StoreKind::bulk, chunk,
                std::max(1u, static_cast<std::uint32_t>(steps_per_tile) * 3 / 4 / chunks),
                Completion::accepted};
  };
  const Send burst{StoreKind::bulk, kTileSendBytes, 0, Completion::accepted};
  const Send coupled{StoreKind::bulk, kTileSendBytes, 0, Completion::visible};
  return {{"none", MockSpec::Owner::none, burst},
          {"spare warp, burst", MockSpec::Owner::spare_warp, burst},
          {"spare warp, paced 16K", MockSpec::Owner::spare_warp, paced(16 * 1024)},
          {"spare warp, paced 8K", MockSpec::Owner::spare_warp, paced(8 * 1024)},
          {"spare warp, paced 4K", MockSpec::Owner::spare_warp, paced(4 * 1024)},
          {"spare warp, coupled", MockSpec::Owner::spare_warp, coupled},
          {"consumers, burst", MockSpec::Owner::consumers, burst},
          {"consumers, paced 8K", MockSpec::Owner::consumers, paced(8 * 1024)},
          {"consumers, coupled", MockSpec::Owner::consumers, coupled}};
}

}  // namespace

void part_loads(Context& context) {
  if (!context.link.has_copy_engine_stores()) return;
  Table table{"load_interference", kLoadColumns, {}};
  for (const int in_flight : {1, 4}) {
    add_load_control(context, in_flight, table);
    for (const StoreKind kind : {StoreKind::register16, StoreKind::bulk}) {
      if (!context.measures(kind)) continue;
      for (const double kib : {8.0, 32.0}) {
        for (const double demand : {0.0, 0.83, 0.25}) {
          for (const bool aligned : {false, true}) {
            const LoadSpec spec = load_spec(context, kind, kib * kKib, demand, aligned, in_flight);
            table.rows.push_back(load_row(spec, run_loads(context.link, spec), demand));
          }
        }
      }
    }
  }
  context.pair.tables.push_back(std::move(table));
}

void part_pacing(Context& context) {
  if (!context.link.has_copy_engine_stores()) return;
  // One average demand, sent in smaller and smaller bursts.
  Table table{"pacing", kLoadColumns, {}};
  for (const StoreKind kind : {StoreKind::register16, StoreKind::bulk}) {
    if (!context.measures(kind)) continue;
    for (const double demand : {0.5, 0.8}) {
      for (const double kib : {2.0, 4.0, 8.0, 16.0, 32.0}) {
        for (const bool aligned : {false, true}) {
          const LoadSpec spec = load_spec(context, kind, kib * kKib, demand, aligned, 4);
          table.rows.push_back(load_row(spec, run_loads(context.link, spec), demand));
        }
      }
    }
  }
  context.pair.tables.push_back(std::move(table));
}

void part_mock_attention(Context& context) {
  if (!context.link.has_copy_engine_stores()) return;
  Table table{"mock_attention",
              {"case", "steps_per_tile", "tiles", "demand", "repeat", "total_ns", "computed_ns",
               "main_loop_ns", "first_tile_ns", "second_tile_ns", "second_tile_slowest_ns",
               "later_tiles_ns", "later_tiles_slowest_ns"},
              {}};
  constexpr int kTiles = 8;
  constexpr int kRepeats = 5;
  const int rounds = rounds_for(context, 2000);
  const double drain_ns = kTileSendBytes * double(context.link.num_sms()) / context.drain_rate;
  for (const double demand : {1.2, 0.6, 0.3, 0.15}) {
    const int steps = std::max(4, static_cast<int>(std::lround(drain_ns / demand / 2000)));
    const auto cases = mock_cases(steps);
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      for (std::size_t i = 0; i < cases.size(); ++i) {
        // Forth and back, so that a drift of the clock falls on all cases alike.
        const MockCase& c = cases[repeat % 2 == 0 ? i : cases.size() - 1 - i];
        MockSpec spec{c.owner, c.send, kTiles, steps, rounds, context.next_seed()};
        const MockRun run = run_mock_attention(context.link, spec);
        if (run.num_wrong_words != 0) {
          throw Error(ErrorCategory::check_failed, std::string("mock attention, ") + c.name + ": " +
                                                       std::to_string(run.num_wrong_words) +
                                                       " wrong words");
        }
        double later = 0;
        for (int t = 2; t < kTiles; ++t) later += run.tile_ns[t] / (kTiles - 2);
        table.rows.push_back({std::string(c.name), double(steps), double(kTiles),
                              drain_ns / (steps * 2000.0), double(repeat), run.total_ns,
                              run.computed_ns, run.main_loop_ns, run.tile_ns[0], run.tile_ns[1],
                              run.tile_slowest_ns[1], later,
                              largest(run.tile_slowest_ns, 2, kTiles)});
      }
    }
  }
  context.pair.tables.push_back(std::move(table));
}

}  // namespace xstage::probing
