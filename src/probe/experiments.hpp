// What the probe measures, one function a part. Each adds samples, tables or measurements to the
// pair; none decides what they mean.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "probe/link.hpp"
#include "xstage/probe.hpp"

namespace xstage::probing {

// One pair being probed.
struct Context {
  Link& link;
  Link* back;  // the reverse link of a GPU pair, else null
  ProbedPair& pair;
  const ProbeOptions& options;
  std::mt19937 random;
  double drain_rate = 0;  // B/ns, rough, from the first zero-gap run
  // Ordinals of third GPUs that can store into the destination, and that the source can store into.
  std::vector<int> senders = {};
  std::vector<int> receivers = {};

  [[nodiscard]] std::uint32_t next_seed() { return static_cast<std::uint32_t>(random()); }
  [[nodiscard]] bool measures(StoreKind kind) const;
  [[nodiscard]] bool to_host() const { return link.target().type == Endpoint::Type::host_memory; }
  // Gap after which K producers of B bytes ask for `share` of the drain rate.
  [[nodiscard]] double gap_for(double bytes, int num_producers, double share) const {
    return std::max(0.0, bytes * num_producers / (share * drain_rate));
  }
};

// Pieces that a burst of this kind is sent in: at most 16 KiB, and a divisor of the burst for
// boxes.
[[nodiscard]] std::uint32_t piece_bytes(StoreKind kind, std::uint32_t bytes);

// A burst of `kind` with the default pieces.
[[nodiscard]] BurstSpec burst_of(Context& context, StoreKind kind, int num_producers, double bytes);

// Runs, checks the payload (Error{check_failed} with the count if it is wrong), drops nothing.
[[nodiscard]] BurstRun run_checked(Context& context, const BurstSpec& spec);

// The time in which free-running producers are in steady state and all at work: SMs get unequal
// shares of a full link, so the fast ones end early, and what follows is a link with fewer
// producers. Means over the bursts of such a window weigh producers by their pace, so that the mean
// period is exactly the volume of one round over the rate of the link.
struct SteadyWindow {
  double begin_ns = 0;
  double end_ns = 0;
};
[[nodiscard]] SteadyWindow steady_window(const BurstRun& run);

// Rows of samples. Isolated: one a round from `first` on. Periodic: one a part of the steady
// window.
void append_isolated(const BurstRun& run, const BurstSpec& spec, int first_round,
                     std::vector<Sample>& samples);
void append_periodic(const BurstRun& run, const BurstSpec& spec, double nominal_gap_ns,
                     std::vector<Sample>& samples);

// Rate of zero-gap bursts in steady state, B/ns.
[[nodiscard]] double zero_gap_rate(Context& context, StoreKind kind, int num_producers,
                                   double bytes, const Layout& layout = {});

// Parts. Names and columns in docs/measuring.md.
void part_canary(Context& context);
void part_rate(Context& context);
void part_isolated(Context& context);
void part_periodic(Context& context);
void part_directions(Context& context);
void part_pieces(Context& context);
void part_placement(Context& context);
void part_patterns(Context& context);
void part_kinds(Context& context);
void part_loads(Context& context);
void part_pacing(Context& context);
void part_egress(Context& context);
void part_costs(Context& context);
void part_fan_in(Context& context);
void part_fan_out(Context& context);
void part_idle(Context& context);
void part_control(Context& context);
void part_memory(Context& context);
void part_mock_attention(Context& context);

}  // namespace xstage::probing
