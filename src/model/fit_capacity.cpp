// q and s: isolated bursts against the fluid of fluid_share.hpp, by least absolute error. A grid of
// candidates is judged once per point; the estimate and every bootstrap draw are then sums over
// columns of that table.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "model/fit_parts.hpp"
#include "model/fluid_share.hpp"
#include "model/robust.hpp"
#include "model/validate.hpp"

namespace xstage::model {
namespace {

constexpr double kFillMargin = 1.2;  // K*r over R from which K producers can fill the link
// A burst waits if somebody needs this much longer than T0, ...
constexpr double kWaitOverIssue = 0.2;
// ... and this much of the drain time: less is contention inside the SM, not a full stage.
constexpr double kWaitOverDrain = 0.03;
constexpr std::size_t kMaxPoints = 120;  // more are thinned evenly: cost, not accuracy

struct Burst {
  const Point* point = nullptr;
  double t0_ns = 0;
  double scale_ns = 0;  // errors are fractions of it: time to visibility
  bool waits = false;
};

struct Candidate {
  double spread = 0;
  double capacity = 0;
};

// Absolute relative errors of every candidate (row) at every burst (column).
struct ErrorTable {
  std::vector<Candidate> candidates;
  std::size_t num_bursts = 0;
  std::vector<float> mean;
  std::vector<float> slowest;  // 0 where not measured

