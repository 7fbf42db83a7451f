// What stores do to local loads of the same SM.
#pragma once

#include <vector>

#include "probe/link.hpp"

namespace xstage::probing {

struct LoadSpec {
  bool stores = true;                // false: the control, loads alone
  StoreKind kind = StoreKind::bulk;  // register16 or bulk
  Send send;
  std::uint32_t bytes = 8192;  // of a burst
  double gap_ns = 3000;        // spin after a burst
  int num_bursts = 64;
  bool aligned = false;   // every burst of all SMs starts at one instant (lockstep)
  int num_in_flight = 1;  // loads of 16 KiB, 1..4
  std::uint32_t seed = 1;
};

struct LoadRun {
  double load_rate = 0;  // B/ns per SM, mean over SMs, whole run
  double latency_mean_ns = 0;
  double latency_max_ns = 0;
  double store_rate = 0;                 // B/ns, all SMs
  std::vector<double> mean_by_burst_ns;  // loads that ended in burst i or the gap after it
  std::vector<double> max_by_burst_ns;   // worst SM
};

[[nodiscard]] LoadRun run_loads(const Link& link, const LoadSpec& spec);

}  // namespace xstage::probing
