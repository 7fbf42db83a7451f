// Programs of the simulator for our two fused operators: they hand out tasks by the same orders and
// the same claim protocol that the kernels run.
#pragma once

#include <cstdint>
#include <vector>

#include "xstage/attention_order.hpp"
#include "xstage/moe_order.hpp"
#include "xstage/simulate.hpp"
#include "xstage/tile_costs.hpp"
#include "xstage/workload.hpp"

namespace xstage {

// ---- attention
// -----------------------------------------------------------------------------------

struct AttentionRun {
  AttentionWorkload workload;
  AttentionCost cost;
  int num_ranks = 1;
  TileOrder order = TileOrder::remote_first;
  bool split_tail = false;
  bool local_only = false;  // every owner is the rank itself: the kernel without communication
};

// The order that rank `rank` runs, and whose rows are whose.
[[nodiscard]] SequenceShards attention_shards(const AttentionRun& run, int rank);
[[nodiscard]] AttentionOrder attention_order(const AttentionRun& run, int rank, int num_ctas);

[[nodiscard]] SimReport simulate_attention(const SimMachine& machine, const SimSender& sender,
                                           const AttentionRun& run, const SimOptions& options = {});

// ---- MoE
// -----------------------------------------------------------------------------------------

// Who is routed where: tokens that each rank's experts receive.
struct MoeRouting {
  int num_ranks = 1;
  int experts_per_rank = 1;
  std::vector<std::int32_t> tokens;  // [expert], from all ranks
  // Of the (token, expert) pairs that a rank receives from others, the part that would be left if a
  // token came once for all its experts on that rank.
  double unique_share = 1;
};

// Deterministic: the same workload gives the same routing. num_experts must divide by num_ranks.
[[nodiscard]] MoeRouting route(const MoeWorkload& workload, int num_ranks);

struct MoeRun {
  MoeWorkload workload;
  MoeCost cost;
  int num_ranks = 1;
  // The ranks that compute, one per GPU; empty: all. If fewer than num_ranks, what goes to or comes
  // from any other rank crosses the link to the next GPU (emulated ranks): volume and pace of the
  // egress are those of all ranks, fan-in and barriers are not.
  std::vector<int> computing_ranks;
  MoeSchedule schedule = MoeSchedule::interleaved;
  bool proportional_claims = true;
  bool unique_tokens =
      false;  // tokens and partial results cross once per rank, not once per expert
  bool local_only = false;
  double memory_rate = 0;  // B/ns; weights and the combine step
  int num_sms = 132;
};

[[nodiscard]] SimReport simulate_moe(const SimMachine& machine, const SimSender& sender,
                                     const MoeRun& run, const MoeRouting& routing,
                                     const SimOptions& options = {});

}  // namespace xstage
