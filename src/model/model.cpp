// The closed form, the transient and the isolated burst. Formulas and their origin: docs/model.md.
#include "xstage/model.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/fluid_share.hpp"
#include "model/validate.hpp"
#include "xstage/error.hpp"

namespace xstage {
namespace {

// Relative slack below which a wait is rounding, not waiting.
constexpr double kSlack = 1e-9;
// More bursts than any start-up transient of a pace that is not sustained needs; beyond it the
// backlog grows so slowly that it is called steady.
constexpr long kMaxTransientBursts = 1'000'000'000;

double curve_at(const LinkParams& link, double bytes) {
  const auto& curve = link.issue_curve;
  if (bytes <= curve.front().bytes) return curve.front().issue_ns;
  if (bytes >= curve.back().bytes) {
    return curve.back().issue_ns + (bytes - curve.back().bytes) / link.injection_rate;
  }
  const auto above =
      std::upper_bound(curve.begin(), curve.end(), bytes,
                       [](double value, const IssuePoint& point) { return value < point.bytes; });
  const IssuePoint& high = *above;
  const IssuePoint& low = *(above - 1);
  const double part = (bytes - low.bytes) / (high.bytes - low.bytes);
  return low.issue_ns + part * (high.issue_ns - low.issue_ns);
}

// Largest B with K*B/R <= T0(B) + G: the first crossing of a straight line with the issue curve.
double max_free_bytes(const LinkParams& link, double ns_per_byte, double gap_ns) {
  const auto& curve = link.issue_curve;
  const auto excess = [&](const IssuePoint& point) {
    return ns_per_byte * point.bytes - point.issue_ns - gap_ns;
  };
  if (excess(curve.front()) > 0) return (curve.front().issue_ns + gap_ns) / ns_per_byte;
  for (std::size_t i = 1; i < curve.size(); ++i) {
    const double before = excess(curve[i - 1]);
    const double after = excess(curve[i]);
    if (after > 0) {
      return curve[i - 1].bytes +
             (curve[i].bytes - curve[i - 1].bytes) * -before / (after - before);
    }
  }
  const double slope = ns_per_byte - 1.0 / link.injection_rate;
  if (slope <= kSlack * ns_per_byte) return std::numeric_limits<double>::infinity();
  return curve.back().bytes - excess(curve.back()) / slope;
}

std::optional<double> any_capacity(const Stage& stage) {
  return stage.capacity_mean_bytes ? stage.capacity_mean_bytes : stage.capacity_slowest_bytes;
}

std::optional<double> mix(const std::optional<double>& low, const std::optional<double>& high,
                          double part) {
  if (!low || !high) return low ? low : high;
  if (*low == *high || part == 0) return low;
  if (*low <= 0 || *high <= 0 || std::isinf(*low) || std::isinf(*high)) {
    return part < 0.5 ? low : high;  // no power of K goes through these
  }
  return *low * std::pow(*high / *low, part);
}

// Mean of times that are at least t0; exactly t0 if nobody waits.
double mean_of(const std::vector<double>& times, double t0_ns) {
  double waiting = 0;
  for (const double time : times) waiting += time - t0_ns;
  return t0_ns + waiting / static_cast<double>(times.size());
}

// Fewer producers than any that showed a capacity: the power of K between the two fewest goes on,
// within what can be, from a stage of the SM (0) to one shared by all (-1).
void extrapolate(const Stage& fewest, const Stage& next, int num_producers, Stage& out) {
  const double step = std::log(static_cast<double>(next.num_producers) / fewest.num_producers);
  const double distance = std::log(static_cast<double>(num_producers) / fewest.num_producers);
  const auto go_on = [&](std::optional<double>& value, const std::optional<double>& low,
                         const std::optional<double>& high) {
    if (!low || !high || *low <= 0 || *high <= 0 || std::isinf(*low) || std::isinf(*high)) return;
    const double power = std::clamp(std::log(*high / *low) / step, -1.0, 0.0);
    value = *low * std::exp(power * distance);
  };
  go_on(out.capacity_mean_bytes, fewest.capacity_mean_bytes, next.capacity_mean_bytes);
  go_on(out.capacity_slowest_bytes, fewest.capacity_slowest_bytes, next.capacity_slowest_bytes);
}

// Index of the first burst of the lockstep recurrence that waits. Before it T_n = T0, so the
// backlog grows by the same amount every burst and the index is a division, not a loop.
std::optional<long> first_stalled_burst(double volume, double rate, double total_capacity,
                                        double t0_ns, double gap_ns) {
  const double room = total_capacity + rate * t0_ns - volume;  // backlog at which a burst waits
  const double limit = room + kSlack * volume;
  if (limit < 0) return 0;
  const double growth = volume - rate * (t0_ns + gap_ns);  // per burst, while none waits
  if (growth <= kSlack * volume) return std::nullopt;
  const double bursts = std::floor(limit / growth) + 1;
  if (!(bursts < static_cast<double>(kMaxTransientBursts))) return std::nullopt;
  return static_cast<long>(bursts);
}

void predict_isolated(const LinkParams& link, const Burst& burst, Prediction& out) {
  const double rate = effective_drain_rate(link, burst.num_producers);
  const double volume = burst.num_producers * burst.bytes;
  const Stage stage = stage_of(link, burst.num_producers);
  const model::FluidShare share(burst.num_producers, link.drain_rate, link.injection_rate,
                                stage.share_spread);
  std::vector<double> times;
  if (stage.capacity_mean_bytes) {
    share.issue_times(burst.bytes, *stage.capacity_mean_bytes, out.t0_ns, times);
    out.isolated_issue_ns = mean_of(times, out.t0_ns);
  }
  if (stage.capacity_slowest_bytes) {
    share.issue_times(burst.bytes, *stage.capacity_slowest_bytes, out.t0_ns, times);
    out.isolated_issue_slowest_ns = times.back();
  }
  if (link.visible_latency_ns) {
    out.isolated_visible_ns = std::max(out.t0_ns, volume / rate) + *link.visible_latency_ns;
  }
  const auto capacity =
      stage.capacity_slowest_bytes ? stage.capacity_slowest_bytes : stage.capacity_mean_bytes;
  if (!capacity) return;
  const auto worst =
      out.isolated_issue_slowest_ns ? out.isolated_issue_slowest_ns : out.isolated_issue_ns;
  if (*worst > out.t0_ns * (1 + kSlack)) {
    out.first_stalled_burst_idx = 0;
    return;
  }
  out.first_stalled_burst_idx =
      first_stalled_burst(volume, rate, burst.num_producers * *capacity, out.t0_ns, burst.gap_ns);
}

}  // namespace

double issue_time_empty(const LinkParams& link, double bytes) {
  model::check_curve(link);
  model::check_bytes(bytes);
  return curve_at(link, bytes);
}

double effective_drain_rate(const LinkParams& link, int num_producers) {
  model::check_range("drain rate R", link.drain_rate, 0, model::kMaxRate, true);
  model::check_range("injection rate r", link.injection_rate, 0, model::kMaxRate, true);
  model::check_producers(num_producers);
  return std::min(link.drain_rate, num_producers * link.injection_rate);
}

Stage stage_of(const LinkParams& link, int num_producers) {
  model::check_producers(num_producers);
  if (link.stages.empty()) {
    return {num_producers, link.capacity_mean_bytes, link.capacity_slowest_bytes,
            link.share_spread};
  }
  const auto above = std::find_if(link.stages.begin(), link.stages.end(), [&](const Stage& stage) {
    return stage.num_producers >= num_producers;
  });
  Stage found;
  if (above == link.stages.begin()) {
    found = link.stages.front();
    if (link.stages.size() > 1) extrapolate(link.stages[0], link.stages[1], num_producers, found);
  } else if (above == link.stages.end()) {
    found = link.stages.back();
  } else {
    const Stage& low = *(above - 1);
    const double part = std::log(static_cast<double>(num_producers) / low.num_producers) /
                        std::log(static_cast<double>(above->num_producers) / low.num_producers);
    found.capacity_mean_bytes = mix(low.capacity_mean_bytes, above->capacity_mean_bytes, part);
    found.capacity_slowest_bytes =
        mix(low.capacity_slowest_bytes, above->capacity_slowest_bytes, part);
    found.share_spread = low.share_spread + part * (above->share_spread - low.share_spread);
  }
  found.num_producers = num_producers;
  return found;
}

Prediction predict(const LinkParams& link, const Burst& burst) {
  model::check_link(link);
  model::check_burst(burst);
  const double rate = effective_drain_rate(link, burst.num_producers);
  const double volume = burst.num_producers * burst.bytes;
  const double drain_ns = volume / rate;
  const double latency = link.visible_latency_ns.value_or(0);

  Prediction out;
  out.t0_ns = curve_at(link, burst.bytes);
  out.issue_ns = std::max(out.t0_ns, drain_ns - burst.gap_ns);
  out.wait_ns = out.issue_ns - out.t0_ns;
  out.period_ns = out.issue_ns + burst.gap_ns;
  out.onset_gap_ns = std::max(0.0, drain_ns - out.t0_ns);
  out.demand = volume / (out.t0_ns + burst.gap_ns);
  out.regime = out.wait_ns > kSlack * out.t0_ns ? Regime::drain_limited : Regime::free;
  out.max_free_bytes = max_free_bytes(link, burst.num_producers / rate, burst.gap_ns);
  predict_isolated(link, burst, out);

  const double coupled_ns = std::max(out.t0_ns, drain_ns) + latency;
  out.coupled = {coupled_ns, coupled_ns + burst.gap_ns};
  out.unbounded = {out.t0_ns, out.t0_ns + burst.gap_ns};
  const double alpha_beta_ns = link.issue_curve.front().issue_ns + latency + drain_ns;
  out.alpha_beta = {alpha_beta_ns, alpha_beta_ns + burst.gap_ns};
  return out;
}

std::vector<double> predict_transient(const LinkParams& link, const Burst& burst, int num_bursts) {
  model::check_link(link);
  model::check_burst(burst);
  model::check_range("bursts", num_bursts, 1, 1e8);
  const auto capacity = any_capacity(stage_of(link, burst.num_producers));
  if (!capacity) {
    throw Error(ErrorCategory::usage,
                "a transient needs a capacity, and this link's is unknown; measure an isolated "
                "burst that waits, or set an infinite capacity for an unbounded stage");
  }
  const double rate = effective_drain_rate(link, burst.num_producers);
  const double volume = burst.num_producers * burst.bytes;
  const double total_capacity = burst.num_producers * *capacity;
  const double t0 = curve_at(link, burst.bytes);

  std::vector<double> issue_ns;
  issue_ns.reserve(static_cast<std::size_t>(num_bursts));
  double backlog = 0;
  for (int i = 0; i < num_bursts; ++i) {
    const double time = std::max(t0, (backlog + volume - total_capacity) / rate);
    issue_ns.push_back(time);
    backlog = std::max(0.0, backlog + volume - rate * (time + burst.gap_ns));
  }
  return issue_ns;
}

std::vector<double> predict_isolated_producers(const LinkParams& link, int num_producers,
                                               double bytes) {
  model::check_link(link);
  model::check_producers(num_producers);
  model::check_bytes(bytes);
  const Stage stage = stage_of(link, num_producers);
  const auto capacity = any_capacity(stage);
  if (!capacity) {
    throw Error(ErrorCategory::usage,
                "an isolated burst needs a capacity, and this link's is unknown; measure an "
                "isolated burst that waits");
  }
  std::vector<double> times;
  model::FluidShare(num_producers, link.drain_rate, link.injection_rate, stage.share_spread)
      .issue_times(bytes, *capacity, curve_at(link, bytes), times);
  return times;
}

}  // namespace xstage
