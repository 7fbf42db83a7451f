// Workloads as values: words and what is legal. Files are src/io's.
#include "xstage/workload.hpp"

#include <cmath>
#include <string>

#include "xstage/error.hpp"

namespace xstage {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& field,
                         const std::string& value, const std::string& legal) {
  throw Error(ErrorCategory::usage,
              "workload " + name + ": " + field + " " + value + ": legal " + legal);
}

void check(const std::string& name, const char* field, std::int64_t value, std::int64_t low,
           std::int64_t high) {
  if (value < low || value > high) {
    refuse(name, field, std::to_string(value), std::to_string(low) + ".." + std::to_string(high));
  }
}

void validate_attention(const std::string& name, const AttentionWorkload& w) {
  check(name, "batch", w.batch, 1, 65536);
  check(name, "sequence", w.sequence, 1, 16'777'216);
  check(name, "heads", w.num_heads, 1, 1024);
  if (w.num_kv_heads != 0) {
    check(name, "kv_heads", w.num_kv_heads, 1, w.num_heads);
    if (w.num_heads % w.num_kv_heads != 0) {
      refuse(name, "kv_heads", std::to_string(w.num_kv_heads),
             "a divisor of the " + std::to_string(w.num_heads) + " heads");
    }
  }
  if (w.head_dim != 64 && w.head_dim != 128)
    refuse(name, "head_dim", std::to_string(w.head_dim), "64 or 128");
  if (w.dtype == DataType::fp8) refuse(name, "dtype", "fp8", "bf16 or fp16");
  check(name, "replicated_prefix", w.replicated_prefix, 0, w.sequence);
  check(name, "replicated_suffix", w.replicated_suffix, 0, w.sequence - w.replicated_prefix);
  // Output elements of one batch entry stay addressable, and so does the simulator.
  const double rows = static_cast<double>(w.batch) * w.sequence * w.num_heads;
  if (rows > 4e9) refuse(name, "batch x sequence x heads", std::to_string(rows), "up to 4e9");
}

void validate_moe(const std::string& name, const MoeWorkload& w) {
  check(name, "tokens_per_rank", w.tokens_per_rank, 0, 1'048'576);
  check(name, "hidden", w.hidden, 64, 65'536);
  check(name, "intermediate", w.intermediate, 64, 65'536);
  check(name, "experts", w.num_experts, 1, 4096);
  check(name, "top_k", w.top_k, 1, w.num_experts < 32 ? w.num_experts : 32);
  check(name, "shared_experts", w.num_shared_experts, 0, 8);
  if (w.dtype == DataType::fp16) refuse(name, "dtype", "fp16", "bf16 or fp8");
  if (!(w.skew >= 0 && w.skew <= 2)) refuse(name, "skew", std::to_string(w.skew), "0..2");
}

}  // namespace

DataType parse_data_type(std::string_view word) {
  for (const DataType type : {DataType::bf16, DataType::fp16, DataType::fp8}) {
    if (word == to_string(type)) return type;
  }
  throw Error(ErrorCategory::usage, "data type '" + std::string(word) + "': legal bf16, fp16, fp8");
}

void validate(const Workload& workload) {
  if (const auto* attention = std::get_if<AttentionWorkload>(&workload.op)) {
    validate_attention(workload.name, *attention);
  } else {
    validate_moe(workload.name, std::get<MoeWorkload>(workload.op));
  }
}

}  // namespace xstage
