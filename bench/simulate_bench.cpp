// Events per second of the simulator on one core. Bar: 1e7.
#include <benchmark/benchmark.h>

#include "xstage/simulate.hpp"
#include "xstage/simulate_kernels.hpp"

namespace {

xstage::SimMachine h200_like(int num_gpus) {
  xstage::SimMachine machine;
  machine.num_gpus = num_gpus;
  machine.link.issue_curve = {{4096, 242}, {32768, 752}};
  machine.link.injection_rate = 50;
  machine.link.drain_rate = 373;
  machine.link.capacity_mean_bytes = 9500;
  machine.link.visible_latency_ns = 1300;
  machine.link.share_spread = 0.3;
  return machine;
}

void drain_limited_bursts(benchmark::State& state) {
  const xstage::SimMachine machine = h200_like(2);
  double events = 0;
  for (auto _ : state) {
    const auto trace =
        xstage::simulate_bursts(machine, {132, 32768, 2000}, 100, xstage::BurstStart::staggered);
    benchmark::DoNotOptimize(trace.period_ns);
    events += static_cast<double>(trace.report.num_events);
  }
  state.counters["events/s"] = benchmark::Counter(events, benchmark::Counter::kIsRate);
}
BENCHMARK(drain_limited_bursts)->Unit(benchmark::kMillisecond);

// Eight GPUs through a switch, all to all: main loops, outboxes, egress, ingress.
class AllToAll : public xstage::SimProgram {
 public:
  explicit AllToAll(int num_gpus)
      : num_gpus_(num_gpus), at_(static_cast<std::size_t>(num_gpus) * 132) {}
  xstage::SimNext next(int gpu, int sm, xstage::SimTask& task) override {
    int& tile = at_[static_cast<std::size_t>(gpu * 132 + sm)];
    if (tile == 40) return xstage::SimNext::end;
    task.id = tile;
    task.step_ns = 600 + 3 * sm;
    task.num_steps = 32;
    task.stores.push_back({(gpu + 1 + (tile + sm) % (num_gpus_ - 1)) % num_gpus_, 32768});
    ++tile;
    return xstage::SimNext::task;
  }

 private:
  int num_gpus_;
  std::vector<int> at_;
};

void all_to_all(benchmark::State& state) {
  const int num_gpus = static_cast<int>(state.range(0));
  const xstage::SimMachine machine = h200_like(num_gpus);
  xstage::SimSender sender;
  sender.send.chunk_bytes = 8192;
  sender.send.steps_per_chunk = 4;
  double events = 0;
  for (auto _ : state) {
    AllToAll program(num_gpus);
    const auto report = simulate(machine, sender, program);
    benchmark::DoNotOptimize(report.total_ns);
    events += static_cast<double>(report.num_events);
  }
  state.counters["events/s"] = benchmark::Counter(events, benchmark::Counter::kIsRate);
}
BENCHMARK(all_to_all)->Arg(2)->Arg(8)->Unit(benchmark::kMillisecond);

// A V4-Flash-like MoE layer, 8 ranks x 8192 tokens, all eight simulated. Bar: 2 s.
void moe_layer(benchmark::State& state) {
  xstage::MoeRun run;
  run.workload.tokens_per_rank = 8192;
  run.workload.hidden = 4096;
  run.workload.intermediate = 2048;
  run.workload.num_experts = 256;
  run.workload.top_k = 6;
  run.cost.step_ns = 1055;
  run.cost.tile_ns = 2000;
  run.memory_rate = 4000;
  run.num_ranks = 8;
  xstage::SimSender sender;
  sender.send.chunk_bytes = 65536;
  sender.outbox_bytes = 65536;
  const xstage::SimMachine machine = h200_like(8);
  xstage::SimOptions options;
  options.segment_bytes = 4096;
  double events = 0;
  for (auto _ : state) {
    const auto report = simulate_moe(machine, sender, run, route(run.workload, 8), options);
    benchmark::DoNotOptimize(report.total_ns);
    events += static_cast<double>(report.num_events);
  }
  state.counters["events/s"] = benchmark::Counter(events, benchmark::Counter::kIsRate);
}
BENCHMARK(moe_layer)->Unit(benchmark::kMillisecond);

}  // namespace
