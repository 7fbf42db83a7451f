// The bound, before any MoE kernel exists: what other task orders can gain over expert waves on two
// H200s, by simulation with estimated tile costs. 84 cells (7 shapes x 2 types x 2 routings x 3
// token counts) at two placements: 8 ranks emulated on two GPUs (traffic of 8), and 2 real ranks.
//
//   moe_bound profiles/h200-nv18.json profiles/costs/h200-estimate.json >
//   bench/results/moe_bound_h200.csv
//
// Times in us, launch and barriers included. "bulk": a spare role sends bulk copies from an outbox
// of one tile. "main": the roles that compute store from registers, as public kernels do.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <numeric>
#include <string>
#include <vector>

#include "xstage/files.hpp"
#include "xstage/simulate_kernels.hpp"
#include "xstage/tile_costs.hpp"

namespace {

using namespace xstage;

struct Shape {
  const char* name;
  int hidden, intermediate, experts, top_k, shared;
};
constexpr Shape kShapes[] = {
    {"flash", 4096, 2048, 256, 6, 0},         {"pro", 7168, 3072, 384, 6, 0},
    {"hunyuanimage-3", 4096, 3072, 64, 8, 1}, {"lingbot", 2048, 768, 128, 8, 1},
    {"qwen-like", 4096, 1024, 512, 10, 0},    {"glm-like", 6144, 2048, 256, 8, 0},
    {"nucleus", 2048, 1344, 128, 8, 0}};
constexpr double kSkew = 0.6;

struct Ratios {
  std::vector<double> values;
  void print(const char* placement, const char* what) {
    std::sort(values.begin(), values.end());
    double log_sum = 0;
    for (const double v : values) log_sum += std::log(v);
    const auto n = static_cast<double>(values.size());
    std::printf("# %s, %s: geomean %.3f, min %.3f, median %.3f, max %.3f (%zu cells)\n", placement,
                what, std::exp(log_sum / n), values.front(), values[values.size() / 2],
                values.back(), values.size());
  }
};

class Bound {
 public:
  Bound(LinkProfile link, TileCosts costs) : link_(std::move(link)), costs_(std::move(costs)) {}

  void run() {
    std::printf(
        "# link %s (%s), tile costs %s (%s, estimated: %s), skewed: popularity ~ 1/i^%.1f\n",
        link_.name.c_str(), link_.hash.c_str(), costs_.name.c_str(), costs_.hash.c_str(),
        costs_.estimated ? "yes" : "no", kSkew);
    std::printf(
        "placement,shape,dtype,routing,tokens_per_rank,unique_share,load_imbalance,wave_bulk_us,"
        "interleaved_bulk_us,lag_bulk_us,"
        "unique_bulk_us,wave_main_us,interleaved_main_us,local_wave_us,local_interleaved_us,"
        "interleaved_over_wave_bulk,"
        "lag_over_wave_bulk,unique_over_wave_bulk,interleaved_over_wave_main,interleaved_bulk_over_"
        "wave_main\n");
    for (const int ranks : {8, 2}) {
      const char* placement = ranks == 8 ? "ep8-emulated" : "ep2";
      Ratios interleaved, lag, unique, main, both;
      for (const Shape& shape : kShapes) {
        for (const DataType dtype : {DataType::bf16, DataType::fp8}) {
          for (const double skew : {0.0, kSkew}) {
            for (const int tokens : {512, 4096, 16384}) {
              const Cell c = cell(shape, dtype, skew, tokens, ranks);
              std::printf(
                  "%s,%s,%s,%s,%d,%.3f,%.2f,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f,%.3f,%.3f,%.3f,"
                  "%.3f,%.3f\n",
                  placement, shape.name, std::string(to_string(dtype)).c_str(),
                  skew > 0 ? "skewed" : "balanced", tokens, c.unique_share, c.imbalance, c.wave,
                  c.interleaved, c.lag, c.unique, c.wave_main, c.interleaved_main, c.local_wave,
                  c.local_interleaved, c.wave / c.interleaved, c.wave / c.lag, c.wave / c.unique,
                  c.wave_main / c.interleaved_main, c.wave_main / c.interleaved);
              std::fflush(stdout);
              interleaved.values.push_back(c.wave / c.interleaved);
              lag.values.push_back(c.wave / c.lag);
              unique.values.push_back(c.wave / c.unique);
              main.values.push_back(c.wave_main / c.interleaved_main);
              both.values.push_back(c.wave_main / c.interleaved);
            }
          }
        }
      }
      interleaved.print(placement, "interleaved over wave, both bulk from a spare role");
      lag.print(placement, "lag over wave, both bulk from a spare role");
      unique.print(placement, "interleaved with tokens once per rank over wave, both bulk");
      main.print(placement, "interleaved over wave, both register stores of the main roles");
      both.print(placement, "interleaved bulk over wave with register stores of the main roles");
    }
  }

