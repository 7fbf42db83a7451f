// Isolated aligned bursts when the link is shared unequally: a generalised-processor-sharing fluid.
// Exact for the fluid: work-conserving, what a finished producer leaves goes to the others in
// proportion to their weights, nobody drains faster than one SM can inject. O(K) until only a few
// producers are left, then O(n^2) with n about R/r.
#pragma once

#include <vector>

namespace xstage::model {

class FluidShare {
 public:
  // `drain_rate` R and `injection_rate` r in B/ns; spread s in [0, 1).
  FluidShare(int num_producers, double drain_rate, double injection_rate, double spread);

  // Issue times of all producers into an idle stage of `capacity` bytes each, ascending: the time
  // when all but `capacity` of a producer's bytes have drained, at least `t0_ns`.
  // `times` is overwritten; its storage is reused.
  void issue_times(double bytes, double capacity, double t0_ns, std::vector<double>& times) const;

 private:
  // Water-filling of R over the producers from `first` on, each at most r.
  void fill_rates(const std::vector<int>& active, std::vector<double>& rates) const;
  void finish_capped(double bytes, double threshold, int first, double virtual_time, double time,
                     std::vector<double>& times) const;

  int num_producers_;
  double drain_rate_;
  double injection_rate_;
  std::vector<double> weights_;      // descending
  std::vector<double> weight_sums_;  // weight_sums_[i] = sum of weights from i on
};

}  // namespace xstage::model
