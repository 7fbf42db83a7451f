// Fitted parameters as text: what fit, probe, demo and report show.
#pragma once

#include <string>
#include <vector>

#include "cli/console.hpp"
#include "xstage/fit.hpp"
#include "xstage/link_profile.hpp"

namespace xstage::cli {

// A row a kind: R, r, q by both statistics, spread, T0, two directions; 95 % intervals.
[[nodiscard]] std::string params_table(const std::vector<KindFit>& kinds);
// A heading and a row a kind: errors on the held-out points, median / p95, with the simpler views
// beside. Empty if no point was held out.
[[nodiscard]] std::string held_out_table(const std::vector<KindFit>& kinds);
// q against the number of producers; empty if no kind has it.
[[nodiscard]] std::string capacity_table(const std::vector<KindFit>& kinds);
// What the samples cannot say, a line each; empty if they say everything.
[[nodiscard]] std::string unidentified_lines(const std::vector<KindFit>& kinds);

// "0.12 / 3.5 %": median and p95.
[[nodiscard]] std::string median_and_p95(const ErrorSummary& errors);

}  // namespace xstage::cli
