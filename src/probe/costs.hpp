// Small costs around a store: fences, flags, round trips; and the rates of local memory and of the
// copy engines that a link is judged by.
#pragma once

#include <vector>

#include "probe/link.hpp"

namespace xstage::probing {

// Medians over `num_rounds`, one thread on an idle link, ns.
struct FenceCosts {
  double fence_idle_ns = 0;   // system-scope fence, nothing outstanding
  double store_fence_ns = 0;  // one 16-byte remote store, then the fence
  // Of one 8 KiB bulk store (copy engine, sm_90 on), each step alone, one after the other.
  double proxy_fence_ns = 0;  // ordinary shared-memory writes before the engine's reads
  double bulk_issue_ns = 0;
  double bulk_commit_ns = 0;
  double bulk_read_ns = 0;        // wait until the source has been read
  double bulk_complete_ns = 0;    // then until the engine calls it complete
  double bulk_fence_ns = 0;       // then a system-scope fence
  double store_release_ns = 0;    // 16-byte store, then a flag by release: issue time of both
  double load_round_trip_ns = 0;  // one 4-byte remote load
};
[[nodiscard]] FenceCosts measure_fences(const Link& link, int num_rounds);

// One way of a flag between two GPUs: half of the median round trip over `num_rounds`.
[[nodiscard]] double measure_flag_one_way_ns(const Link& there, const Link& back, int num_rounds);

// Rates in B/ns. Local memory counts bytes read, or read plus written; the copy engine one way.
[[nodiscard]] double measure_local_read_rate(const Link& link);
[[nodiscard]] double measure_local_copy_rate(const Link& link);
[[nodiscard]] double measure_copy_engine_rate(const Link& link);

// Stores of `link` while the peer reads this GPU's memory (a kernel on a peer GPU, the copy engine
// towards host memory). Rates of both, B/ns; `alone` are the same with the other idle.
struct SharedEgress {
  double store_alone = 0;
  double read_alone = 0;
  double store_together = 0;
  double read_together = 0;
};
[[nodiscard]] SharedEgress measure_shared_egress(Link& link, StoreKind kind);

// Step of the global timer, ns: the precision of a common start.
[[nodiscard]] double measure_timer_step_ns(const Link& link);

}  // namespace xstage::probing
