// What the charts of the report show: measured points, the model's lines, what simpler views say.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "io/report.hpp"
#include "io/text.hpp"
#include "xstage/fit.hpp"
#include "xstage/model.hpp"

namespace xstage::io {
namespace {

constexpr double kKibi = 1024;
constexpr int kNumLinePoints = 120;

struct Series {
  std::string label;
  const char* style;  // line, dashed, point, ring (held out), cross, range
  int color;          // index into the palette; -1: grey
  std::vector<std::pair<double, double>> points;
};

double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double scale = std::pow(10, 4 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

Json to_json(const Series& series) {
  Json points = Json::array();
  for (const auto& [x, y] : series.points) points.push_back({rounded(x), rounded(y)});
  return {{"label", series.label},
          {"style", series.style},
          {"color", series.color},
          {"data", std::move(points)}};
}

Json make_chart(std::string title, std::string subtitle, const char* x, const char* y,
                const std::vector<Series>& series) {
  Json json = {{"title", std::move(title)}, {"subtitle", std::move(subtitle)}, {"x", x}, {"y", y}};
  json["series"] = Json::array();
  for (const auto& entry : series) {
    if (!entry.points.empty()) json["series"].push_back(to_json(entry));
  }
  return json;
}

double median(std::vector<double> values) {
  if (values.empty()) return kUnmeasured;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// One point of a sweep; rounds of it are merged by their medians.
struct Point {
  Sample sample;
  std::vector<double> gap, issue, period, slowest;

  void add(const Sample& s) {
    if (issue.empty()) sample = s;
    for (auto [values, value] :
         {std::pair{&gap, s.gap_ns}, std::pair{&issue, s.issue_ns}, std::pair{&period, s.period_ns},
          std::pair{&slowest, s.issue_slowest_ns}}) {
      if (measured(value)) values->push_back(value);
    }
  }
  void merge() {
    sample.gap_ns = median(gap);
    sample.issue_ns = median(issue);
    sample.period_ns = median(period);
    sample.issue_slowest_ns = median(slowest);
  }
};

std::vector<Sample> merged(const std::vector<Sample>& samples, StoreKind kind, Experiment which) {
  std::map<std::tuple<int, double, double, bool>, Point> points;
  for (const auto& sample : samples) {
    if (sample.kind != kind || sample.experiment != which || sample.num_directions != 1) continue;
    double gap = 0;
    if (which == Experiment::periodic) {
      gap = measured(sample.nominal_gap_ns) ? sample.nominal_gap_ns : std::round(sample.gap_ns);
    }
    const bool computes = measured(sample.compute_gap_ns) && sample.compute_gap_ns > 0;
    points[{sample.num_producers, sample.bytes, gap, computes}].add(sample);
  }
  std::vector<Sample> result;
  for (auto& [key, point] : points) {
    point.merge();
    if (measured(point.sample.issue_ns)) result.push_back(point.sample);
  }
  return result;
}

// At most `count` of the values, spread over their range, the last one always.
template <typename T>
std::vector<T> spread(const std::set<T>& values, std::size_t count) {
  std::vector<T> all(values.begin(), values.end());
  if (all.size() <= count) return all;
  std::vector<T> some;
  for (std::size_t i = 0; i < count; ++i) some.push_back(all[i * (all.size() - 1) / (count - 1)]);
  return some;
}

Series line(std::string label, const char* style, int color) {
  return {std::move(label), style, color, {}};
}

}  // namespace

Json steady_state_chart(const KindFit& kind, const std::vector<Sample>& samples, int num_sms) {
  const LinkParams& params = kind.params;
  const auto points = merged(samples, params.kind, Experiment::periodic);
  const double rough_rate = rough_drain_rate(samples, params.kind);
  int num_producers = num_sms > 0 ? num_sms : 1;
  std::set<double> sizes;
  double max_gap = 0;
  if (!points.empty()) num_producers = 0;
  for (const auto& p : points) num_producers = std::max(num_producers, p.num_producers);
  for (const auto& p : points) {
    if (p.num_producers != num_producers) continue;
    sizes.insert(p.bytes);
    max_gap = std::max(max_gap, p.gap_ns);
  }
  if (sizes.empty()) sizes = {4 * kKibi, 16 * kKibi, 32 * kKibi};
  const auto shown = spread(sizes, 4);
  const double largest = shown.back();
  if (max_gap <= 0) max_gap = 1.5 * num_producers * largest / params.drain_rate;

  std::vector<Series> series;
  auto coupled = line("if issue waited for arrival", "dashed", -1);
  auto unbounded = line("if it never waited", "dotted", -1);
  int color = 0;
  for (const double bytes : shown) {
    auto model = line(format_bytes(bytes), "line", color);
    auto fitted = line(format_bytes(bytes) + " measured", "point", color);
    auto held_out = line(format_bytes(bytes) + " measured, held out", "ring", color);
    for (int i = 0; i <= kNumLinePoints; ++i) {
      const double gap = max_gap * i / kNumLinePoints;
      const Prediction p = predict(params, {num_producers, bytes, gap});
      model.points.emplace_back(gap / 1e3, p.issue_ns / 1e3);
      if (bytes != largest) continue;
      coupled.points.emplace_back(gap / 1e3, p.coupled.issue_ns / 1e3);
      unbounded.points.emplace_back(gap / 1e3, p.unbounded.issue_ns / 1e3);
    }
    for (const auto& p : points) {
      if (p.num_producers != num_producers || p.bytes != bytes) continue;
      auto& target = is_held_out(p, rough_rate) ? held_out : fitted;
      target.points.emplace_back(p.gap_ns / 1e3, p.issue_ns / 1e3);
    }
    series.insert(series.end(), {std::move(model), std::move(fitted), std::move(held_out)});
    ++color;
  }
  series.push_back(std::move(coupled));
  series.push_back(std::move(unbounded));
  return make_chart(std::string(to_string(params.kind)),
                    fmt::format("{} SMs; a colour a burst size; grey: simpler views, at {}",
                                num_producers, format_bytes(largest)),
                    "gap between bursts, us", "time that issue is held, us", series);
}

Json isolated_chart(const KindFit& kind, const std::vector<Sample>& samples, int num_sms) {
  const LinkParams& params = kind.params;
  const auto points = merged(samples, params.kind, Experiment::isolated);
  const double rough_rate = rough_drain_rate(samples, params.kind);
  std::set<int> counts;
  double max_bytes = 0;
  for (const auto& p : points) {
    max_bytes = std::max(max_bytes, p.bytes);
    if (effective_drain_rate(params, p.num_producers) >= params.drain_rate * 0.999) {
      counts.insert(p.num_producers);
    }
  }
  if (counts.empty()) counts = {num_sms > 0 ? num_sms : 1};
  if (max_bytes <= 0) max_bytes = 96 * kKibi;
  const auto shown = spread(counts, 3);
  const int most = shown.back();

  std::vector<Series> series;
  auto slowest_model = line(fmt::format("{} SMs, slowest", most), "dashed", 3);
  auto slowest = line(fmt::format("{} SMs, slowest, measured", most), "cross", 3);
  auto drained = line("if issue waited for the drain", "dotted", -1);
  int color = 0;
  for (const int count : shown) {
    auto model = line(fmt::format("{} SMs, mean", count), "line", color);
    auto fitted = line(fmt::format("{} SMs, mean, measured", count), "point", color);
    auto held_out = line(fmt::format("{} SMs, mean, held out", count), "ring", color);
    for (int i = 1; i <= kNumLinePoints; ++i) {
      const double bytes = max_bytes * i / kNumLinePoints;
      const Prediction p = predict(params, {count, bytes, 0});
      const double kib = bytes / kKibi;
      if (p.isolated_issue_ns) model.points.emplace_back(kib, *p.isolated_issue_ns / 1e3);
      if (count != most) continue;
      if (p.isolated_issue_slowest_ns) {
        slowest_model.points.emplace_back(kib, *p.isolated_issue_slowest_ns / 1e3);
      }
      drained.points.emplace_back(kib, count * bytes / params.drain_rate / 1e3);
    }
    for (const auto& p : points) {
      if (p.num_producers != count) continue;
      auto& target = is_held_out(p, rough_rate) ? held_out : fitted;
      target.points.emplace_back(p.bytes / kKibi, p.issue_ns / 1e3);
      if (count == most && measured(p.issue_slowest_ns)) {
        slowest.points.emplace_back(p.bytes / kKibi, p.issue_slowest_ns / 1e3);
      }
    }
    series.insert(series.end(), {std::move(model), std::move(fitted), std::move(held_out)});
    ++color;
  }
  series.insert(series.end(), {std::move(slowest_model), std::move(slowest), std::move(drained)});
  Json chart = make_chart(std::string(to_string(params.kind)),
                          kind.params.capacity_mean_bytes
                              ? "all producers start at one instant on an idle link"
                              : "no line: these samples cannot say what the stage holds",
                          "bytes of each producer, KiB", "time that issue is held, us", series);
  if (max_bytes >= 64 * kKibi) chart["x_step"] = 16;
  chart["x_max"] = max_bytes / kKibi;
  return chart;
}

Json capacity_chart(const KindFit& kind) {
  Json json = {{"title", to_string(kind.params.kind)},
               {"subtitle", "whiskers: 95 % intervals; both axes logarithmic"},
               {"x", "SMs that store at once"},
               {"y", "capacity of one SM, KiB"}};
  Json mean = {{"label", "by the mean producer"}, {"color", 0}};
  Json slowest = {{"label", "by the slowest producer"}, {"color", 3}};
  double low = 8;
  double high = 64;
  const auto put = [&](Json& series, int count, const std::optional<CapacityEstimate>& q) {
    if (!q) return;
    series["data"].push_back({count, rounded(q->bytes / kKibi)});
    series["range"].push_back(
        {rounded(q->interval.low / kKibi), rounded(q->interval.high / kKibi)});
    low = std::min(low, std::max(q->interval.low / kKibi, 1.0));
    high = std::max(high, q->interval.high / kKibi);
  };
  std::optional<std::pair<int, double>> all_together;  // the count with most SMs, and its q
  json["counts"] = Json::array();
  for (const auto& row : kind.capacity_at_k) {
    json["counts"].push_back(row.num_producers);
    put(mean, row.num_producers, row.by_mean);
    put(slowest, row.num_producers, row.by_slowest);
    if (row.by_mean) all_together = {row.num_producers, row.by_mean->bytes / kKibi};
  }
  json["shared"] = Json::array();
  if (all_together) {
    for (const auto& row : kind.capacity_at_k) {
      const double share = all_together->second * all_together->first / row.num_producers;
      json["shared"].push_back({row.num_producers, rounded(share)});
      high = std::max(high, share);
    }
  }
  json["min"] = std::exp2(std::floor(std::log2(low)));
  json["max"] = std::exp2(std::ceil(std::log2(high)));
  json["series"] = Json::array();
  for (auto* series : {&mean, &slowest}) {
    if (series->contains("data")) json["series"].push_back(std::move(*series));
  }
  return json;
}

Json error_chart(const std::vector<KindFit>& kinds) {
  Json json = {{"title", "held-out points"},
               {"subtitle", "solid: median, pale: 95th percentile; logarithmic"},
               {"x", "error, % of the period"}};
  json["labels"] = {"burst-gap", "unbounded", "coupled", "alpha-beta"};
  json["kinds"] = Json::array();
  for (const auto& kind : kinds) {
    if (!kind.held_out || kind.held_out->burst_gap.num_points == 0) continue;
    const HeldOut& h = *kind.held_out;
    Json median_values = Json::array();
    Json p95_values = Json::array();
    for (const auto* errors : {&h.burst_gap, &h.unbounded, &h.coupled, &h.alpha_beta}) {
      median_values.push_back(rounded(100 * errors->median));
      p95_values.push_back(rounded(100 * errors->p95));
    }
    json["kinds"].push_back({{"label", to_string(kind.params.kind)},
                             {"median", std::move(median_values)},
                             {"p95", std::move(p95_values)}});
  }
  return json;
}

}  // namespace xstage::io
