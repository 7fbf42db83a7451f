#include "model/points.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <tuple>

#include "model/robust.hpp"
#include "model/validate.hpp"
#include "xstage/error.hpp"
#include "xstage/fit.hpp"

namespace xstage::model {
namespace {

// Gaps within 1 % (or a few ns near zero) are one point when no nominal gap says so.
constexpr double kGapStep = 0.01;
constexpr double kGapFloorNs = 500;

void check_time(std::string_view name, double value, double low, std::size_t idx) {
  if (!measured(value)) return;
  check_range("sample " + std::to_string(idx) + ": " + std::string(name), value, low, kMaxTimeNs);
}

void check_sample(const Sample& sample, std::size_t idx) {
  const std::string place = "sample " + std::to_string(idx) + ": ";
  check_range(place + "producers", sample.num_producers, 1, kMaxProducers);
  check_range(place + "bytes", sample.bytes, kMinBytes, kMaxBytes);
  check_range(place + "directions", sample.num_directions, 1, 2);
  check_range(place + "issue_ns", sample.issue_ns, 0, kMaxTimeNs, true);
  check_time("gap_ns", sample.gap_ns, 0, idx);
  check_time("nominal_gap_ns", sample.nominal_gap_ns, 0, idx);
  check_time("period_ns", sample.period_ns, sample.issue_ns, idx);
  check_time("issue_p10_ns", sample.issue_p10_ns, 0, idx);
  check_time("issue_p90_ns", sample.issue_p90_ns, 0, idx);
  check_time("issue_slowest_ns", sample.issue_slowest_ns, 0, idx);
  check_time("accept_ns", sample.accept_ns, 0, idx);
  check_time("visible_ns", sample.visible_ns, 0, idx);
  check_time("visible_slowest_ns", sample.visible_slowest_ns, 0, idx);
  check_time("compute_gap_ns", sample.compute_gap_ns, 0, idx);
  if (sample.experiment == Experiment::periodic && !measured(sample.gap_ns) &&
      !measured(sample.period_ns)) {
    throw Error(ErrorCategory::usage,
                place + "a periodic sample needs gap_ns or period_ns; neither is measured");
  }
}

double gap_of(const Sample& sample) {
  if (sample.experiment == Experiment::isolated) return 0;
  return measured(sample.gap_ns) ? sample.gap_ns : sample.period_ns - sample.issue_ns;
}

double period_of(const Sample& sample) {
  return measured(sample.period_ns) ? sample.period_ns : sample.issue_ns + sample.gap_ns;
}

// Nominal gaps and gap classes cannot collide: the flag keeps them apart.
using Key = std::tuple<Experiment, StoreKind, int, int, double, bool, double, bool>;

Key key_of(const Sample& sample) {
  const bool nominal = sample.experiment == Experiment::periodic && measured(sample.nominal_gap_ns);
  double gap = 0;
  if (sample.experiment == Experiment::periodic) {
    gap = nominal ? sample.nominal_gap_ns
                  : std::floor(std::log((gap_of(sample) + kGapFloorNs) / kGapFloorNs) / kGapStep);
  }
  // A gap full of work is longer than the one that was asked for; an idle one is not.
  const bool computes = measured(sample.compute_gap_ns) && sample.compute_gap_ns > 0;
  return {sample.experiment,
          sample.kind,
          sample.num_directions,
          sample.num_producers,
          sample.bytes,
          nominal,
          gap,
          computes};
}

template <typename Value>
double median_of(std::span<const Sample> samples, std::span<const std::size_t> rows,
                 const Value& value) {
  if (rows.size() == 1) return value(samples[rows[0]]);
  std::vector<double> values;
  values.reserve(rows.size());
  for (const std::size_t row : rows) {
    const double found = value(samples[row]);
    if (measured(found)) values.push_back(found);
  }
  return median(std::move(values));
}

Point make_point(std::span<const Sample> samples, std::span<const std::size_t> rows) {
  const Sample& first = samples[rows[0]];
  Point point;
  point.experiment = first.experiment;
  point.kind = first.kind;
  point.num_producers = first.num_producers;
  point.num_directions = first.num_directions;
  point.bytes = first.bytes;
  point.issue_ns = median_of(samples, rows, [](const Sample& s) { return s.issue_ns; });
  point.slowest_ns = median_of(samples, rows, [](const Sample& s) { return s.issue_slowest_ns; });
  point.visible_ns = median_of(samples, rows, [](const Sample& s) {
    return measured(s.visible_slowest_ns) ? s.visible_slowest_ns : s.visible_ns;
  });
  if (first.experiment == Experiment::periodic) {
    point.gap_ns = median_of(samples, rows, gap_of);
    point.period_ns = median_of(samples, rows, period_of);
  }
  return point;
}

}  // namespace

std::vector<Point> collect_points(std::span<const Sample> samples) {
  std::vector<std::pair<Key, std::size_t>> order;
  order.reserve(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    check_sample(samples[i], i);
    order.emplace_back(key_of(samples[i]), i);
  }
  std::sort(order.begin(), order.end());
  std::vector<Point> points;
  std::vector<std::size_t> rows;
  for (std::size_t begin = 0; begin < order.size();) {
    rows.clear();
    std::size_t end = begin;
    for (; end < order.size() && order[end].first == order[begin].first; ++end) {
      rows.push_back(order[end].second);
    }
    points.push_back(make_point(samples, rows));
    begin = end;
  }
  return points;
}

double rough_drain_rate(std::span<const Point> points) {
  int most_producers = 0;
  for (const Point& point : points) {
    if (point.experiment == Experiment::periodic && point.num_directions == 1) {
      most_producers = std::max(most_producers, point.num_producers);
    }
  }
  std::vector<std::pair<double, const Point*>> tightest;  // by size, the point of smallest gap
  for (const Point& point : points) {
    if (point.experiment != Experiment::periodic || point.num_directions != 1 ||
        point.num_producers != most_producers) {
      continue;
    }
    if (tightest.empty() || tightest.back().first != point.bytes) {  // points are sorted by size
      tightest.emplace_back(point.bytes, &point);
    } else if (point.gap_ns < tightest.back().second->gap_ns) {
      tightest.back().second = &point;
    }
  }
  if (tightest.empty()) return 0;
  std::vector<double> rates;
  for (const auto& [bytes, point] : tightest) rates.push_back(point->volume() / point->period_ns);
  return median(std::move(rates));
}

bool is_held_out(const Point& point, double drain_rate) noexcept {
  if (point.experiment == Experiment::isolated) {
    return is_held_out_isolated(point.num_producers, point.bytes);
  }
  return drain_rate > 0 && is_held_out_periodic(point.gap_ns * drain_rate / point.volume());
}

std::string describe(const Point& point) {
  char text[96];
  if (point.experiment == Experiment::isolated) {
    std::snprintf(text, sizeof(text), "isolated, K=%d, %.6g KiB", point.num_producers,
                  point.bytes / kKib);
  } else {
    std::snprintf(text, sizeof(text), "periodic, K=%d, %.6g KiB, gap %.4g us%s",
                  point.num_producers, point.bytes / kKib, point.gap_ns / 1000,
                  point.num_directions == 2 ? ", both directions" : "");
  }
  return text;
}

}  // namespace xstage::model

namespace xstage {

double rough_drain_rate(std::span<const Sample> samples, StoreKind kind) {
  std::vector<Sample> chosen;
  std::copy_if(samples.begin(), samples.end(), std::back_inserter(chosen),
               [&](const Sample& sample) { return sample.kind == kind; });
  return model::rough_drain_rate(model::collect_points(chosen));
}

bool is_held_out(const Sample& sample, double drain_rate) noexcept {
  if (sample.experiment == Experiment::isolated) {
    return is_held_out_isolated(sample.num_producers, sample.bytes);
  }
  return drain_rate > 0 && is_held_out_periodic(model::gap_of(sample) * drain_rate /
                                                (sample.num_producers * sample.bytes));
}

}  // namespace xstage
