// The serial exchange as data: which rows of which heads go where. Pure: no CUDA. The push kernel
// and the copy engine read the same plan, so they move the same bytes.
//
// gather_plan: after attention, [batch, all rows, this rank's heads] into every owner's
//   [batch, its rows, all heads] (prefix, shard, suffix).
// scatter_plan: before attention, [batch, own rows, all heads] of q, k and v into every rank's
//   [batch, all rows, its heads]; replicated rows stay at home, since everybody has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "xstage/attention_order.hpp"
#include "xstage/tensor.hpp"

namespace xstage::attention {

inline constexpr int kMaxPushTensors = 3;
inline constexpr int kMaxRowMoves = 3;                     // prefix, shard, suffix
inline constexpr std::int32_t kPushTaskBytes = 12 * 1024;  // what a mover handles at once, at most

struct RowMove {
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int32_t num_rows = 0;
};

// Rows of some heads for one owner. Strides in bytes. Heads that lie beside each other on both
// sides move as one unit of up to kPushTaskBytes; a task is a block of units of one batch and group
// of heads.
struct PushPart {
  const char* source = nullptr;
  char* destination = nullptr;
  std::int64_t source_batch = 0;
  std::int64_t source_row = 0;
  std::int64_t source_head = 0;
  std::int64_t destination_batch = 0;
  std::int64_t destination_row = 0;
  std::int64_t destination_head = 0;
  RowMove moves[kMaxRowMoves];
  std::int32_t heads_per_group = 1;
  std::int32_t num_groups = 0;
  std::int32_t unit_bytes = 0;       // of a row of one group
  std::int32_t last_unit_bytes = 0;  // of the last group, which may be smaller
  std::int32_t rows_per_task = 1;
  std::int32_t first_task = 0;
  std::int32_t num_rows = 0;  // of all moves
  bool is_remote = false;
};

struct PushPlan {
  std::int32_t num_batches = 0;
  std::int32_t num_owners = 0;
  std::int32_t num_tasks = 0;
  std::int64_t bytes = 0;         // of all parts
  std::int64_t remote_bytes = 0;  // of parts whose owner is another rank
  std::int64_t head_bytes = 0;
  std::vector<PushPart> parts;  // peers first, rotated from the own rank on; the own ones last
};

// Where rows of the full sequence go in the buffer of `owner`.
[[nodiscard]] std::vector<RowMove> gather_moves(const SequenceShards& shards, int owner);
// Where rows of this rank's buffer go in the full sequence of rank `to`.
[[nodiscard]] std::vector<RowMove> scatter_moves(const SequenceShards& shards, int to);

// `source`: all rows of this rank's heads. `destinations[p]`: this rank's heads of owner p's
// buffer. Throw Error(usage) that names what does not fit.
[[nodiscard]] PushPlan gather_plan(const SequenceShards& shards, const TensorView& source,
                                   std::span<const TensorView> destinations);

// One tensor of a scatter: `source` holds this rank's rows of all heads; `destinations[p]` all rows
// of rank p's heads, which are heads first_heads[p] and on of the source.
struct ScatterTensor {
  TensorView source;
  std::span<const TensorView> destinations;
  std::span<const std::int64_t> first_heads;
};
[[nodiscard]] PushPlan scatter_plan(const SequenceShards& shards,
                                    std::span<const ScatterTensor> tensors);

// The same exchange of source rows [begin, end) alone.
[[nodiscard]] PushPlan rows_of_plan(const PushPlan& plan, std::int32_t begin, std::int32_t end);

// Heads [first, first + num) of a tensor.
[[nodiscard]] TensorView heads_of(TensorView tensor, std::int64_t first, std::int64_t num) noexcept;

}  // namespace xstage::attention
