// How long the expert-parallel layer takes on this machine, phase by phase. No CUDA header.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "xstage/group.hpp"
#include "xstage/moe.hpp"
#include "xstage/peers.hpp"

namespace xstage::moe {

// Median and spread of samples, us.
struct Spread {
  double median = 0;
  double p10 = 0;
  double p90 = 0;
  std::vector<double> samples;  // as they came
};

// One way to move the rows.
struct Way {
  MoeTransfer dispatch = MoeTransfer::pull;
  MoeTransfer combine = MoeTransfer::pull;
  bool send_once = true;
};

struct LayerRun {
  MoeShape shape;      // max_tokens: of all `tokens` below
  int num_tokens = 0;  // of each rank
  int num_ranks = 2;
  // GPUs of the ranks that compute, the first ones; the others are emulated.
  std::vector<int> devices = {0};
  // Instead: one rank per process, this process's on devices[0]. num_ranks is the group's.
  Group* group = nullptr;
  Placement ghosts = Placement::device;  // of emulated ranks: local memory or pinned host memory
  double skew = 0;                       // popularity of the i-th expert ~ 1 / i^skew
  std::uint64_t seed = 1;
  std::vector<Way> ways = {Way{}};
  int num_repeats = 20;
  bool with_products = true;  // false: the data movement alone
};

// What a rank moves and multiplies in a call; of the first rank.
struct LayerVolume {
  std::int64_t rows = 0;             // of its experts, routed
  std::int64_t padded_rows = 0;      // with the padding to 64, shared experts included
  std::int64_t active_experts = 0;   // with at least one row
  std::int64_t full_tiles = 0;       // of 128 rows of an expert, more than 64 of them in use
  std::int64_t half_tiles = 0;       // the others
  double products_flop = 0;          // 6 * rows * hidden * intermediate
  double weight_bytes = 0;           // of active experts
  double pool_bytes = 0;             // rows of x that it writes into its pool
  double dispatch_remote_bytes = 0;  // that come from other ranks, each row by itself
  double dispatch_unique_bytes = 0;  // the same, each token once
  double combine_bytes = 0;          // rows that its tokens' sums read
  double combine_remote_bytes = 0;   // of these from other ranks
};

struct LayerTimes {
  Way way;
  // Of the slowest computing rank. stage: copying x to where peers read, which callers that write
  // there themselves don't pay; not part of `whole`.
  Spread stage, route, dispatch, linear1, linear2, scatter, meet, sum;
  Spread whole;         // a graph of all phases but stage
  bool finite = false;  // y of every computing rank
  std::size_t peer_bytes = 0;
  std::size_t workspace_bytes = 0;
};

// A tile of 128 x 256 outputs takes tile_ns + step_ns per 128 of K, one of up to 64 rows half of
// the steps: what makes the times of both products of a run. The planner's model of a grouped GEMM.
struct TileTimes {
  double step_ns = 0;
  double tile_ns = 0;
};

struct LayerResult {
  LayerVolume volume;
  std::vector<LayerTimes> ways;
  bool emulated = false;
  int num_sms = 0;  // that each rank used
};

// Rates of this machine in the same process, B/ns.
struct MachineRates {
  double local_copy = 0;  // bytes copied, not read plus written
  double local_read = 0;
  double to_host = 0;  // copy engine, pinned memory
  double from_host = 0;
  double peer_copy = 0;  // copy engine to the second GPU; 0: there is none
};

[[nodiscard]] MachineRates measure_rates(const std::vector<int>& devices);

// Random weights and inputs; every way of `run` is measured in turn, repeat by repeat. All ranks
// meet on the GPU before the clock starts. Collective in a group; the same result on all ranks.
// Throws as MoeLayer does.
[[nodiscard]] LayerResult measure_layer(const LayerRun& run,
                                        const std::function<void(const std::string&)>& progress);

}  // namespace xstage::moe
