#include "model/validate.hpp"

#include <cstdio>
#include <limits>

#include "xstage/error.hpp"
#include "xstage/samples.hpp"

namespace xstage::model {
namespace {

void check_optional(std::string_view name, const std::optional<double>& value, double high) {
  if (value) check_range(name, *value, 0, high);
}

void check_capacity(std::string_view name, const std::optional<double>& value) {
  if (!value || *value == std::numeric_limits<double>::infinity()) return;
  check_range(name, *value, 0, kMaxBytes);
}

}  // namespace

std::string to_text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

void check_range(std::string_view name, double value, double low, double high, bool above_low) {
  const bool legal = (above_low ? value > low : value >= low) && value <= high;
  if (legal) return;
  throw Error(ErrorCategory::usage, std::string(name) + " " + to_text(value) + ": legal " +
                                        (above_low ? "above " : "") + to_text(low) + " .. " +
                                        to_text(high));
}

void check_producers(int num_producers) {
  check_range("producers", num_producers, 1, kMaxProducers);
}

void check_bytes(double bytes) {
  check_range("bytes per producer", bytes, kMinBytes, kMaxBytes);
}

void check_curve(const LinkParams& link) {
  if (link.issue_curve.empty()) {
    throw Error(ErrorCategory::usage,
                "issue curve of " + std::string(to_string(link.kind)) +
                    ": no point; legal: at least one (bytes, issue time into an empty stage)");
  }
  double previous = 0;
  for (const IssuePoint& point : link.issue_curve) {
    check_range("issue curve: bytes", point.bytes, previous, kMaxBytes, true);
    check_range("issue curve: issue time", point.issue_ns, 0, kMaxTimeNs, true);
    previous = point.bytes;
  }
  check_range("injection rate r", link.injection_rate, 0, kMaxRate, true);
}

void check_link(const LinkParams& link) {
  check_curve(link);
  check_range("drain rate R", link.drain_rate, 0, kMaxRate, true);
  check_capacity("capacity by the mean", link.capacity_mean_bytes);
  check_capacity("capacity by the slowest", link.capacity_slowest_bytes);
  check_range("share spread", link.share_spread, 0, kMaxSpread);
  int previous = 0;
  for (const Stage& stage : link.stages) {
    check_range("stage: producers", stage.num_producers, previous + 1, kMaxProducers);
    check_capacity("stage: capacity by the mean", stage.capacity_mean_bytes);
    check_capacity("stage: capacity by the slowest", stage.capacity_slowest_bytes);
    check_range("stage: share spread", stage.share_spread, 0, kMaxSpread);
    previous = stage.num_producers;
  }
  check_optional("visibility latency", link.visible_latency_ns, kMaxTimeNs);
  check_range("both-directions factor", link.both_directions_factor, 0, 2, true);
}

void check_burst(const Burst& burst) {
  check_producers(burst.num_producers);
  check_bytes(burst.bytes);
  check_range("gap", burst.gap_ns, 0, kMaxTimeNs);
}

}  // namespace xstage::model
