// What one way takes more than another that ran beside it: paired differences and ratios with
// bootstrap intervals. Pure and deterministic.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "xstage/fit.hpp"

namespace xstage::model {

// Samples of one way, two a round (forwards and backwards), with the clock behind each.
struct PairedSeries {
  const std::vector<double>& ns;
  const std::vector<double>& clock_mhz;
};

struct PairedEstimate {
  double value = 0;                  // median over rounds; NaN without rounds
  std::optional<Interval> interval;  // 95 %
  std::size_t num_rounds = 0;        // that were used
  std::size_t num_dropped = 0;       // whose clocks differed by more than kMaxClockDifference
  bool clocks_differ = false;        // in nearly all rounds: none was dropped
};

inline constexpr double kMaxClockDifference = 0.005;
// With fewer rounds at like clocks the difference belongs to the two ways (one of them heats the
// GPU more) and not to chance: all rounds are taken.
inline constexpr std::size_t kMinAlikeRounds = 5;

// a - b, and a / b.
[[nodiscard]] PairedEstimate paired_difference(const PairedSeries& a, const PairedSeries& b);
[[nodiscard]] PairedEstimate paired_ratio(const PairedSeries& a, const PairedSeries& b);
// Of one series alone: the median of its rounds.
[[nodiscard]] PairedEstimate round_median(const PairedSeries& a);

}  // namespace xstage::model