  [[nodiscard]] double sum(const std::vector<float>& errors, std::size_t candidate,
                           std::span<const std::size_t> chosen) const {
    double total = 0;
    for (const std::size_t burst : chosen) total += errors[candidate * num_bursts + burst];
    return total;
  }
};

struct Estimate {
  double spread = 0;
  double by_mean = 0;
  double by_slowest = 0;
};

Burst make_burst(const Point& point, const LinkParams& link) {
  Burst burst;
  burst.point = &point;
  burst.t0_ns = issue_time_empty(link, point.bytes);
  const double drain_ns = point.volume() / link.drain_rate;
  const double worst =
      measured(point.slowest_ns) ? std::max(point.slowest_ns, point.issue_ns) : point.issue_ns;
  burst.scale_ns = measured(point.visible_ns)
                       ? point.visible_ns
                       : std::max(worst, drain_ns) + link.visible_latency_ns.value_or(0);
  burst.waits =
      worst - burst.t0_ns > std::max(kWaitOverIssue * burst.t0_ns, kWaitOverDrain * drain_ns);
  return burst;
}

std::vector<Burst> bursts_of(std::span<const Point> points, const LinkParams& link) {
  std::vector<Burst> bursts;
  for (const Point& point : points) {
    if (point.experiment != Experiment::isolated || point.num_directions != 1) continue;
    if (point.num_producers * link.injection_rate < kFillMargin * link.drain_rate) continue;
    bursts.push_back(make_burst(point, link));
  }
  if (bursts.size() <= kMaxPoints) return bursts;
  std::vector<Burst> kept;
  for (std::size_t i = 0; i < kMaxPoints; ++i) {
    kept.push_back(bursts[i * (bursts.size() - 1) / (kMaxPoints - 1)]);
  }
  return kept;
}

ErrorTable judge(std::span<const Burst> bursts, const LinkParams& link,
                 const std::vector<double>& spreads, const std::vector<double>& capacities) {
  ErrorTable table;
  table.num_bursts = bursts.size();
  for (const double spread : spreads) {
    for (const double capacity : capacities) table.candidates.push_back({spread, capacity});
  }
  table.mean.resize(table.candidates.size() * bursts.size());
  table.slowest.resize(table.mean.size());
  std::vector<double> times;
  for (std::size_t b = 0; b < bursts.size(); ++b) {
    const Point& point = *bursts[b].point;
    std::size_t candidate = 0;
    for (const double spread : spreads) {
      const FluidShare share(point.num_producers, link.drain_rate, link.injection_rate, spread);
      for (const double capacity : capacities) {
        share.issue_times(point.bytes, capacity, bursts[b].t0_ns, times);
        double mean = 0;
        for (const double time : times) mean += time;
        mean /= static_cast<double>(times.size());
        const std::size_t cell = candidate++ * table.num_bursts + b;
        table.mean[cell] = static_cast<float>(std::abs(mean - point.issue_ns) / bursts[b].scale_ns);
        if (measured(point.slowest_ns)) {
          table.slowest[cell] =
              static_cast<float>(std::abs(times.back() - point.slowest_ns) / bursts[b].scale_ns);
        }
      }
    }
  }
  return table;
}

// Best candidate by both statistics, then the best capacity of its spread by each alone.
Estimate best_of(const ErrorTable& table, std::span<const std::size_t> chosen) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector<double> mean(table.candidates.size());
  std::vector<double> slowest(table.candidates.size());
  double best = kNone;
  Estimate estimate;
  for (std::size_t i = 0; i < table.candidates.size(); ++i) {
    mean[i] = table.sum(table.mean, i, chosen);
    slowest[i] = table.sum(table.slowest, i, chosen);
    if (mean[i] + slowest[i] < best) {
      best = mean[i] + slowest[i];
      estimate.spread = table.candidates[i].spread;
    }
  }
  double best_mean = kNone;
  double best_slowest = kNone;
  for (std::size_t i = 0; i < table.candidates.size(); ++i) {
    if (table.candidates[i].spread != estimate.spread) continue;
    if (mean[i] < best_mean) {
      best_mean = mean[i];
      estimate.by_mean = table.candidates[i].capacity;
    }
    if (slowest[i] < best_slowest) {
      best_slowest = slowest[i];
      estimate.by_slowest = table.candidates[i].capacity;
    }
  }
  return estimate;
}

std::vector<double> geometric(double low, double high, int count) {
  std::vector<double> values;
  const double ratio = std::log(high / low) / (count - 1);
  for (int i = 0; i < count; ++i) values.push_back(low * std::exp(ratio * i));
  return values;
}

std::vector<double> linear(double low, double high, double step) {
  std::vector<double> values;
  for (int i = 0; low + i * step <= high + 1e-9; ++i) values.push_back(low + i * step);
  return values;
}

std::vector<std::size_t> all_of(std::size_t count) {
  std::vector<std::size_t> indices(count);
  for (std::size_t i = 0; i < count; ++i) indices[i] = i;
  return indices;
}

struct Intervals {
  std::optional<Interval> spread;
  std::optional<Interval> by_mean;
  std::optional<Interval> by_slowest;
};

Intervals intervals_of(const ErrorTable& table, const FitOptions& options, std::uint64_t stream) {
  std::vector<double> spreads;
  std::vector<double> by_mean;
  std::vector<double> by_slowest;
  const auto collect = [&](std::span<const std::size_t> drawn) -> std::optional<double> {
    const Estimate estimate = best_of(table, drawn);
    spreads.push_back(estimate.spread);
    by_mean.push_back(estimate.by_mean);
    by_slowest.push_back(estimate.by_slowest);
    return 0.0;
  };
  if (!bootstrap(table.num_bursts, options.num_bootstrap, options.seed + stream, collect))
    return {};
  return {percentile_interval(spreads), percentile_interval(by_mean),
          percentile_interval(by_slowest)};
}

// (V - R*T)/K over the bursts of one K that waited: the paper's law, equal shares.
template <typename Time>
std::optional<CapacityEstimate> equal_shares(std::span<const Burst> bursts, const LinkParams& link,
                                             const FitOptions& options, const Time& time) {
  std::vector<double> capacities;
  for (const Burst& burst : bursts) {
    const double issue_ns = time(*burst.point);
    if (!burst.waits || !measured(issue_ns)) continue;
    capacities.push_back(std::max(
        0.0, burst.point->bytes - link.drain_rate * issue_ns / burst.point->num_producers));
  }
  const auto median_of = [&](std::span<const std::size_t> drawn) -> std::optional<double> {
    std::vector<double> values;
    for (const std::size_t idx : drawn) values.push_back(capacities[idx]);
    return median(std::move(values));
  };
  const auto interval =
      bootstrap(capacities.size(), options.num_bootstrap, options.seed + 7, median_of);
  if (!interval) return std::nullopt;
  return CapacityEstimate{median(capacities), *interval};
}

bool any_waits(std::span<const Burst> bursts) {
  return std::any_of(bursts.begin(), bursts.end(), [](const Burst& burst) { return burst.waits; });
}

struct StageFit {
  Estimate estimate;
  Intervals intervals;
  bool has_slowest = false;
};

// q and s of some bursts: a coarse grid over everything possible, then a fine one around its best.
StageFit fit_stage(std::span<const Burst> bursts, const LinkParams& link,
                   const FitOptions& options) {
  StageFit fit;
  double largest = 0;
  for (const Burst& burst : bursts) {
    largest = std::max(largest, burst.point->bytes);
    fit.has_slowest = fit.has_slowest || (burst.waits && measured(burst.point->slowest_ns));
  }
  const std::vector<double> no_spread{0};
  const auto everything = all_of(bursts.size());
  const Estimate coarse =
      best_of(judge(bursts, link, fit.has_slowest ? linear(0, 0.9, 0.1) : no_spread,
                    geometric(largest / 1000, largest, 47)),
              everything);
  const auto spreads = fit.has_slowest ? linear(std::max(0.0, coarse.spread - 0.12),
                                                std::min(0.94, coarse.spread + 0.12), 0.02)
                                       : no_spread;
  const double other = fit.has_slowest ? coarse.by_slowest : coarse.by_mean;
  const ErrorTable table = judge(
      bursts, link, spreads,
      geometric(std::min(coarse.by_mean, other) / 1.3, std::max(coarse.by_mean, other) * 1.3, 81));
  fit.estimate = best_of(table, everything);
  fit.intervals = intervals_of(table, options, 3);
  return fit;
}

CapacityAtK row_of(std::span<const Burst> bursts, const LinkParams& link, const StageFit& fit,
                   const FitOptions& options) {
  CapacityAtK row;
  row.num_points = static_cast<int>(bursts.size());
  if (fit.intervals.by_mean) {
    row.by_mean = CapacityEstimate{fit.estimate.by_mean, *fit.intervals.by_mean};
  }
  if (fit.intervals.by_slowest && fit.has_slowest) {
    row.by_slowest = CapacityEstimate{fit.estimate.by_slowest, *fit.intervals.by_slowest};
    row.share_spread = fit.estimate.spread;
  }
  row.by_mean_equal_shares =
      equal_shares(bursts, link, options, [](const Point& p) { return p.issue_ns; });
  row.by_slowest_equal_shares =
      equal_shares(bursts, link, options, [](const Point& p) { return p.slowest_ns; });
  return row;
}

void set_params(const StageFit& fit, KindFit& out) {
  out.params.capacity_mean_bytes = fit.estimate.by_mean;
  out.capacity_mean_interval = fit.intervals.by_mean;
  out.params.share_spread = fit.estimate.spread;
  if (!fit.has_slowest) return;
  out.params.capacity_slowest_bytes = fit.estimate.by_slowest;
  out.capacity_slowest_interval = fit.intervals.by_slowest;
  out.share_spread_interval = fit.intervals.spread;
}

// What did not wait still bounds the capacity from below: q >= B - (R/K)*T.
void explain_missing(std::span<const Burst> bursts, const LinkParams& link, KindFit& out) {
  std::string reason = "no isolated burst of enough producers to fill the link";
  const Point* largest = nullptr;
  double bound = 0;
  for (const Burst& burst : bursts) {
    const Point& point = *burst.point;
    const double held = point.bytes - link.drain_rate / point.num_producers * burst.t0_ns;
    if (!largest || held > bound) {
      largest = &point;
      bound = std::max(0.0, held);
    }
  }
  if (largest) {
    char text[160];
    std::snprintf(text, sizeof(text),
                  "no isolated burst exceeds the capacity; K=%d and %.6g KiB did not wait, so q is "
                  "at least %.4g KiB",
                  largest->num_producers, largest->bytes / kKib, bound / kKib);
    reason = text;
  }
  add_unidentified(out, "capacity_mean_bytes", reason);
  add_unidentified(out, "capacity_slowest_bytes", reason);
  add_unidentified(out, "share_spread", reason);
}

}  // namespace

