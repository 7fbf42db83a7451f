#include "model/robust.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace xstage::model {
namespace {

constexpr std::size_t kMaxAllPairs = 300;

}  // namespace

double quantile(std::vector<double> values, double probability) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double position = probability * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(below);
  std::nth_element(values.begin(), nth, values.end());
  const double low = *nth;
  if (below + 1 >= values.size()) return low;
  const double high = *std::min_element(nth + 1, values.end());
  return low + (position - static_cast<double>(below)) * (high - low);
}

double median(std::vector<double> values) {
  return quantile(std::move(values), 0.5);
}

std::optional<double> theil_sen_slope(std::vector<std::pair<double, double>> points) {
  std::sort(points.begin(), points.end());
  std::vector<double> slopes;
  const auto add = [&](const auto& low, const auto& high) {
    if (high.first > low.first) {
      slopes.push_back((high.second - low.second) / (high.first - low.first));
    }
  };
  if (points.size() <= kMaxAllPairs) {
    for (std::size_t i = 0; i < points.size(); ++i) {
      for (std::size_t j = i + 1; j < points.size(); ++j) add(points[i], points[j]);
    }
  } else {
    const std::size_t half = points.size() / 2;
    for (std::size_t i = 0; i < half; ++i) add(points[i], points[i + half]);
  }
  if (slopes.empty()) return std::nullopt;
  return median(std::move(slopes));
}

std::uint64_t Random::next() noexcept {
  state_ += 0x9E3779B97F4A7C15ULL;
  std::uint64_t bits = state_;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBULL;
  return bits ^ (bits >> 31);
}

Interval percentile_interval(const std::vector<double>& estimates) {
  return {quantile(estimates, 0.025), quantile(estimates, 0.975)};
}

}  // namespace xstage::model
