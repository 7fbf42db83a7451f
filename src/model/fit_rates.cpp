// T0(B), r, R, visibility latency, both directions.
#include <algorithm>
#include <cmath>

#include "model/fit_parts.hpp"
#include "model/robust.hpp"
#include "model/validate.hpp"

namespace xstage::model {
namespace {

// A periodic burst that teaches R waits for at least this part of the period.
constexpr double kWaitShare = 0.25;
// K producers can fill the link if together they inject this many times its rate.
constexpr double kFillMargin = 1.2;
// Lone bursts from this part of the largest size on show the injection rate alone; smaller ones
// still profit from the empty stage.
constexpr double kSlopeShare = 1.0 / 3.0;
// Sizes on the issue curve: more would only be noise.
constexpr std::size_t kMaxCurvePoints = 256;

bool is_isolated(const Point& point) {
  return point.experiment == Experiment::isolated && point.num_directions == 1;
}

int fewest_producers(std::span<const Point> points) {
  int fewest = 0;
  for (const Point& point : points) {
    if (is_isolated(point) && (fewest == 0 || point.num_producers < fewest)) {
      fewest = point.num_producers;
    }
  }
  return fewest;
}

void thin(std::vector<IssuePoint>& curve) {
  if (curve.size() <= kMaxCurvePoints) return;
  std::vector<IssuePoint> kept;
  for (std::size_t i = 0; i < kMaxCurvePoints; ++i) {
    kept.push_back(curve[i * (curve.size() - 1) / (kMaxCurvePoints - 1)]);
  }
  curve = std::move(kept);
}

// Without isolated bursts: the plateau, bursts whose gap is longer than the drain.
std::vector<IssuePoint> plateau_curve(std::span<const Point> points, double rough_rate) {
  std::vector<IssuePoint> curve;
  for (const Point& point : points) {  // sorted by K, then size
    if (point.experiment != Experiment::periodic || point.num_directions != 1) continue;
    if (point.gap_ns * rough_rate < 1.1 * point.volume()) continue;
    if (point.bytes / point.issue_ns > kMaxRate) continue;
    const auto same = std::find_if(curve.begin(), curve.end(), [&](const IssuePoint& known) {
      return known.bytes == point.bytes;
    });
    if (same == curve.end()) {
      if (curve.size() < kMaxCurvePoints) curve.push_back({point.bytes, point.issue_ns});
    } else {
      same->issue_ns = std::min(same->issue_ns, point.issue_ns);
    }
  }
  std::sort(curve.begin(), curve.end(),
            [](const IssuePoint& a, const IssuePoint& b) { return a.bytes < b.bytes; });
  return curve;
}

struct Drained {
  std::vector<std::pair<double, double>> volume_period;
};

// Slope of the period over the volume; it leaves out the constant cost of a burst. With one volume
// only, or nonsense from few points, the plain ratio.
std::optional<double> drain_rate_of(const Drained& drained, std::span<const std::size_t> chosen) {
  std::vector<std::pair<double, double>> points;
  std::vector<double> ratios;
  for (const std::size_t idx : chosen) {
    points.push_back(drained.volume_period[idx]);
    ratios.push_back(points.back().first / points.back().second);
  }
  if (ratios.empty()) return std::nullopt;
  const double ratio = median(std::move(ratios));
  const auto slope = theil_sen_slope(std::move(points));
  if (!slope || *slope <= 0) return ratio;
  const double rate = 1.0 / *slope;
  return std::abs(rate / ratio - 1) < 0.15 ? rate : ratio;
}

Drained drained_points(std::span<const Point> points, const LinkParams& link) {
  Drained drained;
  int most_producers = 0;
  for (const Point& point : points) {
    if (point.experiment != Experiment::periodic || point.num_directions != 1) continue;
    if (point.issue_ns - issue_time_empty(link, point.bytes) < kWaitShare * point.period_ns) {
      continue;
    }
    const double rate = point.volume() / point.period_ns;
    if (point.num_producers * link.injection_rate < kFillMargin * rate) continue;
    if (point.num_producers < most_producers) continue;
    if (point.num_producers > most_producers) drained.volume_period.clear();
    most_producers = point.num_producers;
    drained.volume_period.emplace_back(point.volume(), point.period_ns);
  }
  return drained;
}

std::vector<std::size_t> all_indices(std::size_t count) {
  std::vector<std::size_t> indices(count);
  for (std::size_t i = 0; i < count; ++i) indices[i] = i;
  return indices;
}

// The largest rate at which the curve shows an SM injecting: a lower bound of r.
double rate_seen(const std::vector<IssuePoint>& curve) {
  double rate = 0;
  for (const IssuePoint& point : curve) rate = std::max(rate, point.bytes / point.issue_ns);
  return rate;
}

void fit_injection_rate(const FitOptions& options, bool lone, KindFit& out) {
  const auto& curve = out.params.issue_curve;
  std::vector<std::pair<double, double>> slope_points;
  for (const IssuePoint& point : curve) {
    if (lone && point.bytes >= kSlopeShare * curve.back().bytes) {
      slope_points.emplace_back(point.bytes, point.issue_ns);
    }
  }
  const auto rate_of = [&](std::span<const std::size_t> chosen) -> std::optional<double> {
    std::vector<std::pair<double, double>> drawn;
    for (const std::size_t idx : chosen) drawn.push_back(slope_points[idx]);
    const auto slope = theil_sen_slope(std::move(drawn));
    if (!slope || *slope <= 0) return std::nullopt;
    return 1.0 / *slope;
  };
  const auto rate = rate_of(all_indices(slope_points.size()));
  if (!rate || *rate > kMaxRate) {
    out.params.injection_rate = rate_seen(curve);
    add_unidentified(out, "injection_rate",
                     "no isolated bursts of few producers at two large sizes; the highest rate "
                     "seen, " +
                         to_text(out.params.injection_rate) + " B/ns, stands in as a lower bound");
    return;
  }
  out.params.injection_rate = *rate;
  out.injection_rate_interval =
      bootstrap(slope_points.size(), options.num_bootstrap, options.seed, rate_of);
}

}  // namespace

void fit_issue_curve(std::span<const Point> points, double rough_rate, const FitOptions& options,
                     KindFit& out) {
  auto& curve = out.params.issue_curve;
  const int fewest = fewest_producers(points);
  double fastest = 0;
  for (const Point& point : points) {
    if (!is_isolated(point) || point.num_producers != fewest) continue;
    fastest = std::max(fastest, point.volume() / point.issue_ns);
  }
  // Too few to fill the link: whatever they take is T0. Else only what the stage clearly absorbed.
  const bool lone = fewest > 0 && (fewest == 1 || rough_rate == 0 || fastest <= rough_rate);
  for (const Point& point : points) {
    if (!is_isolated(point) || point.num_producers != fewest) continue;
    if (point.bytes / point.issue_ns > kMaxRate) continue;  // no hardware; a clock that went wrong
    if (lone || point.volume() / point.issue_ns > 1.5 * rough_rate) {
      curve.push_back({point.bytes, point.issue_ns});  // points are sorted by size
    }
  }
  thin(curve);
  if (curve.empty()) curve = plateau_curve(points, rough_rate);
  if (curve.empty()) {
    add_unidentified(out, "issue_curve",
                     "no isolated burst of few producers and no periodic one with a gap above V/R");
    return;
  }
  fit_injection_rate(options, lone, out);
}

void fit_drain_rate(std::span<const Point> points, const FitOptions& options, KindFit& out) {
  if (out.params.issue_curve.empty()) {
    add_unidentified(out, "drain_rate", "unknown issue curve: no telling which bursts wait");
    return;
  }
  const Drained drained = drained_points(points, out.params);
  const auto rate_of = [&](std::span<const std::size_t> chosen) {
    return drain_rate_of(drained, chosen);
  };
  const std::size_t count = drained.volume_period.size();
  const auto rate = rate_of(all_indices(count));
  if (!rate || *rate > kMaxRate) {
    add_unidentified(out, "drain_rate",
                     "no periodic burst of enough producers waits for a quarter of its period; "
                     "measure with zero gap and more producers");
    return;
  }
  out.params.drain_rate = *rate;
  out.drain_rate_interval = bootstrap(count, options.num_bootstrap, options.seed + 1, rate_of);
}

void fit_visible_latency(std::span<const Point> points, KindFit& out) {
  std::vector<double> latencies;
  for (const Point& point : points) {
    if (!is_isolated(point) || !measured(point.visible_ns)) continue;
    const double issue_ns = measured(point.slowest_ns) ? point.slowest_ns : point.issue_ns;
    const double rate =
        std::min(out.params.drain_rate, point.num_producers * out.params.injection_rate);
    latencies.push_back(point.visible_ns - std::max(issue_ns, point.volume() / rate));
  }
  if (latencies.empty()) {
    add_unidentified(out, "visible_latency_ns", "no isolated burst with a measured visibility");
    return;
  }
  out.params.visible_latency_ns = std::max(0.0, median(std::move(latencies)));
}

void fit_both_directions(std::span<const Point> points, KindFit& out) {
  std::vector<double> factors;
  for (const Point& both : points) {
    if (both.experiment != Experiment::periodic || both.num_directions != 2) continue;
    const double t0 = issue_time_empty(out.params, both.bytes);
    if (both.issue_ns - t0 < kWaitShare * both.period_ns) continue;
    const Point* nearest = nullptr;
    const auto distance = [&](const Point& one) { return std::abs(one.gap_ns - both.gap_ns); };
    for (const Point& one : points) {
      if (one.experiment != Experiment::periodic || one.num_directions != 1) continue;
      if (one.num_producers != both.num_producers || one.bytes != both.bytes) continue;
      if (!nearest || distance(one) < distance(*nearest)) nearest = &one;
    }
    if (nearest && distance(*nearest) < 0.05 * both.period_ns) {
      factors.push_back(nearest->period_ns / both.period_ns);
    }
  }
  if (factors.empty()) {
    add_unidentified(out, "both_directions_factor",
                     "no pair of waiting periodic bursts with one and with both directions; 1 is "
                     "assumed");
    return;
  }
  out.params.both_directions_factor = std::min(1.0, median(std::move(factors)));
}

}  // namespace xstage::model
