// What a measured case of `xstage bench exchange` says: the table, the verdict, the JSON.
#pragma once

#include <optional>
#include <string>

#include "cli/exchange_cases.hpp"
#include "model/paired.hpp"
#include "xstage/exchange_bench.hpp"

namespace xstage::cli {

// One way, judged against the others of its case.
struct ExchangeRow {
  std::string name;
  model::PairedEstimate total;                      // ns
  model::PairedEstimate over_alone;                 // exposed: ns more than attention alone
  std::optional<model::PairedEstimate> over_local;  // than the same plan with local owners
  model::PairedEstimate sent_over_alone;            // until the rank's own kernels have ended
  std::optional<model::PairedEstimate> to_unfused;  // time / that of the fastest other way
  const planning::ExchangePrediction* predicted = nullptr;
};

struct ExchangeVerdict {
  std::string best_unfused;  // "" if none ran
  std::string best_fused;
  bool gains = false;  // the fastest fused way is faster than the fastest other one, beyond its
                       // interval
  std::string text;
};

struct ExchangeResult {
  ExchangeCase request;
  ExchangeMeasurement measured;
  std::vector<ExchangeRow> rows;  // of the ways that ran
  ExchangeVerdict verdict;
  double drain_ns = 0;      // of all bytes sent, at R; 0 without a link
  double last_wave_ns = 0;  // of what is still to send when the last main loop ends
  bool all_right = true;    // every byte of every way
};

// `predictions` has to outlive the result.
[[nodiscard]] ExchangeResult judge_exchange(const ExchangeCase& request,
                                            const ExchangeMeasurement& measured,
                                            const ExchangePredictions& predictions,
                                            const LinkProfile* link);

void print_exchange(const ExchangeResult& result, Console& console);
[[nodiscard]] Json exchange_json(const ExchangeResult& result);

}  // namespace xstage::cli
