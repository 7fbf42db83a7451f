// The Burst-Gap model of the X-Stage: how long a role that stores into a peer is held.
//
//   K, B, V = K*B   producers, bytes each issues in a burst, burst volume
//   G               time between bursts in which a producer does not issue: period = T_iss + G
//   T0(B)           issue time into an empty stage;  r  what one SM can inject (B/ns)
//   R               drain rate of the link (B/ns = GB/s);  Q = K*q  what the stage absorbs
//
// Steady state: T_iss = max(T0, V/R - G), period = max(T0 + G, V/R), onset G* = max(0, V/R - T0).
// All functions are pure: no I/O, no CUDA, no state. Times in ns, sizes in bytes.
#pragma once

#include <optional>
#include <vector>

#include "xstage/send.hpp"

namespace xstage {

// T0 as a function of B: linear between measured points, slope 1/r beyond the last.
struct IssuePoint {
  double bytes = 0;
  double issue_ns = 0;
};

struct LinkParams {
  StoreKind kind = StoreKind::bulk;
  std::vector<IssuePoint> issue_curve;  // ascending bytes; at least one point
  double injection_rate = 0;            // r, B/ns; what one SM can inject
  double drain_rate = 0;                // R, B/ns
  // q: one SM's share of the stage. Absent when the data cannot say: no number is made up.
  std::optional<double> capacity_mean_bytes;     // by the mean producer's issue time
  std::optional<double> capacity_slowest_bytes;  // by the slowest producer's
  // Relative half-width of the producers' shares of the drain: the slowest gets (1 - spread) of
  // its fair share while all are backlogged. 0: all alike.
  double share_spread = 0;
  std::optional<double> visible_latency_ns;  // last byte drained -> visible to the peer (fenced)
  // Rate (B/ns) that loads of the same SM lose per B/ns of paced stores.
  std::optional<double> load_rate_loss;
  double both_directions_factor = 1.0;  // R with both directions busy / R alone
};

struct Burst {
  int num_producers = 1;
  double bytes = 0;   // per producer
  double gap_ns = 0;
};

enum class Regime { free, drain_limited };

// What a simpler view of the same burst would say.
struct Counterfactual {
  double issue_ns = 0;
  double period_ns = 0;
};

struct Prediction {
  double t0_ns = 0;
  double issue_ns = 0;   // steady state, mean producer
  double wait_ns = 0;    // issue_ns - t0_ns
  double period_ns = 0;
  double onset_gap_ns = 0;       // G*: the smallest gap without waiting
  double demand = 0;             // V / (T0 + G), B/ns; above R the pace cannot be sustained
  Regime regime = Regime::free;
  double max_free_bytes = 0;     // largest B per producer at this gap that does not wait
  // A burst of all producers at one instant into an idle link. Absent without a capacity.
  std::optional<double> isolated_issue_ns;
  std::optional<double> isolated_issue_slowest_ns;
  std::optional<double> isolated_visible_ns;
  // Index of the first burst that waits when bursts of this pace start on an idle link;
  // absent if none ever waits or the capacity is unknown.
  std::optional<long> first_stalled_burst_idx;
  Counterfactual coupled;     // every burst waits until its bytes are visible
  Counterfactual unbounded;   // issue never waits
  Counterfactual alpha_beta;  // latency + V/R per burst, nothing overlaps
};

[[nodiscard]] double issue_time_empty(const LinkParams& link, double bytes);
[[nodiscard]] Prediction predict(const LinkParams& link, const Burst& burst);

// Issue times of the first `num_bursts` bursts from an idle link: the backlog recurrence with
// finite Q. With no capacity in `link` the stage is taken as unbounded only if `link` says so by
// an infinite capacity; otherwise Error(usage).
[[nodiscard]] std::vector<double> predict_transient(const LinkParams& link, const Burst& burst,
                                                    int num_bursts);

// Issue time of every producer of an isolated aligned burst, ascending: fluid sharing of R with
// the spread of `link`.
[[nodiscard]] std::vector<double> predict_isolated_producers(const LinkParams& link,
                                                             int num_producers, double bytes);

}  // namespace xstage
