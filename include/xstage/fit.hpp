// Samples -> model parameters, robust and deterministic. Pure: no I/O, no CUDA.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "xstage/grid.hpp"
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
  ErrorSummary period;            // |period predicted - measured| / measured, Burst-Gap
  ErrorSummary isolated_slowest;  // Burst-Gap, slowest producer of isolated bursts
  double near_onset_share = 0;    // part of the points within +-25 % of G*
};

// One estimate of q with its 95 % interval, both in bytes.
struct CapacityEstimate {
  double bytes = 0;
  Interval interval;
};

// q seen by bursts of one producer count alone. If capacity sits in the SM, the rows of different K
// agree; one buffer shared at the link would make q fall as 1/K.
struct CapacityAtK {
  int num_producers = 0;
  int num_points = 0;                       // isolated points of this K
  std::optional<CapacityEstimate> by_mean;  // with the spread that fits this K best
  std::optional<CapacityEstimate> by_slowest;
  // The same without a spread: the median of (V - R*T)/K over the bursts that waited.
  std::optional<CapacityEstimate> by_mean_equal_shares;
  std::optional<CapacityEstimate> by_slowest_equal_shares;
  std::optional<double> share_spread;  // absent without the slowest producers' times
};

struct KindFit {
  LinkParams params;
  std::optional<Interval> drain_rate_interval;  // 95 %
  std::optional<Interval> injection_rate_interval;
  std::optional<Interval> capacity_mean_interval;
  std::optional<Interval> capacity_slowest_interval;
  std::optional<Interval> share_spread_interval;
  std::vector<CapacityAtK> capacity_at_k;  // ascending K; only counts that can fill the link
  // One q and one s for all K together, num_producers 0: what a stage that belongs to the SM would
  // show. For comparison with capacity_at_k; absent if bursts of one K alone waited.
  std::optional<CapacityAtK> capacity_all_k;
  ErrorSummary residuals;  // on the samples that were fitted
  std::optional<HeldOut> held_out;
  std::vector<Unidentified> unidentified;
  int num_samples = 0;
};

struct Fit {
  std::vector<KindFit> kinds;
};

struct FitOptions {
  bool hold_out = true;         // false: every sample is fitted
  unsigned long long seed = 1;  // of the bootstrap that gives the intervals
  int num_bootstrap = 200;
};

// The highest rate (B/ns) that the bursts of one kind show without any model: V / period at the
// smallest gap, median over burst sizes, of the largest producer count. 0 without periodic samples.
[[nodiscard]] double rough_drain_rate(std::span<const Sample> samples, StoreKind kind);

// True if the sample belongs to the fixed held-out grid (grid.hpp, docs/model.md): it never enters
// a fit unless FitOptions::hold_out is false. `drain_rate` is the kind's rough_drain_rate.
[[nodiscard]] bool is_held_out(const Sample& sample, double drain_rate) noexcept;

// Samples of one point (same experiment, kind, K, B, directions, gap and what fills it) are one
// vote, whether they are one aggregate row or a thousand raw ones; a point's value is the median of
// its rows. The result does not depend on the order of the samples. Throws Error(usage) on an empty
// or impossible set, naming the sample by its index; what the data cannot say is in `unidentified`.
[[nodiscard]] Fit fit(std::span<const Sample> samples, const FitOptions& options = {});

// Sets params.stages from capacity_at_k: the rows that hold an estimate. fit() has done it; readers
// of files call it.
void use_capacity_at_k(KindFit& fit);

// Errors of `params` on those samples that can be judged, one vote a point: of the params' kind,
// and for isolated bursts only with a known capacity. Two-direction samples are judged with
// both_directions_factor.
[[nodiscard]] HeldOut evaluate(const LinkParams& params, std::span<const Sample> samples);

}  // namespace xstage
