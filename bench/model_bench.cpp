// What a prediction costs: `xstage predict` and the planner call it many times.
#include <benchmark/benchmark.h>

#include "xstage/model.hpp"

namespace {

xstage::LinkParams example_link() {
  xstage::LinkParams link;
  link.kind = xstage::StoreKind::register16;
  link.issue_curve = {{4096, 143}, {8192, 184}, {16384, 271}, {32768, 520}};
  link.injection_rate = 50;
  link.drain_rate = 372;
  return link;
}

void predict_steady_state(benchmark::State& state) {
  const auto link = example_link();
  double gap_ns = 0;
  for (auto _ : state) {
    gap_ns = gap_ns > 20000 ? 0 : gap_ns + 100;
    benchmark::DoNotOptimize(
        xstage::predict(link, {.num_producers = 132, .bytes = 32768, .gap_ns = gap_ns}));
  }
}
BENCHMARK(predict_steady_state);

// With a capacity the isolated burst comes on top: every producer's share, twice.
void predict_with_capacity(benchmark::State& state) {
  auto link = example_link();
  link.capacity_mean_bytes = 17000;
  link.capacity_slowest_bytes = 17000;
  link.share_spread = 0.4;
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        xstage::predict(link, {.num_producers = 132, .bytes = 32768, .gap_ns = 8000}));
  }
}
BENCHMARK(predict_with_capacity);

}  // namespace
