// What a probe would have measured on a link with known parameters.
#pragma once

#include <random>
#include <vector>

#include "xstage/grid.hpp"
#include "xstage/model.hpp"
#include "xstage/samples.hpp"

namespace xstage::test {

inline LinkParams true_link() {
  LinkParams link;
  link.kind = StoreKind::register16;
  for (const double bytes : kIsolatedBytes) {
    link.issue_curve.push_back({bytes, 100 + bytes / 50});  // r = 50
  }
  link.injection_rate = 50;
  link.drain_rate = 372;
  link.capacity_mean_bytes = link.capacity_slowest_bytes = 17000;
  link.share_spread = 0.4;
  link.visible_latency_ns = 1200;
  return link;
}

// What the probe would write for `link` on its own grid: raw rounds with noise, some of them wild.
struct Synthesis {
  unsigned long long seed = 1;
  int num_rounds = 8;
  double noise = 0.01;          // relative, uniform +-
  double outlier_share = 0.05;  // rounds that take 2 to 20 times as long
};

inline std::vector<Sample> synthesize(const LinkParams& link, const Synthesis& how) {
  std::mt19937_64 random(how.seed);
  const auto between = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  std::vector<Sample> samples;
  for (const GridPoint& point : measuring_grid(132, link.drain_rate)) {
    for (int round = 0; round < how.num_rounds; ++round) {
      Sample sample;
      sample.experiment = point.experiment;
      sample.kind = link.kind;
      sample.num_producers = point.num_producers;
      sample.bytes = point.bytes;
      sample.round_idx = round;
      const double wild = between(0, 1) < how.outlier_share ? between(2, 20) : 1;
      const double factor = wild * (1 + how.noise * between(-1, 1));
      const Prediction p = predict(link, {point.num_producers, point.bytes, point.gap_ns});
      if (point.experiment == Experiment::isolated) {
        sample.issue_ns = *p.isolated_issue_ns * factor;
        sample.issue_slowest_ns = *p.isolated_issue_slowest_ns * factor;
        sample.visible_slowest_ns = *p.isolated_visible_ns * factor;
      } else {
        sample.nominal_gap_ns = point.gap_ns;
        sample.gap_ns = point.gap_ns;
        sample.issue_ns = p.issue_ns * factor;
        sample.period_ns = sample.issue_ns + sample.gap_ns;
      }
      samples.push_back(sample);
    }
  }
  return samples;
}

}  // namespace xstage::test
