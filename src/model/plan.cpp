// The planner's frame: checks, the machine, the choice. The operators have files of their own.
#include "xstage/plan.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "model/plan_parts.hpp"
#include "xstage/error.hpp"

namespace xstage {
namespace planning {
namespace {

std::string printed(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// The kinds that the operators send with, in order of preference.
const KindFit& preferred_kind(const LinkProfile& link, const PlanOptions& options) {
  if (options.kind) return link.kind(*options.kind);
  for (const StoreKind kind : {StoreKind::tensor, StoreKind::bulk, StoreKind::register16}) {
    for (const KindFit& fit : link.kinds) {
      if (fit.params.kind == kind) return fit;
    }
  }
  throw Error(ErrorCategory::usage,
              "profile " + link.name +
                  " holds none of tensor, bulk, register16: nothing to send tiles with");
}

void require(const char* what, double value, double low, double high, const char* legal) {
  if (!(value >= low && value <= high)) {
    throw Error(ErrorCategory::usage,
                std::string(what) + " " + printed("%g", value) + ": legal " + legal);
  }
}

}  // namespace

std::string in_us(double ns) {
  const double us = ns / 1e3;
  return printed(us < 10 ? "%.2f us" : us < 100 ? "%.1f us" : "%.0f us", us);
}

std::string in_mb(double bytes) {
  return printed(bytes < 100e6 ? "%.1f MB" : "%.0f MB", bytes / 1e6);
}

std::string in_percent(double share) {
  return printed(share < 0.1 ? "%.1f %%" : "%.0f %%", 100 * share);
}

Setting make_setting(const LinkProfile& link, const TileCosts& costs, int num_ranks,
                     const PlanOptions& options, Plan& plan) {
  Setting setting;
  SimMachine& machine = setting.machine;
  machine.num_gpus = num_ranks;
  machine.num_sms = costs.num_sms;
  machine.link = preferred_kind(link, options).params;
  machine.both_directions = true;
  setting.link_name = options.drain_rate ? std::string() : link.name;
  machine.barrier_ns = costs.barrier_ns;
  if (options.drain_rate) {
    require("link rate", *options.drain_rate, 1e-3, 1e5, "0.001..100000 B/ns");
    machine.link.drain_rate = *options.drain_rate;
    plan.notes.emplace_back("what-if: the link drains " +
                            printed("%.4g GB/s", *options.drain_rate));
  }
  if (options.capacity_bytes) {
    require("capacity", *options.capacity_bytes, 64, 1e12, "64 B..1 TB per SM");
    machine.link.capacity_mean_bytes = *options.capacity_bytes;
    plan.notes.emplace_back("what-if: the stage takes " +
                            printed("%.1f KiB per SM", *options.capacity_bytes / 1024));
  }
  setting.can_simulate = machine.link.capacity_mean_bytes || machine.link.capacity_slowest_bytes;
  if (!setting.can_simulate) {
    plan.notes.emplace_back(
        "the profile has no stage capacity: closed forms only, stalls of bursts are not in them");
  }
  if (link.destination.type != Endpoint::Type::gpu) {
    plan.notes.emplace_back("profile " + link.name + " ends in " + link.destination.name +
                            ", not in a GPU: a stand-in for a slow link");
  }
  if (link.source.num_sms > 0 && link.source.num_sms != costs.num_sms) {
    plan.notes.emplace_back("tile costs are for " + std::to_string(costs.num_sms) +
                            " SMs, the link was measured with " +
                            std::to_string(link.source.num_sms));
  }
  return setting;
}

void choose(Plan& plan, double slack) {
  double fastest = std::numeric_limits<double>::infinity();
  for (const Candidate& c : plan.candidates) {
    if (c.runnable) fastest = std::min(fastest, c.total_ns);
  }
  std::string chosen;
  double chosen_ns = fastest;
  for (const Candidate& c : plan.candidates) {
    if (c.runnable && c.total_ns <= fastest * (1 + slack)) {
      chosen = c.name;
      chosen_ns = c.total_ns;
      break;
    }
  }
  std::stable_sort(plan.candidates.begin(), plan.candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.total_ns < b.total_ns; });
  for (std::size_t i = 0; i < plan.candidates.size(); ++i) {
    if (plan.candidates[i].name == chosen) plan.choice = i;
  }
  if (chosen_ns > fastest) {
    const auto first = std::find_if(plan.candidates.begin(), plan.candidates.end(),
                                    [](const Candidate& c) { return c.runnable; });
    plan.notes.push_back(first->name + " would be " +
                         printed("%.2g", 100 * (chosen_ns / fastest - 1)) + " % faster; below " +
                         printed("%.1f", 100 * slack) + " % the simpler way is taken");
  }
}

}  // namespace planning

Plan plan(const Workload& workload, const LinkProfile& link, const TileCosts& costs, int num_ranks,
          const PlanOptions& options) {
  if (num_ranks < 1 || num_ranks > Workload::kMaxRanks) {
    throw Error(ErrorCategory::usage, "ranks " + std::to_string(num_ranks) + ": legal 1..72");
  }
  validate(workload);
  Plan result;
  result.workload = workload.name;
  result.num_ranks = num_ranks;
  result.estimated = costs.estimated;
  result.links_hash = link.hash;
  result.costs_hash = costs.hash;
  const planning::Setting setting = planning::make_setting(link, costs, num_ranks, options, result);
  if (const auto* attention = std::get_if<AttentionWorkload>(&workload.op)) {
    planning::plan_attention(*attention, costs, setting, options, result);
  } else {
    planning::plan_moe(std::get<MoeWorkload>(workload.op), costs, setting, options, result);
  }
  if (num_ranks > 2) {
    result.notes.emplace_back("above 2 ranks: extrapolated, fan-in has not been measured");
  }
  return result;
}

std::string_view to_string(Evidence evidence) noexcept {
  switch (evidence) {
    case Evidence::simulated:
      return "simulated";
    case Evidence::closed_form:
      return "closed form";
    case Evidence::measured:
      return "measured";
  }
  return "";
}

std::string_view to_string(TileOrder order) noexcept {
  switch (order) {
    case TileOrder::linear:
      return "linear";
    case TileOrder::rank_rotated:
      return "rank-rotated";
    case TileOrder::remote_first:
      return "remote-first";
    case TileOrder::longest_first:
      return "longest-first";
  }
  return "";
}

std::string_view to_string(MoeSchedule schedule) noexcept {
  switch (schedule) {
    case MoeSchedule::wave:
      return "wave";
    case MoeSchedule::interleaved:
      return "interleaved";
    case MoeSchedule::lag:
      return "lag";
  }
  return "";
}

}  // namespace xstage
