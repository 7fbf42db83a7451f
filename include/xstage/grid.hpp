// The measuring grid that the fit recommends, and the fixed part of it that is held out: measured,
// judged, never fitted. The rule looks at the kind of experiment, K, B and the gap as a fraction of
// V/R alone, so nobody can choose the points after seeing the errors. Pure.
#pragma once

#include <array>
#include <vector>

#include "xstage/samples.hpp"

namespace xstage {

inline constexpr double kKib = 1024.0;

// Isolated bursts: bytes per producer.
inline constexpr std::array<double, 12> kIsolatedBytes{1 * kKib,  2 * kKib,  4 * kKib,  8 * kKib,
                                                       12 * kKib, 16 * kKib, 20 * kKib, 24 * kKib,
                                                       32 * kKib, 48 * kKib, 64 * kKib, 96 * kKib};
// Just above the two knees known so far (bulk, register), and far above both.
inline constexpr std::array<double, 3> kHeldOutIsolatedBytes{12 * kKib, 20 * kKib, 48 * kKib};
// Fewer producers than this cannot fill a link: their bursts teach T0 and r, and are all fitted.
inline constexpr int kHeldOutMinProducers = 8;

// Periodic bursts: bytes per producer, and gaps as fractions of V/R.
inline constexpr std::array<double, 4> kPeriodicBytes{8 * kKib, 16 * kKib, 32 * kKib, 64 * kKib};
inline constexpr std::array<double, 13> kPeriodicGapFractions{
    0.0, 0.15, 0.30, 0.45, 0.60, 0.75, 0.85, 0.95, 1.0, 1.1, 1.30, 1.45, 2.0};

struct GapBand {
  double low = 0;   // inclusive
  double high = 0;  // exclusive
};
// Gaps, as fractions of V/R, that are held out: the knee, and a slice on each side of it.
inline constexpr std::array<GapBand, 3> kHeldOutGapBands{
    {{0.40, 0.50}, {0.70, 1.20}, {1.40, 1.50}}};

inline constexpr int kIsolatedRounds = 16;   // recommended per point, after dropped warm-up rounds
inline constexpr int kPeriodicBursts = 150;  // recommended per point, after the first third

[[nodiscard]] constexpr bool is_held_out_isolated(int num_producers, double bytes) noexcept {
  if (num_producers < kHeldOutMinProducers) return false;
  for (const double held_out : kHeldOutIsolatedBytes) {
    if (bytes == held_out) return true;
  }
  return false;
}

[[nodiscard]] constexpr bool is_held_out_periodic(double gap_fraction) noexcept {
  for (const GapBand& band : kHeldOutGapBands) {
    if (gap_fraction >= band.low && gap_fraction < band.high) return true;
  }
  return false;
}

// One point to measure. gap_ns is what the probe asks for; the loop's own time comes on top, so the
// measured gap is a little larger. `held_out` is by the requested gap.
struct GridPoint {
  Experiment experiment = Experiment::isolated;
  int num_producers = 0;
  double bytes = 0;  // per producer
  double gap_ns = 0;
  bool held_out = false;
};

// The whole grid for a source with `num_sms` SMs and a link that drains about `drain_rate` B/ns
// (any zero-gap burst train gives it within 10 %). Isolated: K = 1, 4, 16, half, all; periodic:
// K = half, all. Throws Error(usage).
[[nodiscard]] std::vector<GridPoint> measuring_grid(int num_sms, double drain_rate);

}  // namespace xstage