void fit_capacity(std::span<const Point> points, const FitOptions& options, KindFit& out) {
  const std::vector<Burst> bursts = bursts_of(points, out.params);
  if (!any_waits(bursts)) {
    explain_missing(bursts, out.params, out);
    return;
  }
  int num_waiting_counts = 0;
  for (std::size_t begin = 0; begin < bursts.size();) {  // sorted by K
    const int num_producers = bursts[begin].point->num_producers;
    std::size_t end = begin;
    while (end < bursts.size() && bursts[end].point->num_producers == num_producers) ++end;
    const auto group = std::span(bursts).subspan(begin, end - begin);
    begin = end;
    CapacityAtK row;
    row.num_points = static_cast<int>(group.size());
    if (any_waits(group)) {
      ++num_waiting_counts;
      const StageFit fit = fit_stage(group, out.params, options);
      row = row_of(group, out.params, fit, options);
      set_params(fit, out);  // the last one stays: the most producers
    }
    row.num_producers = num_producers;
    out.capacity_at_k.push_back(row);
  }
  if (num_waiting_counts > 1) {
    out.capacity_all_k =
        row_of(bursts, out.params, fit_stage(bursts, out.params, options), options);
  }
  if (!out.params.capacity_slowest_bytes) {
    add_unidentified(out, "capacity_slowest_bytes", "no slowest producer's time in the samples");
    add_unidentified(out, "share_spread", "no slowest producer's time in the samples");
  }
}

}  // namespace xstage::model
