// A workload: one operator of a model at one shape, the same whatever runs it. Files are read and
// written by src/io; the schema is in docs/planning.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "xstage/data_type.hpp"

namespace xstage {

// Attention whose heads are spread over ranks and whose output is spread over the sequence
// (Ulysses).
struct AttentionWorkload {
  int batch = 1;
  int sequence = 0;      // rows of q, k and v, text included
  int num_heads = 0;     // in total
  int num_kv_heads = 0;  // 0: as many as heads
  int head_dim = 128;    // 64 or 128
  DataType dtype = DataType::bf16;
  bool causal = false;
  // Rows at either end that every rank keeps a copy of (text tokens).
  int replicated_prefix = 0;
  int replicated_suffix = 0;
};

// A mixture-of-experts layer whose experts are spread over ranks.
struct MoeWorkload {
  int tokens_per_rank = 0;
  int hidden = 0;
  int intermediate = 0;  // after the gate
  int num_experts = 0;
  int top_k = 0;
  int num_shared_experts = 0;
  DataType dtype = DataType::fp8;
  // Popularity of the i-th most popular expert is proportional to 1 / i^skew; 0: all alike. Which
  // expert is popular, and who is routed where, follows from `seed`.
  double skew = 0;
  std::uint64_t seed = 1;
};

struct Workload {
  static constexpr int kSchemaVersion = 1;
  static constexpr int kMaxRanks = 72;
  std::string name;
  std::string description;
  std::string source;  // of the shape
  std::variant<AttentionWorkload, MoeWorkload> op;
};

// Throws Error(usage) naming the field, its value and what is legal.
void validate(const Workload& workload);

// Files. All throw Error(bad_file) with file, place and reason.
[[nodiscard]] Workload parse_workload(std::string_view text, std::string_view file_name,
                                      std::vector<std::string>* warnings = nullptr);
[[nodiscard]] Workload read_workload(const std::filesystem::path& path,
                                     std::vector<std::string>* warnings = nullptr);
[[nodiscard]] std::string format_workload(const Workload& workload);

// A path (it has a '/' or ends in ".json") or the name of one that ships. Error(usage) names those.
[[nodiscard]] std::filesystem::path find_workload(std::string_view name_or_path);
[[nodiscard]] std::vector<std::string> shipped_workloads();

}  // namespace xstage
