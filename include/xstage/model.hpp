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

// T0 as a function of B: linear between measured points, constant below the first, slope 1/r beyond
// the last.
struct IssuePoint {
  double bytes = 0;
  double issue_ns = 0;
};

// What the stage holds and how its drain is shared, for one producer count.
struct Stage {
  int num_producers = 0;
  std::optional<double> capacity_mean_bytes;
  std::optional<double> capacity_slowest_bytes;
  double share_spread = 0;
};

struct LinkParams {
  StoreKind kind = StoreKind::bulk;
  std::vector<IssuePoint> issue_curve;  // ascending bytes; at least one point
  double injection_rate = 0;            // r, B/ns; what one SM can inject
  double drain_rate = 0;                // R, B/ns
  // q: one SM's share of the stage, with as many producers as were measured. Absent when the data
  // cannot say: no number is made up. Both belong to the spread below; if the model is right they
  // agree. Infinity: an unbounded stage.
  std::optional<double> capacity_mean_bytes;     // by the mean producer's issue time
  std::optional<double> capacity_slowest_bytes;  // by the slowest producer's
  // s: half-width of the producers' shares of the drain. While all are backlogged they get between
  // (1 - s) and (1 + s) of R/K, evenly spread. 0: all alike, the paper's law.
  double share_spread = 0;
  // The same three by producer count, ascending: fewer producers have more room each. Empty: the
  // values above hold for every K.
  std::vector<Stage> stages;
  std::optional<double> visible_latency_ns;  // last byte drained -> visible to the peer (fenced)
  // Rate (B/ns) that loads of the same SM lose per B/ns of paced stores.
  std::optional<double> load_rate_loss;
  // Backlog of the GPU's stores beside which its loads still pass freely; behind more they wait.
  std::optional<double> load_bypass_bytes;
  double both_directions_factor = 1.0;  // R with both directions busy / R alone
};

struct Burst {
  int num_producers = 1;
  double bytes = 0;  // per producer
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
  double issue_ns = 0;  // steady state, mean producer
  double wait_ns = 0;   // issue_ns - t0_ns
  double period_ns = 0;
  double onset_gap_ns = 0;  // G*: the smallest gap without waiting
  double demand = 0;        // V / (T0 + G), B/ns; above R the pace cannot be sustained
  Regime regime = Regime::free;
  double max_free_bytes = 0;  // largest B per producer at this gap that does not wait; infinite
                              // if the producers together cannot fill the link
  // A burst of all producers at one instant into an idle link. Absent without a capacity.
  std::optional<double> isolated_issue_ns;
  std::optional<double> isolated_issue_slowest_ns;
  std::optional<double> isolated_visible_ns;
  // Index of the first burst in which somebody waits when bursts of this pace start on an idle
  // link in lockstep; absent if none ever waits or the capacity is unknown.
  std::optional<long> first_stalled_burst_idx;
  Counterfactual coupled;     // every burst waits until its bytes are visible
  Counterfactual unbounded;   // issue never waits
  Counterfactual alpha_beta;  // latency + V/R per burst, nothing overlaps
};

// All of these throw Error(usage), naming the value and the legal range, on parameters or bursts
// that are NaN, negative, zero where that means nothing, or absurdly large.
[[nodiscard]] double issue_time_empty(const LinkParams& link, double bytes);

// R as K producers see it: min(R, K*r). Few producers are held by their own ceiling, not the link.
[[nodiscard]] double effective_drain_rate(const LinkParams& link, int num_producers);

// The stage as K producers see it: between two `stages` q follows a power of K (so both q constant
// and Q constant are exact) and s is linear in log K. Below the fewest the power goes on, held
// between q constant and Q constant; above the most everything is constant. Without `stages` the
// values for every K.
[[nodiscard]] Stage stage_of(const LinkParams& link, int num_producers);

[[nodiscard]] Prediction predict(const LinkParams& link, const Burst& burst);

// Issue times of the first `num_bursts` bursts from an idle link, all producers in lockstep, by the
// backlog recurrence with finite Q and equal shares:
//   T_n = max(T0, (b_n + V - Q)/R),   b_{n+1} = max(0, b_n + V - R*(T_n + G)),   b_0 = 0.
// It ends on max(T0, V/R - min(G, Q/R)): the closed form if the stage lasts through the gap
// (Q >= R*G), else the isolated burst. Uses the capacity by the mean, else by the slowest; without
// any, Error(usage): an unbounded stage must be asked for by an infinite capacity.
[[nodiscard]] std::vector<double> predict_transient(const LinkParams& link, const Burst& burst,
                                                    int num_bursts);

// Issue time of every producer of an isolated aligned burst, ascending: fluid sharing of R with the
// spread of `link`, what finished producers leave goes to the others. Capacity as above.
[[nodiscard]] std::vector<double> predict_isolated_producers(const LinkParams& link,
                                                             int num_producers, double bytes);

}  // namespace xstage
