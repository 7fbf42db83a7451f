// Charts of plans for the report: what the exchange adds against the number of ranks, and a strip
// of a simulated timeline.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "io/report.hpp"
#include "xstage/plan.hpp"

namespace xstage::io {
namespace {

constexpr int kNumColors = 6;

Json series(const std::string& label, const char* style, int color, Json data) {
  return {{"label", label}, {"style", style}, {"color", color}, {"data", std::move(data)}};
}

double in_us(double ns) {
  return std::round(ns / 10) / 100;
}

}  // namespace

Json plan_ranks_chart(const std::vector<Plan>& plans) {
  // Candidates that every plan has, in the order of the first.
  Json list = Json::array();
  int color = 0;
  for (const Candidate& first : plans.front().candidates) {
    Json data = Json::array();
    for (const Plan& plan : plans) {
      for (const Candidate& c : plan.candidates) {
        if (c.name == first.name)
          data.push_back({plan.num_ranks, in_us(c.total_ns - plan.compute_ns)});
      }
    }
    if (data.size() != plans.size()) continue;
    list.push_back(series(first.name, first.runnable ? "line" : "dashed", color, data));
    color = (color + 1) % kNumColors;
  }
  return {{"title", plans.front().workload},
          {"subtitle", "time over the best kernel without exchange"},
          {"x", "GPUs"},
          {"y", "added time, us"},
          {"x_step", 1},
          {"series", list}};
}

Json timeline_chart(const Timeline& timeline, int num_sms) {
  constexpr struct {
    SpanKind kind;
    int color;
    double offset;  // below the line of the main role
  } kRows[] = {{SpanKind::compute, 0, 0},
               {SpanKind::epilogue, 4, 0},
               {SpanKind::wait_send, 1, 0},
               {SpanKind::wait_load, 2, 0},
               {SpanKind::issue, 3, -0.35}};
  const Json gap = {nullptr, nullptr};
  Json list = Json::array();
  for (const auto& row : kRows) {
    Json data = Json::array();
    for (const Span& span : timeline.spans) {
      if (span.rank != 0 || span.sm >= num_sms || span.kind != row.kind) continue;
      const double y = span.sm + 1 + row.offset;
      data.push_back({in_us(span.start_ns), y});
      data.push_back({in_us(span.end_ns), y});
      data.push_back(gap);
    }
    if (!data.empty())
      list.push_back(series(std::string(to_string(row.kind)), "strip", row.color, data));
  }
  return {{"title", timeline.name},
          {"subtitle", "simulated, the first SMs of rank 0; sends below each"},
          {"x", "us"},
          {"y", "SM"},
          {"x_max", nullptr},
          {"series", list}};
}

}  // namespace xstage::io
