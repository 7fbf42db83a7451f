// What the planners of the operators share.
#pragma once

#include <string>

#include "xstage/plan.hpp"

namespace xstage::planning {

// "12.3 us", "7.1 MB", for reasons and notes.
[[nodiscard]] std::string in_us(double ns);
[[nodiscard]] std::string in_mb(double bytes);
[[nodiscard]] std::string in_percent(double share);

// The machine that the link and the costs describe, with the what-ifs applied.
struct Setting {
  SimMachine machine;
  std::string link_name;     // "" if a what-if makes it another link
  bool can_simulate = true;  // the stage's capacity is known
};
[[nodiscard]] Setting make_setting(const LinkProfile& link, const TileCosts& costs, int num_ranks,
                                   const PlanOptions& options, Plan& plan);

void plan_attention(const AttentionWorkload& workload, const TileCosts& costs,
                    const Setting& setting, const PlanOptions& options, Plan& plan);
void plan_moe(const MoeWorkload& workload, const TileCosts& costs, const Setting& setting,
              const PlanOptions& options, Plan& plan);

// Sorts candidates by time and chooses: the first in order of preference (their order now) that is
// within `slack` of the fastest one that can be run.
void choose(Plan& plan, double slack);

}  // namespace xstage::planning
