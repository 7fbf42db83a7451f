// What tiles of our kernels cost without communication, and what the usual ways to exchange cost.
// Written by benchmarks; valid until the kernels change. Schema in docs/planning.md.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "xstage/workload.hpp"

namespace xstage {

// One attention kernel: a tile of block_rows query rows takes tile_ns + step_ns per key block when
// all SMs of the GPU work.
struct AttentionCost {
  DataType dtype = DataType::bf16;
  int head_dim = 128;
  int block_rows = 128;
  int block_keys = 160;
  double step_ns = 0;
  double tile_ns = 0;  // prologue and epilogue
  double part_ns = 0;  // added for each part of a tile that is split along keys
  bool estimated = true;
};

// One grouped GEMM of the MoE: an output tile of up to block_m rows and block_n columns takes
// tile_ns + step_ns per block_k of K; with half of the rows or fewer, half of the step. The weights
// of a tile that are not in the L2 cache come from memory.
struct MoeCost {
  DataType dtype = DataType::fp8;
  int block_m = 128;
  int block_n = 256;
  int block_k = 128;
  double step_ns = 0;
  double tile_ns = 0;
  bool estimated = true;
};

// A serial exchange after attention: what it adds, against the bytes that a rank sends. Linear
// between points and beyond the last.
struct ExchangePoint {
  double bytes = 0;
  double added_ns = 0;
};
struct ExchangeCost {
  std::string name;    // "copy engine", "NCCL + permutes"
  std::string link;    // name of the link profile that it was measured on
  std::string source;  // "measured, 2 ranks"
  std::vector<ExchangePoint> points;
};

struct TileCosts {
  static constexpr int kSchemaVersion = 1;
  std::string name;
  std::string gpu;
  int num_sms = 132;
  double memory_rate = 0;  // B/ns, local memory, reading
  double launch_ns = 0;    // of a kernel
  double barrier_ns = 0;   // of all ranks
  // True: derived from published or dense figures, not from our kernels. Entries may say otherwise.
  bool estimated = true;
  std::string source;
  std::vector<AttentionCost> attention;
  std::vector<MoeCost> moe;
  std::vector<ExchangeCost> exchanges;
  std::string hash;  // of the file; filled by reading

  // Error(usage) names what there is.
  [[nodiscard]] const AttentionCost& attention_for(DataType dtype, int head_dim) const;
  [[nodiscard]] const MoeCost& moe_for(DataType dtype) const;
};

// One measured call of attention: what the busiest SM was given, and how long the call took.
struct AttentionTiming {
  double num_steps = 0;  // key blocks
  double num_tiles = 0;  // parts count as well
  double num_parts = 0;
  double call_ns = 0;
};
struct AttentionCostFit {
  double step_ns = 0;
  double tile_ns = 0;
  double part_ns = 0;
  double worst_error = 0;  // relative, over the timings
};
// The three costs that fit all timings best, by least squares of relative errors; none is negative:
// what the timings cannot tell from nothing is 0. At least one timing with steps: Error(usage).
[[nodiscard]] AttentionCostFit fit_attention_cost(std::span<const AttentionTiming> timings,
                                                  double launch_ns);

[[nodiscard]] double exchange_ns(const ExchangeCost& cost, double bytes);

// Throw Error(bad_file) with file, place and reason.
[[nodiscard]] TileCosts parse_costs(std::string_view text, std::string_view file_name,
                                    std::vector<std::string>* warnings = nullptr);
[[nodiscard]] TileCosts read_costs(const std::filesystem::path& path,
                                   std::vector<std::string>* warnings = nullptr);
[[nodiscard]] std::string format_costs(const TileCosts& costs);

// A path or the name of one that ships ("" is the default estimate). Error(usage) names those.
[[nodiscard]] std::filesystem::path find_costs(std::string_view name_or_path);

}  // namespace xstage
