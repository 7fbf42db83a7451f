// What `xstage bench exchange` runs: workloads, ways to exchange, and the predictions that were
// made of them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console.hpp"
#include "model/exchange_prediction.hpp"
#include "xstage/exchange_bench.hpp"
#include "xstage/link_profile.hpp"
#include "xstage/tile_costs.hpp"

namespace xstage::cli {

struct ExchangeCase {
  std::string name;  // of the workload: a shipped name, or BxSxHxD
  AttentionWorkload workload;
  int num_ranks = 2;
  ExchangePeers peers = ExchangePeers::host_ghosts;
  std::vector<ExchangeCandidate> candidates;

  [[nodiscard]] std::string key() const;  // tells cases of one file apart
};

// A shipped name, a file, or sizes: ROWSxHEADS, BATCHxROWSxHEADS, BATCHxROWSxHEADSxDIM, heads of
// all ranks together. Throws Error(usage).
[[nodiscard]] ExchangeCase parse_exchange_case(const std::string& word);

// host, local, peer (ghosts there), real.
[[nodiscard]] ExchangePeers parse_exchange_peers(std::string_view word);

// The ways by name ("push", "burst", "paced", ...); all of `words`, or all there are if it is
// empty.
[[nodiscard]] std::vector<ExchangeCandidate> exchange_candidates(
    const AttentionWorkload& workload, const std::vector<std::string>& words);

// Predictions by case and candidate, with the hashes of what they rest on.
struct ExchangePredictions {
  std::string file;  // "" if made by this run
  std::string link_sha256;
  std::string costs_sha256;
  std::map<std::string, std::vector<planning::ExchangePrediction>> cases;

  [[nodiscard]] const planning::ExchangePrediction* find(const std::string& key,
                                                         const std::string& candidate) const;
};

[[nodiscard]] ExchangePredictions predict_cases(const std::vector<ExchangeCase>& cases,
                                                const LinkProfile& link, const TileCosts& costs,
                                                Console& console);
[[nodiscard]] Json predictions_json(const ExchangePredictions& predictions);
// Throws Error(bad_file) naming file, place and reason.
[[nodiscard]] ExchangePredictions read_predictions(const std::string& path);

}  // namespace xstage::cli
