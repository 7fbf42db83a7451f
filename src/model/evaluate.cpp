// The error metric: issue time against the period (isolated: the time to visibility).
#include <algorithm>
#include <cmath>

#include "model/fit_parts.hpp"
#include "model/robust.hpp"

namespace xstage::model {
namespace {

constexpr double kNearOnset = 0.25;

// Collects one error per point and keeps the name of the worst.
class Errors {
 public:
  void add(double predicted, double measured_value, double scale, const Point& point) {
    const double error = std::abs(predicted - measured_value) / scale;
    if (errors_.empty() || error > worst_) {
      worst_ = error;
      worst_point_ = &point;
    }
    errors_.push_back(error);
  }

  [[nodiscard]] ErrorSummary summary() const {
    ErrorSummary summary;
    if (errors_.empty()) return summary;
    summary.num_points = static_cast<int>(errors_.size());
    summary.median = median(errors_);
    summary.p95 = quantile(errors_, 0.95);
    summary.worst = worst_;
    summary.worst_point = describe(*worst_point_);
    return summary;
  }

 private:
  std::vector<double> errors_;
  double worst_ = 0;
  const Point* worst_point_ = nullptr;
};

struct AllErrors {
  Errors burst_gap, coupled, unbounded, alpha_beta, period, isolated_slowest;
  int num_near_onset = 0;

  void add_counterfactuals(const Prediction& prediction, double scale, const Point& point) {
    coupled.add(prediction.coupled.issue_ns, point.issue_ns, scale, point);
    unbounded.add(prediction.unbounded.issue_ns, point.issue_ns, scale, point);
    alpha_beta.add(prediction.alpha_beta.issue_ns, point.issue_ns, scale, point);
  }
};

void judge_periodic(const LinkParams& link, const Point& point, AllErrors& all) {
  const Prediction prediction =
      predict(link, Burst{point.num_producers, point.bytes, point.gap_ns});
  all.burst_gap.add(prediction.issue_ns, point.issue_ns, point.period_ns, point);
  all.period.add(prediction.period_ns, point.period_ns, point.period_ns, point);
  all.add_counterfactuals(prediction, point.period_ns, point);
  const double onset = prediction.onset_gap_ns;
  if (std::abs(point.gap_ns - onset) <= kNearOnset * onset) ++all.num_near_onset;
}

void judge_isolated(const LinkParams& link, const Point& point, AllErrors& all) {
  const Prediction prediction = predict(link, Burst{point.num_producers, point.bytes, 0});
  if (!prediction.isolated_issue_ns) return;
  double scale = point.visible_ns;
  if (!measured(scale)) {
    const double rate = effective_drain_rate(link, point.num_producers);
    scale = std::max(point.issue_ns, point.volume() / rate) + link.visible_latency_ns.value_or(0);
  }
  all.burst_gap.add(*prediction.isolated_issue_ns, point.issue_ns, scale, point);
  all.add_counterfactuals(prediction, scale, point);
  if (prediction.isolated_issue_slowest_ns && measured(point.slowest_ns)) {
    all.isolated_slowest.add(*prediction.isolated_issue_slowest_ns, point.slowest_ns, scale, point);
  }
}

}  // namespace

HeldOut evaluate_points(const LinkParams& params, std::span<const Point> points) {
  AllErrors all;
  for (const Point& point : points) {
    if (point.kind != params.kind) continue;
    LinkParams link = params;
    if (point.num_directions == 2) link.drain_rate *= params.both_directions_factor;
    if (point.experiment == Experiment::periodic) {
      judge_periodic(link, point, all);
    } else {
      judge_isolated(link, point, all);
    }
  }
  HeldOut held_out;
  held_out.burst_gap = all.burst_gap.summary();
  held_out.coupled = all.coupled.summary();
  held_out.unbounded = all.unbounded.summary();
  held_out.alpha_beta = all.alpha_beta.summary();
  held_out.period = all.period.summary();
  held_out.isolated_slowest = all.isolated_slowest.summary();
  if (held_out.burst_gap.num_points > 0) {
    held_out.near_onset_share =
        static_cast<double>(all.num_near_onset) / held_out.burst_gap.num_points;
  }
  return held_out;
}

}  // namespace xstage::model

namespace xstage {

HeldOut evaluate(const LinkParams& params, std::span<const Sample> samples) {
  return model::evaluate_points(params, model::collect_points(samples));
}

}  // namespace xstage
