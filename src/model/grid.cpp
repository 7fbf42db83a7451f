#include "xstage/grid.hpp"

#include <algorithm>

#include "model/validate.hpp"

namespace xstage {

std::vector<GridPoint> measuring_grid(int num_sms, double drain_rate) {
  model::check_range("SMs", num_sms, 1, model::kMaxProducers);
  model::check_range("drain rate", drain_rate, 0, model::kMaxRate, true);

  std::vector<int> isolated_counts{1, 4, 16, num_sms / 2, num_sms};
  std::erase_if(isolated_counts, [&](int count) { return count < 1 || count > num_sms; });
  std::vector<int> periodic_counts{std::max(1, num_sms / 2), num_sms};
  for (auto* counts : {&isolated_counts, &periodic_counts}) {
    std::sort(counts->begin(), counts->end());
    counts->erase(std::unique(counts->begin(), counts->end()), counts->end());
  }

  std::vector<GridPoint> grid;
  for (const int count : isolated_counts) {
    for (const double bytes : kIsolatedBytes) {
      grid.push_back({Experiment::isolated, count, bytes, 0, is_held_out_isolated(count, bytes)});
    }
  }
  for (const int count : periodic_counts) {
    for (const double bytes : kPeriodicBytes) {
      for (const double fraction : kPeriodicGapFractions) {
        grid.push_back({Experiment::periodic, count, bytes, fraction * count * bytes / drain_rate,
                        is_held_out_periodic(fraction)});
      }
    }
  }
  return grid;
}

}  // namespace xstage
