#include "model/fluid_share.hpp"

#include <algorithm>
#include <numeric>

namespace xstage::model {

FluidShare::FluidShare(int num_producers, double drain_rate, double injection_rate, double spread)
    : num_producers_(num_producers),
      drain_rate_(drain_rate),
      injection_rate_(injection_rate),
      weights_(static_cast<std::size_t>(num_producers)),
      weight_sums_(static_cast<std::size_t>(num_producers) + 1, 0.0) {
  const double step = 2.0 / num_producers;
  for (int i = 0; i < num_producers; ++i) {
    weights_[static_cast<std::size_t>(i)] = 1.0 + spread * (1.0 - step * (i + 0.5));
  }
  for (std::size_t i = weights_.size(); i-- > 0;) {
    weight_sums_[i] = weight_sums_[i + 1] + weights_[i];
  }
}

// While no ceiling binds, producer i has drained w_i * v at virtual time v, and the heaviest active
// producer is the next to finish, at v = B / w. Real time passes at (sum of active weights) / R.
void FluidShare::issue_times(double bytes, double capacity, double t0_ns,
                             std::vector<double>& times) const {
  const auto count = static_cast<std::size_t>(num_producers_);
  times.assign(count, t0_ns);
  const double threshold = bytes - capacity;  // drained when the last byte finds room
  if (threshold <= 0) return;
  if (num_producers_ * injection_rate_ <= drain_rate_) {
    times.assign(count, std::max(t0_ns, threshold / injection_rate_));
    return;
  }
  double virtual_time = 0;
  double time = 0;
  std::size_t crossing = 0;  // the next producer whose issue ends
  for (std::size_t first = 0; first < count; ++first) {
    const double pace = weight_sums_[first] / drain_rate_;  // real time per virtual time
    if (weights_[first] > injection_rate_ * pace) {
      finish_capped(bytes, threshold, static_cast<int>(first), virtual_time, time, times);
      break;
    }
    const double end = bytes / weights_[first];
    for (; crossing < count && threshold / weights_[crossing] <= end; ++crossing) {
      times[crossing] = time + (threshold / weights_[crossing] - virtual_time) * pace;
    }
    time += (end - virtual_time) * pace;
    virtual_time = end;
  }
  for (double& value : times) value = std::max(value, t0_ns);
  std::sort(times.begin(), times.end());
}

void FluidShare::fill_rates(const std::vector<int>& active, std::vector<double>& rates) const {
  double rate_left = drain_rate_;
  double weight_left = 0;
  for (const int i : active) weight_left += weights_[static_cast<std::size_t>(i)];
  rates.clear();
  for (const int i : active) {  // heaviest first: once one is below the ceiling, all others are
    const double weight = weights_[static_cast<std::size_t>(i)];
    const double rate = std::min(injection_rate_, rate_left * weight / weight_left);
    rates.push_back(rate);
    rate_left -= rate;
    weight_left -= weight;
  }
}

// From here on some producers drain at their ceiling, so there is no common virtual time: step from
// event to event. Producers whose issue ended before keep their times.
void FluidShare::finish_capped(double bytes, double threshold, int first, double virtual_time,
                               double time, std::vector<double>& times) const {
  std::vector<int> active(static_cast<std::size_t>(num_producers_ - first));
  std::iota(active.begin(), active.end(), first);
  std::vector<double> drained;
  for (const int i : active) {
    drained.push_back(weights_[static_cast<std::size_t>(i)] * virtual_time);
  }
  const double tolerance = 1e-9 * bytes;
  std::vector<double> rates;
  while (!active.empty()) {
    fill_rates(active, rates);
    double step = (bytes - drained[0]) / rates[0];
    for (std::size_t a = 0; a < active.size(); ++a) {
      const bool issuing = drained[a] < threshold - tolerance;
      step = std::min(step, ((issuing ? threshold : bytes) - drained[a]) / rates[a]);
    }
    time += step;
    std::size_t kept = 0;
    for (std::size_t a = 0; a < active.size(); ++a) {
      const bool was_issuing = drained[a] < threshold - tolerance;
      const double now = drained[a] + rates[a] * step;
      if (was_issuing && now >= threshold - tolerance) {
        times[static_cast<std::size_t>(active[a])] = time;
      }
      if (now < bytes - tolerance) {
        active[kept] = active[a];
        drained[kept] = now;
        ++kept;
      }
    }
    active.resize(kept);
    drained.resize(kept);
  }
}

}  // namespace xstage::model
