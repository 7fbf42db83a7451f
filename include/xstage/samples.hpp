// Measured samples: what the probe writes and the fit reads. One sample is one row of the CSV
// format of docs/measuring.md; anybody can produce such a file.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "xstage/send.hpp"

namespace xstage {

// A quantity that a sample does not hold. Use measured() to ask.
inline constexpr double kUnmeasured = std::numeric_limits<double>::quiet_NaN();
[[nodiscard]] inline bool measured(double value) noexcept {
  return !std::isnan(value);
}

enum class Experiment : std::uint8_t {
  isolated,  // an idle link, all producers started at one instant
  // Free-running producers in steady state, one burst every period. Means are over all bursts that
  // begin while every producer still runs: fast producers count for the more bursts they do, and
  // V / period is the rate of the link. Means of the producers' means would not give it.
  periodic,
};

struct Sample {
  Experiment experiment = Experiment::isolated;
  StoreKind kind = StoreKind::register16;
  int num_producers = 0;        // K: SMs that store
  double bytes = 0;             // B: bytes that each producer issues in a burst
  double gap_ns = kUnmeasured;  // G: all time of a period in which a producer does not issue
  // The gap that was asked for: rounds of one point share it exactly. Without it, rows whose gaps
  // agree within 1 % are one point.
  double nominal_gap_ns = kUnmeasured;
  double issue_ns = kUnmeasured;      // T_iss: mean over producers
  double period_ns = kUnmeasured;     // issue_ns + gap_ns
  double issue_p10_ns = kUnmeasured;  // over producers
  double issue_p90_ns = kUnmeasured;
  double issue_slowest_ns = kUnmeasured;
  double accept_ns = kUnmeasured;   // mean; differs from issue_ns for bulk and tensor copies
  double visible_ns = kUnmeasured;  // mean over producers, until a system-scope fence returned
  double visible_slowest_ns = kUnmeasured;
  double compute_gap_ns = kUnmeasured;  // tensor-core work inside the gap
  int num_directions = 1;               // 2: the peer sends as well
  int round_idx = -1;                   // -1: an aggregate over rounds
};

[[nodiscard]] std::string_view to_string(StoreKind kind) noexcept;
[[nodiscard]] std::string_view to_string(Experiment experiment) noexcept;
// Throw Error(usage) naming the legal words.
[[nodiscard]] StoreKind parse_store_kind(std::string_view word);
[[nodiscard]] Experiment parse_experiment(std::string_view word);

}  // namespace xstage
