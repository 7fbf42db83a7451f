// What the exchange benchmark is expected to show, from a link profile and tile costs alone.
#pragma once

#include <string>
#include <vector>

#include "xstage/exchange_bench.hpp"
#include "xstage/link_profile.hpp"
#include "xstage/tile_costs.hpp"

namespace xstage::planning {

struct ExchangePrediction {
  std::string name;     // of the candidate
  double alone_ns = 0;  // attention without exchange
  double increment_ns = 0;
  // What two simpler views say of the same increment: everything is hidden behind computation;
  // every wave of tiles waits until its rows have arrived.
  double unbounded_ns = 0;
  double coupled_ns = 0;
};

// For each candidate, in their order. `link` null: nothing crosses a link (local ghosts).
// Error(usage) where the profile or the costs lack what is needed.
[[nodiscard]] std::vector<ExchangePrediction> predict_exchange(
    const AttentionWorkload& workload, int num_ranks, ExchangePeers peers,
    const std::vector<ExchangeCandidate>& candidates, const LinkProfile* link,
    const TileCosts& costs);

}  // namespace xstage::planning
