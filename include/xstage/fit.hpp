// Samples -> model parameters, robust and deterministic. Pure: no I/O, no CUDA.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "xstage/model.hpp"
#include "xstage/samples.hpp"

namespace xstage {

struct Interval {
  double low = 0;
  double high = 0;
};

// A quantity that the samples cannot determine, and why. Everything downstream treats it as absent.
struct Unidentified {
  std::string quantity;  // "capacity_mean_bytes", ...
  std::string reason;    // "no isolated burst exceeds the capacity", ...
};

struct ErrorSummary {
  int num_points = 0;
  double median = 0;  // fractions, not percent
  double p95 = 0;
  double worst = 0;
  std::string worst_point;  // "4 KiB, no gap"
};

// Errors on the held-out grid, by the metric of docs/model.md:
// |T_iss predicted - measured| / period measured (isolated: / time to visibility).
struct HeldOut {
  ErrorSummary burst_gap;
  ErrorSummary coupled;
  ErrorSummary unbounded;
  ErrorSummary alpha_beta;
  ErrorSummary period;         // |period predicted - measured| / measured, Burst-Gap
  double near_onset_share = 0;  // part of the points within +-25 % of G*
};

struct KindFit {
  LinkParams params;
  std::optional<Interval> drain_rate_interval;         // 95 %
  std::optional<Interval> injection_rate_interval;
  std::optional<Interval> capacity_mean_interval;
  std::optional<Interval> capacity_slowest_interval;
  ErrorSummary residuals;  // on the samples that were fitted
  std::optional<HeldOut> held_out;
  std::vector<Unidentified> unidentified;
  int num_samples = 0;
};

struct Fit {
  std::vector<KindFit> kinds;
};

struct FitOptions {
  bool hold_out = true;           // false: every sample is fitted
  unsigned long long seed = 1;    // of the bootstrap that gives the intervals
  int num_bootstrap = 200;
};

// True if the sample belongs to the fixed held-out grid of docs/model.md: it never enters a fit
// unless FitOptions::hold_out is false.
[[nodiscard]] bool is_held_out(const Sample& sample) noexcept;

// Throws Error(usage) on an empty or impossible set; what the data cannot say is in `unidentified`.
[[nodiscard]] Fit fit(std::span<const Sample> samples, const FitOptions& options = {});

// Errors of `params` on those samples that can be judged.
[[nodiscard]] HeldOut evaluate(const LinkParams& params, std::span<const Sample> samples);

}  // namespace xstage
