// Small robust statistics. All deterministic and independent of the order of their input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "xstage/fit.hpp"

namespace xstage::model {

// Both take a copy; empty input gives NaN. Quantiles interpolate linearly.
[[nodiscard]] double median(std::vector<double> values);
[[nodiscard]] double quantile(std::vector<double> values, double probability);

// Theil-Sen: median slope dy/dx over pairs with different x. All pairs up to a few hundred points,
// above that the n/2 pairs that are farthest apart on average. Absent without such a pair.
[[nodiscard]] std::optional<double> theil_sen_slope(std::vector<std::pair<double, double>> points);

// splitmix64: tiny, the same everywhere (the standard's distributions are not).
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}
  std::uint64_t next() noexcept;
  // Uniform in [0, count).
  std::size_t index(std::size_t count) noexcept { return static_cast<std::size_t>(next() % count); }

 private:
  std::uint64_t state_;
};

// 95 % percentile interval of bootstrap estimates.
[[nodiscard]] Interval percentile_interval(const std::vector<double>& estimates);

// Bootstrap over `count` points: `estimate` gets the drawn indices and returns a value or nothing.
// Fewer than kMinBootstrapPoints points cannot tell a spread: absent.
inline constexpr std::size_t kMinBootstrapPoints = 4;
template <typename Estimate>
std::optional<Interval> bootstrap(std::size_t count, int num_draws, std::uint64_t seed,
                                  const Estimate& estimate) {
  if (count < kMinBootstrapPoints || num_draws < 1) return std::nullopt;
  Random random(seed);
  std::vector<double> estimates;
  std::vector<std::size_t> drawn(count);
  for (int i = 0; i < num_draws; ++i) {
    for (std::size_t& idx : drawn) idx = random.index(count);
    if (const std::optional<double> value = estimate(drawn)) estimates.push_back(*value);
  }
  if (estimates.empty()) return std::nullopt;
  return percentile_interval(estimates);
}

}  // namespace xstage::model