 private:
  struct Cell {
    double unique_share = 1, imbalance = 1;
    double wave = 0, interleaved = 0, lag = 0, unique = 0, wave_main = 0, interleaved_main = 0;
    double local_wave = 0, local_interleaved = 0;
  };

  double time_us(const MoeRun& base, MoeSchedule schedule, bool unique, StoreKind kind, bool local,
                 const MoeRouting& routing) const {
    MoeRun run = base;
    run.schedule = schedule;
    run.unique_tokens = unique;
    run.local_only = local;
    SimMachine machine;
    machine.num_sms = costs_.num_sms;
    machine.link = link_.kind(kind).params;
    machine.both_directions = true;
    machine.barrier_ns = costs_.barrier_ns;
    SimSender sender;
    sender.send.kind = kind;
    sender.outbox_bytes = static_cast<std::int64_t>(run.cost.block_m) * run.cost.block_n * 2;
    sender.send.chunk_bytes = static_cast<std::uint32_t>(sender.outbox_bytes);
    if (kind == StoreKind::register16) sender.owner = SendOwner::main_role;
    SimOptions options;
    options.segment_bytes = 4096;
    return (costs_.launch_ns + costs_.barrier_ns +
            simulate_moe(machine, sender, run, routing, options).total_ns) /
           1e3;
  }

  Cell cell(const Shape& shape, DataType dtype, double skew, int tokens, int ranks) const {
    MoeRun run;
    run.workload.tokens_per_rank = tokens;
    run.workload.hidden = shape.hidden;
    run.workload.intermediate = shape.intermediate;
    run.workload.num_experts = shape.experts;
    run.workload.top_k = shape.top_k;
    run.workload.num_shared_experts = shape.shared;
    run.workload.dtype = dtype;
    run.workload.skew = skew;
    run.cost = costs_.moe_for(dtype);
    run.num_ranks = ranks;
    run.memory_rate = costs_.memory_rate;
    const MoeRouting routing = route(run.workload, ranks);
    std::vector<int> order(static_cast<std::size_t>(ranks));
    std::iota(order.begin(), order.end(), 0);
    const auto load = [&](int rank) {
      const auto first =
          routing.tokens.begin() + static_cast<std::ptrdiff_t>(rank) * routing.experts_per_rank;
      return std::accumulate(first, first + routing.experts_per_rank, std::int64_t{0});
    };
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return load(a) > load(b); });
    run.computing_ranks = {order[0], order[1]};  // the busiest decides
    Cell c;
    c.unique_share = routing.unique_share;
    c.imbalance = static_cast<double>(load(order[0])) * ranks /
                  std::max<double>(1, static_cast<double>(tokens) * ranks * shape.top_k);
    c.wave = time_us(run, MoeSchedule::wave, false, StoreKind::bulk, false, routing);
    c.interleaved = time_us(run, MoeSchedule::interleaved, false, StoreKind::bulk, false, routing);
    c.lag = time_us(run, MoeSchedule::lag, false, StoreKind::bulk, false, routing);
    c.unique = time_us(run, MoeSchedule::interleaved, true, StoreKind::bulk, false, routing);
    c.wave_main = time_us(run, MoeSchedule::wave, false, StoreKind::register16, false, routing);
    c.interleaved_main =
        time_us(run, MoeSchedule::interleaved, false, StoreKind::register16, false, routing);
    c.local_wave = time_us(run, MoeSchedule::wave, false, StoreKind::bulk, true, routing);
    c.local_interleaved =
        time_us(run, MoeSchedule::interleaved, false, StoreKind::bulk, true, routing);
    return c;
  }

  LinkProfile link_;
  TileCosts costs_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: moe_bound LINK.json COSTS.json\n");
    return 2;
  }
  try {
    Bound(read_link(argv[1]).profile, read_costs(argv[2])).run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "moe_bound: error: %s\n", error.what());
    return 6;
  }
}
