// Links that several tests use: one with round numbers, and random ones.
#pragma once

#include <random>

#include "xstage/model.hpp"

namespace xstage::test {

// 100 producers of 32 KiB: V = 3,276,800 bytes, V/R = 8192 ns, T0 = 600 ns, Q = 1,638,400 bytes.
inline LinkParams example_link() {
  LinkParams link;
  link.issue_curve = {{1024, 100}, {32768, 600}};
  link.injection_rate = 50;
  link.drain_rate = 400;
  link.capacity_mean_bytes = 16384;
  link.capacity_slowest_bytes = 16384;
  link.visible_latency_ns = 1000;
  return link;
}
inline constexpr Burst kExampleBurst{.num_producers = 100, .bytes = 32768, .gap_ns = 2000};

inline LinkParams random_link(std::mt19937_64& random, double max_spread) {
  const auto between = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  LinkParams link;
  link.injection_rate = between(10, 100);
  link.drain_rate = between(20, 900);
  double bytes = between(512, 4096);
  double issue_ns = between(50, 300);
  for (int i = 0; i < 4; ++i) {
    link.issue_curve.push_back({bytes, issue_ns});
    bytes *= between(1.5, 3);
    issue_ns += between(10, 500);
  }
  link.capacity_mean_bytes = between(0, 40000);
  link.capacity_slowest_bytes = link.capacity_mean_bytes;
  link.share_spread = max_spread == 0 ? 0 : between(0, max_spread);
  return link;
}

inline Burst random_burst(std::mt19937_64& random) {
  return {std::uniform_int_distribution<int>(1, 150)(random),
          std::uniform_real_distribution<double>(256, 200000)(random),
          std::uniform_real_distribution<double>(0, 30000)(random)};
}

}  // namespace xstage::test
