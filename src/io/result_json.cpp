#include "io/result_json.hpp"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <utility>

#include "io/metadata.hpp"

namespace xstage::io {
namespace {

Json send_json(const Send& send) {
  static constexpr const char* kCompletion[] = {"accepted", "read", "visible"};
  return {{"kind", to_string(send.kind)},
          {"chunk_bytes", send.chunk_bytes},
          {"steps_per_chunk", send.steps_per_chunk},
          {"completion", kCompletion[static_cast<int>(send.completion)]}};
}

Json candidate_json(const Candidate& c) {
  Json json = {{"name", c.name},
               {"evidence", to_string(c.evidence)},
               {"runnable", c.runnable},
               {"total_ns", c.total_ns},
               {"compute_ns", c.compute_ns},
               {"exposed_ns", c.exposed_ns},
               {"bound_ns", c.bound_ns},
               {"held_by", c.held_by},
               {"split_tail", c.split_tail}};
  json["tile_order"] = c.tile_order ? Json(to_string(*c.tile_order)) : Json(nullptr);
  json["schedule"] = c.schedule ? Json(to_string(*c.schedule)) : Json(nullptr);
  json["send"] = c.evidence == Evidence::measured ? Json(nullptr) : send_json(c.send);
  return json;
}

Json or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value) : Json(nullptr);
}

Json to_json(const Counterfactual& c) {
  return {{"issue_ns", c.issue_ns}, {"period_ns", c.period_ns}};
}

}  // namespace

Json prediction_json(const LinkParams& link, const Burst& burst, const Prediction& p) {
  Json json = {{"kind", to_string(link.kind)},
               {"producers", burst.num_producers},
               {"bytes", burst.bytes},
               {"gap_ns", burst.gap_ns},
               {"issue_ns", p.issue_ns},
               {"t0_ns", p.t0_ns},
               {"wait_ns", p.wait_ns},
               {"period_ns", p.period_ns},
               {"regime", p.regime == Regime::free ? "free" : "drain_limited"},
               {"demand_bytes_per_ns", p.demand},
               {"drain_rate_bytes_per_ns", effective_drain_rate(link, burst.num_producers)},
               {"onset_gap_ns", p.onset_gap_ns},
               {"max_free_bytes", or_null(p.max_free_bytes)},
               {"isolated_issue_ns", or_null(p.isolated_issue_ns)},
               {"isolated_issue_slowest_ns", or_null(p.isolated_issue_slowest_ns)},
               {"isolated_visible_ns", or_null(p.isolated_visible_ns)}};
  json["first_stalled_burst"] =
      p.first_stalled_burst_idx ? Json(*p.first_stalled_burst_idx) : Json(nullptr);
  json["coupled"] = to_json(p.coupled);
  json["unbounded"] = to_json(p.unbounded);
  json["alpha_beta"] = to_json(p.alpha_beta);
  return json;
}

std::string describe_pair(const LinkProfile& profile) {
  const auto end = [](const Endpoint& endpoint) {
    return endpoint.name.empty() ? std::string(to_string(endpoint.type)) : endpoint.name;
  };
  std::string text = fmt::format("{} -> {}", end(profile.source), end(profile.destination));
  if (!profile.link.empty()) text += fmt::format(", {}", profile.link);
  return text;
}

Json link_identity(const LinkProfile& profile) {
  Json json = {{"name", profile.name}, {"sha256", profile.hash}, {"pair", describe_pair(profile)}};
  json["date"] = profile.provenance.date.empty() ? Json(nullptr) : Json(profile.provenance.date);
  return json;
}

Json plan_json(const Plan& plan, const TileCosts& costs, const LinkProfile& link) {
  Json json = {{"schema", "xstage.plan"}, {"version", 1}};
  json["workload"] = plan.workload;
  json["ranks"] = plan.num_ranks;
  json["link"] = link_identity(link);
  json["costs"] = {{"name", costs.name}, {"hash", costs.hash}, {"estimated", plan.estimated}};
  json["shape"] = plan.shape;
  json["sent_bytes"] = plan.sent_bytes;
  json["drain_ns"] = plan.drain_ns;
  json["compute_ns"] = plan.compute_ns;
  json["choice"] = plan.chosen().name;
  json["reason"] = plan.reason;
  json["comparison"] = plan.comparison;
  json["notes"] = plan.notes;
  json["candidates"] = Json::array();
  for (const auto& c : plan.candidates) json["candidates"].push_back(candidate_json(c));
  return json;
}

}  // namespace xstage::io
