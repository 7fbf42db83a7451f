// What should I run, what will it cost, what limits it? Workload + link + tile costs -> candidates
// with predicted times, the bound that holds each, a choice with a reason, and the Send to run it
// with. Closed forms first; the simulator where order and burst shape matter. docs/planning.md has
// the rules.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "xstage/attention_order.hpp"
#include "xstage/link_profile.hpp"
#include "xstage/moe_order.hpp"
#include "xstage/simulate.hpp"
#include "xstage/tile_costs.hpp"
#include "xstage/workload.hpp"

namespace xstage {

enum class Evidence : std::uint8_t { simulated, closed_form, measured };

struct Candidate {
  std::string name;  // "fused bulk remote-first"
  Evidence evidence = Evidence::simulated;
  bool runnable = true;  // false: a reference only (serial baselines, counterfactuals)
  double total_ns = 0;
  double compute_ns = 0;  // the same without communication
  double exposed_ns = 0;  // total - compute
  double bound_ns = 0;    // no run of this candidate can be faster
  std::string held_by;    // what holds it, for a person
  Send send;
  std::optional<TileOrder> tile_order;
  bool split_tail = false;
  std::optional<MoeSchedule> schedule;
  Timeline timeline;  // if asked for
};

struct Plan {
  std::string workload;
  int num_ranks = 1;
  bool estimated = true;              // tile costs are an estimate
  std::string shape;                  // one line: what a rank computes and sends
  double sent_bytes = 0;              // by the busiest rank
  double drain_ns = 0;                // of those at R
  double compute_ns = 0;              // the best kernel without communication
  std::vector<Candidate> candidates;  // fastest first
  std::size_t choice = 0;             // index in candidates
  std::string reason;                 // why the choice, for a person
  std::string comparison;             // with the usual ways, "" if there are none
  std::vector<std::string> notes;     // what cannot be gained, what is extrapolated
  std::string links_hash;
  std::string costs_hash;

  [[nodiscard]] const Candidate& chosen() const { return candidates[choice]; }
};

struct PlanOptions {
  // What-if: replace what the profile says.
  std::optional<double> drain_rate;      // B/ns
  std::optional<double> capacity_bytes;  // per SM
  std::optional<StoreKind> kind;
  bool keep_timelines = false;
  // Above this many tiles of all ranks only the closed form is used.
  std::int64_t max_simulated_tiles = 30'000;
};

// Error(usage) says what cannot be: ranks outside 1..72, more ranks than heads, experts that do not
// divide by the ranks, a store kind that the profile does not hold.
[[nodiscard]] Plan plan(const Workload& workload, const LinkProfile& link, const TileCosts& costs,
                        int num_ranks, const PlanOptions& options = {});

[[nodiscard]] std::string_view to_string(Evidence evidence) noexcept;
[[nodiscard]] std::string_view to_string(TileOrder order) noexcept;
[[nodiscard]] std::string_view to_string(MoeSchedule schedule) noexcept;

}  // namespace xstage
