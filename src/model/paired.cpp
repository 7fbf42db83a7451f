#include "model/paired.hpp"

#include <algorithm>
#include <cmath>

#include "model/robust.hpp"

namespace xstage::model {
namespace {

constexpr int kNumDraws = 1000;
constexpr std::uint64_t kSeed = 1;

double round_mean(const std::vector<double>& values, std::size_t round) {
  return (values[2 * round] + values[2 * round + 1]) / 2;
}

PairedEstimate estimate(std::vector<double> values, std::size_t num_dropped) {
  PairedEstimate result;
  result.num_rounds = values.size();
  result.num_dropped = num_dropped;
  result.value = median(values);
  result.interval = bootstrap(values.size(), kNumDraws, kSeed, [&](const auto& drawn) {
    std::vector<double> some;
    some.reserve(drawn.size());
    for (const std::size_t idx : drawn) some.push_back(values[idx]);
    return std::optional<double>(median(std::move(some)));
  });
  return result;
}

template <typename Combine>
PairedEstimate paired(const PairedSeries& a, const PairedSeries& b, Combine combine) {
  const std::size_t rounds =
      std::min({a.ns.size(), b.ns.size(), a.clock_mhz.size(), b.clock_mhz.size()}) / 2;
  std::vector<double> all;
  std::vector<double> alike;
  for (std::size_t i = 0; i < rounds; ++i) {
    const double clock = round_mean(b.clock_mhz, i);
    all.push_back(combine(round_mean(a.ns, i), round_mean(b.ns, i)));
    if (std::abs(round_mean(a.clock_mhz, i) - clock) <= kMaxClockDifference * clock) {
      alike.push_back(all.back());
    }
  }
  const std::size_t num_dropped = all.size() - alike.size();
  if (num_dropped > 0 && alike.size() < kMinAlikeRounds) {
    PairedEstimate result = estimate(std::move(all), 0);
    result.clocks_differ = true;
    return result;
  }
  return estimate(std::move(alike), num_dropped);
}

}  // namespace

PairedEstimate paired_difference(const PairedSeries& a, const PairedSeries& b) {
  return paired(a, b, [](double x, double y) { return x - y; });
}

PairedEstimate paired_ratio(const PairedSeries& a, const PairedSeries& b) {
  return paired(a, b, [](double x, double y) { return x / y; });
}

PairedEstimate round_median(const PairedSeries& a) {
  std::vector<double> values;
  for (std::size_t i = 0; i + 1 < a.ns.size(); i += 2) values.push_back(round_mean(a.ns, i / 2));
  return estimate(std::move(values), 0);
}

}  // namespace xstage::model
