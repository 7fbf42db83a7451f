// The steps of a fit, in their order. Each takes the fitted points of one kind, fills its part of a
// KindFit and says in `unidentified` what the points cannot tell.
#pragma once

#include <span>

#include "model/points.hpp"
#include "xstage/fit.hpp"

namespace xstage::model {

// T0(B) and r.
void fit_issue_curve(std::span<const Point> points, double rough_rate, const FitOptions& options,
                     KindFit& out);
// R; needs the issue curve.
void fit_drain_rate(std::span<const Point> points, const FitOptions& options, KindFit& out);
// Visibility latency and the factor for both directions; need R.
void fit_visible_latency(std::span<const Point> points, KindFit& out);
void fit_both_directions(std::span<const Point> points, KindFit& out);
// q, s and the table over K; needs R and the issue curve.
void fit_capacity(std::span<const Point> points, const FitOptions& options, KindFit& out);

[[nodiscard]] HeldOut evaluate_points(const LinkParams& params, std::span<const Point> points);

void add_unidentified(KindFit& out, std::string quantity, std::string reason);
// R and the issue curve are known, so that predictions can be made.
[[nodiscard]] bool can_predict(const LinkParams& params) noexcept;

}  // namespace xstage::model
