#include "cli/fit_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/text.hpp"

namespace xstage::cli {
namespace {

using io::format_number;
using io::TextTable;
constexpr auto kLeft = TextTable::Align::left;
constexpr double kKibi = 1024;
// The burst at which T0 is shown: an output tile of an attention kernel.
constexpr double kTileBytes = 32 * kKibi;

// "372 [371,373]", "372" without an interval.
std::string with_interval(double value, const std::optional<Interval>& interval, double unit) {
  std::string text = format_number(value / unit);
  if (!interval || !std::isfinite(value)) return text;
  return text + fmt::format(" [{},{}]", format_number(interval->low / unit),
                            format_number(interval->high / unit));
}

std::string capacity(const std::optional<double>& bytes, const std::optional<Interval>& interval) {
  return bytes ? with_interval(*bytes, interval, kKibi) : "?";
}

std::string estimate(const std::optional<CapacityEstimate>& value) {
  return value ? with_interval(value->bytes, value->interval, kKibi) : "-";
}

std::string percent_digits(double fraction) {
  if (!std::isfinite(fraction)) return "-";
  const double percent = 100 * fraction;
  return fmt::format("{:.{}f}", percent, percent < 0.995 ? 2 : percent < 9.95 ? 1 : 0);
}

}  // namespace

std::string median_and_p95(const ErrorSummary& errors) {
  if (errors.num_points == 0) return "-";
  return fmt::format("{} / {}", percent_digits(errors.median), percent_digits(errors.p95));
}

std::string params_table(const std::vector<KindFit>& kinds) {
  TextTable table({"kind", "R GB/s", "r", "q mean KiB", "q slowest KiB", "spread", "T0 32K",
                   "visible", "2-way"},
                  {kLeft});
  for (const auto& fit : kinds) {
    const LinkParams& p = fit.params;
    table.add(
        {std::string(to_string(p.kind)), with_interval(p.drain_rate, fit.drain_rate_interval, 1),
         format_number(p.injection_rate),
         capacity(p.capacity_mean_bytes, fit.capacity_mean_interval),
         capacity(p.capacity_slowest_bytes, fit.capacity_slowest_interval),
         fmt::format("{:.2f}", p.share_spread),
         p.issue_curve.empty() ? "?" : io::format_time(issue_time_empty(p, kTileBytes)),
         p.visible_latency_ns ? fmt::format("+{}", io::format_time(*p.visible_latency_ns)) : "?",
         fmt::format("{:.2f}", p.both_directions_factor)});
  }
  return table.str();
}

std::string held_out_table(const std::vector<KindFit>& kinds) {
  TextTable table({"kind", "points", "near G*", "burst-gap", "period", "coupled", "unbounded",
                   "alpha-beta", "worst"},
                  {kLeft});
  bool any = false;
  for (const auto& fit : kinds) {
    if (!fit.held_out || fit.held_out->burst_gap.num_points == 0) continue;
    any = true;
    const HeldOut& h = *fit.held_out;
    table.add({std::string(to_string(fit.params.kind)), fmt::format("{}", h.burst_gap.num_points),
               fmt::format("{:.0f} %", 100 * h.near_onset_share), median_and_p95(h.burst_gap),
               median_and_p95(h.period), median_and_p95(h.coupled), median_and_p95(h.unbounded),
               median_and_p95(h.alpha_beta), percent_digits(h.burst_gap.worst)});
  }
  return any ? "\nheld out: error in % of the period, median / p95\n" + table.str() : "";
}

std::string capacity_table(const std::vector<KindFit>& kinds) {
  TextTable table({"q in KiB", "SMs", "points", "by mean", "by slowest", "equal: mean", "slowest"},
                  {kLeft});
  bool any = false;
  for (const auto& fit : kinds) {
    for (const auto& row : fit.capacity_at_k) {
      if (!row.by_mean && !row.by_slowest && !row.by_mean_equal_shares) continue;
      any = true;
      table.add({std::string(to_string(fit.params.kind)), fmt::format("{}", row.num_producers),
                 fmt::format("{}", row.num_points), estimate(row.by_mean), estimate(row.by_slowest),
                 estimate(row.by_mean_equal_shares), estimate(row.by_slowest_equal_shares)});
    }
  }
  return any ? table.str() : "";
}

std::string unidentified_lines(const std::vector<KindFit>& kinds) {
  std::string text;
  for (const auto& fit : kinds) {
    for (const auto& entry : fit.unidentified) {
      text += fmt::format("unknown: {} {}: {}\n", to_string(fit.params.kind), entry.quantity,
                          entry.reason);
    }
  }
  return text;
}

}  // namespace xstage::cli
