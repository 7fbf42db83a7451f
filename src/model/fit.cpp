#include "xstage/fit.hpp"

#include <algorithm>

#include "model/fit_parts.hpp"
#include "model/points.hpp"
#include "model/validate.hpp"
#include "xstage/error.hpp"

namespace xstage {
namespace model {

void add_unidentified(KindFit& out, std::string quantity, std::string reason) {
  out.unidentified.push_back({std::move(quantity), std::move(reason)});
}

bool can_predict(const LinkParams& params) noexcept {
  return !params.issue_curve.empty() && params.drain_rate > 0;
}

namespace {

KindFit fit_kind(std::span<const Point> points, const FitOptions& options) {
  KindFit out;
  out.params.kind = points.front().kind;
  const double rough_rate = rough_drain_rate(points);
  std::vector<Point> fitted;
  std::vector<Point> held_out;
  for (const Point& point : points) {
    (options.hold_out && is_held_out(point, rough_rate) ? held_out : fitted).push_back(point);
  }
  fit_issue_curve(fitted, rough_rate, options, out);
  fit_drain_rate(fitted, options, out);
  if (!can_predict(out.params)) {
    for (const char* quantity : {"capacity_mean_bytes", "capacity_slowest_bytes", "share_spread",
                                 "visible_latency_ns", "both_directions_factor"}) {
      add_unidentified(out, quantity, "needs the issue curve and the drain rate");
    }
    return out;
  }
  fit_visible_latency(fitted, out);
  fit_both_directions(fitted, out);
  fit_capacity(fitted, options, out);
  use_capacity_at_k(out);
  out.residuals = evaluate_points(out.params, fitted).burst_gap;
  if (!held_out.empty()) out.held_out = evaluate_points(out.params, held_out);
  return out;
}

}  // namespace
}  // namespace model

void use_capacity_at_k(KindFit& fit) {
  fit.params.stages.clear();
  for (const CapacityAtK& row : fit.capacity_at_k) {
    if (!row.by_mean) continue;
    Stage stage;
    stage.num_producers = row.num_producers;
    stage.capacity_mean_bytes = row.by_mean->bytes;
    if (row.by_slowest) stage.capacity_slowest_bytes = row.by_slowest->bytes;
    stage.share_spread = row.share_spread.value_or(0);
    fit.params.stages.push_back(stage);
  }
}

Fit fit(std::span<const Sample> samples, const FitOptions& options) {
  if (samples.empty()) {
    throw Error(ErrorCategory::usage, "samples: none; a fit needs at least one");
  }
  model::check_range("bootstrap draws", options.num_bootstrap, 0, 100000);
  const std::vector<model::Point> points = model::collect_points(samples);
  Fit result;
  for (int i = 0; i < kNumStoreKinds; ++i) {
    const auto kind = static_cast<StoreKind>(i);
    std::vector<model::Point> of_kind;
    std::copy_if(points.begin(), points.end(), std::back_inserter(of_kind),
                 [&](const model::Point& point) { return point.kind == kind; });
    if (of_kind.empty()) continue;
    KindFit fitted = model::fit_kind(of_kind, options);
    fitted.num_samples = static_cast<int>(std::count_if(
        samples.begin(), samples.end(), [&](const Sample& sample) { return sample.kind == kind; }));
    result.kinds.push_back(std::move(fitted));
  }
  return result;
}

}  // namespace xstage
