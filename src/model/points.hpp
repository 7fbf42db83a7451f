// Samples grouped into points: one (experiment, kind, K, B, directions, gap) is one vote, be it one
// aggregate row or many raw ones.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "xstage/samples.hpp"

namespace xstage::model {

struct Point {
  Experiment experiment = Experiment::isolated;
  StoreKind kind = StoreKind::register16;
  int num_producers = 0;
  int num_directions = 1;
  double bytes = 0;
  // Medians over the point's rows; kUnmeasured where no row holds the quantity.
  double gap_ns = kUnmeasured;
  double issue_ns = kUnmeasured;
  double period_ns = kUnmeasured;
  double slowest_ns = kUnmeasured;
  double visible_ns = kUnmeasured;  // of the slowest, else of the mean

  [[nodiscard]] double volume() const noexcept { return num_producers * bytes; }
};

// Checks every sample (Error(usage) with its index, field and legal range), then groups. The result
// is sorted and does not depend on the order of the samples.
[[nodiscard]] std::vector<Point> collect_points(std::span<const Sample> samples);

// rough_drain_rate of fit.hpp on points of one kind.
[[nodiscard]] double rough_drain_rate(std::span<const Point> points);

[[nodiscard]] bool is_held_out(const Point& point, double drain_rate) noexcept;

// "isolated, K=66, 48 KiB", "periodic, K=132, 4 KiB, gap 0.57 us"
[[nodiscard]] std::string describe(const Point& point);

}  // namespace xstage::model
