// What a fit costs, up to the size of a long probe with raw rounds: 10^5 samples.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <vector>

#include "xstage/fit.hpp"
#include "xstage/grid.hpp"

namespace {

constexpr int kNumSms = 132;
constexpr double kDrainRate = 372;

xstage::LinkParams example_link() {
  xstage::LinkParams link;
  link.kind = xstage::StoreKind::register16;
  link.issue_curve = {{1024, 136}, {8192, 184}, {16384, 271}, {32768, 578}, {98304, 1876}};
  link.injection_rate = 50;
  link.drain_rate = kDrainRate;
  link.capacity_mean_bytes = 17000;
  link.capacity_slowest_bytes = 17000;
  link.share_spread = 0.2;
  link.visible_latency_ns = 1300;
  return link;
}

// The standard grid, every point repeated with 1 % noise until there are `num_samples`.
std::vector<xstage::Sample> noisy_samples(int num_samples) {
  const auto link = example_link();
  const auto grid = xstage::measuring_grid(kNumSms, kDrainRate);
  std::vector<xstage::Prediction> expected;
  for (const auto& point : grid) {
    expected.push_back(xstage::predict(link, {point.num_producers, point.bytes, point.gap_ns}));
  }
  std::mt19937 random(1);
  std::normal_distribution<double> noise(1.0, 0.01);
  std::vector<xstage::Sample> samples;
  for (int i = 0; i < num_samples; ++i) {
    const auto at = static_cast<std::size_t>(i) % grid.size();
    const auto& prediction = expected[at];
    xstage::Sample sample;
    sample.experiment = grid[at].experiment;
    sample.kind = link.kind;
    sample.num_producers = grid[at].num_producers;
    sample.bytes = grid[at].bytes;
    sample.round_idx = i / static_cast<int>(grid.size());
    if (sample.experiment == xstage::Experiment::isolated) {
      sample.issue_ns = prediction.isolated_issue_ns.value() * noise(random);
      sample.issue_slowest_ns = prediction.isolated_issue_slowest_ns.value() * noise(random);
      sample.issue_slowest_ns = std::max(sample.issue_slowest_ns, sample.issue_ns);
      sample.visible_slowest_ns = prediction.isolated_visible_ns.value() * noise(random);
      sample.visible_slowest_ns = std::max(sample.visible_slowest_ns, sample.issue_slowest_ns);
    } else {
      sample.gap_ns = grid[at].gap_ns;
      sample.nominal_gap_ns = grid[at].gap_ns;
      sample.issue_ns = prediction.issue_ns * noise(random);
      sample.period_ns = sample.issue_ns + sample.gap_ns;
    }
    samples.push_back(sample);
  }
  return samples;
}

void fit_samples(benchmark::State& state) {
  const auto samples = noisy_samples(static_cast<int>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(xstage::fit(samples));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
// No two samples of the same size or gap: every sample is a point of its own.
void fit_distinct_samples(benchmark::State& state) {
  auto samples = noisy_samples(static_cast<int>(state.range(0)));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    samples[i].bytes += 1e-4 * static_cast<double>(i);
  }
  for (auto _ : state) benchmark::DoNotOptimize(xstage::fit(samples));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(fit_distinct_samples)->Arg(100000)->Unit(benchmark::kMillisecond);

BENCHMARK(fit_samples)->Arg(1000)->Arg(100000)->Unit(benchmark::kMillisecond);

}  // namespace
