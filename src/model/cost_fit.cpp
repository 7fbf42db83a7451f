// Tile costs of attention from measured calls.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "xstage/error.hpp"
#include "xstage/tile_costs.hpp"

namespace xstage {
namespace {

constexpr int kNumCosts = 3;
using Costs = std::array<double, kNumCosts>;

Costs counts(const AttentionTiming& t) {
  return {t.num_steps, t.num_tiles, t.num_parts};
}

// Least squares in the costs that `used` names, the others 0; absent if they are not determined.
std::optional<Costs> solve(std::span<const AttentionTiming> timings, double launch_ns,
                           const std::vector<int>& used) {
  const std::size_t n = used.size();
  std::vector<std::vector<double>> a(n, std::vector<double>(n + 1, 0.0));
  for (const AttentionTiming& t : timings) {
    const Costs all = counts(t);
    const double rest = (t.call_ns - launch_ns) / t.call_ns;
    for (std::size_t i = 0; i < n; ++i) {
      const double x = all[static_cast<std::size_t>(used[i])] / t.call_ns;
      for (std::size_t j = 0; j < n; ++j) {
        a[i][j] += x * all[static_cast<std::size_t>(used[j])] / t.call_ns;
      }
      a[i][n] += x * rest;
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    const double scale = a[i][i];
    // Columns that are multiples of each other leave rounding noise behind.
    double largest = 0;
    for (const AttentionTiming& t : timings) {
      const double x = counts(t)[static_cast<std::size_t>(used[i])] / t.call_ns;
      largest += x * x;
    }
    if (!(scale > 1e-9 * largest)) return std::nullopt;
    for (double& x : a[i]) x /= scale;
    for (std::size_t k = 0; k < n; ++k) {
      if (k == i) continue;
      const double factor = a[k][i];
      for (std::size_t j = 0; j <= n; ++j) a[k][j] -= factor * a[i][j];
    }
  }
  Costs costs{};
  for (std::size_t i = 0; i < n; ++i) costs[static_cast<std::size_t>(used[i])] = a[i][n];
  return costs;
}

}  // namespace

AttentionCostFit fit_attention_cost(std::span<const AttentionTiming> timings, double launch_ns) {
  for (const AttentionTiming& t : timings) {
    if (!(t.num_steps > 0) || !(t.call_ns > launch_ns)) {
      throw Error(ErrorCategory::usage,
                  "tile costs: a timing has no key blocks or takes no longer than a launch");
    }
  }
  // As many costs as the timings tell apart and that come out positive; steps always.
  for (const std::vector<int>& used : {std::vector<int>{0, 1, 2}, std::vector<int>{0, 1},
                                       std::vector<int>{0, 2}, std::vector<int>{0}}) {
    if (used.size() > timings.size()) continue;
    const auto costs = solve(timings, launch_ns, used);
    if (!costs || std::any_of(costs->begin(), costs->end(), [](double x) { return x < 0; })) {
      continue;
    }
    AttentionCostFit fit{(*costs)[0], (*costs)[1], (*costs)[2], 0};
    for (const AttentionTiming& t : timings) {
      const double predicted = launch_ns + t.num_steps * fit.step_ns + t.num_tiles * fit.tile_ns +
                               t.num_parts * fit.part_ns;
      fit.worst_error = std::max(fit.worst_error, std::abs(predicted - t.call_ns) / t.call_ns);
    }
    return fit;
  }
  throw Error(ErrorCategory::usage, "tile costs: no timings");
}

}  // namespace xstage
