// What the arguments of an attention call ask for, checked. Pure: no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "xstage/attention.hpp"
#include "xstage/attention_order.hpp"

namespace xstage::attention {

struct Problem {
  DataType dtype = DataType::bf16;
  std::int32_t num_batches = 0;
  std::int32_t num_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t num_query_rows = 0;
  std::int32_t num_keys = 0;  // valid ones
  std::int32_t head_dim = 0;
  bool causal = false;
  float scale = 0.f;
  float rescale_threshold = 0.f;
  AttentionOrder order;
  std::int32_t num_ctas = 0;  // 0: nothing to do
};

// Counters and partial results of split tiles; offsets into the workspace. The counters come first
// and at places that no shape's partial results overlap.
struct WorkspaceLayout {
  static constexpr std::size_t kCounterBytes = kAttentionCounterBytes;
  static constexpr std::size_t kTakenOffset = 0;
  static constexpr std::size_t kDoneOffset = 4;
  static constexpr std::size_t kArrivalsOffset = 64;
  std::size_t stats_offset = 0;
  std::size_t rows_offset = 0;
  std::size_t bytes = 0;
};

// Whose rows the result holds, and the order of tiles that this calls for. Causal tiles are always
// walked longest first.
struct Placement {
  SequenceShards shards;
  TileOrder order = TileOrder::linear;
};

// All throw Error(usage).
[[nodiscard]] Problem make_problem(const TensorView& q, const TensorView& k, const TensorView& v,
                                   const AttentionOptions& options, int num_sms);
[[nodiscard]] Problem make_problem(const TensorView& q, const TensorView& k, const TensorView& v,
                                   const AttentionOptions& options, int num_sms,
                                   const Placement& placement);
void check_output(const TensorView& q, const TensorView& out);
[[nodiscard]] WorkspaceLayout workspace_layout(const Problem& problem);
// Enough for every problem of that head dimension on up to num_sms SMs.
[[nodiscard]] std::size_t max_workspace_bytes(int num_sms, std::int64_t head_dim);
void check_workspace(const WorkspaceLayout& layout, const Workspace& workspace);

}  // namespace xstage::attention
