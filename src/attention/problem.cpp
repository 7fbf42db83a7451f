#include "attention/problem.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "attention/forward_shape.hpp"
#include "xstage/error.hpp"

namespace xstage::attention {
namespace {

constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxStrideBytes = std::int64_t{1} << 40;
constexpr std::int64_t kElementBytes = 2;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCategory::usage, "attention: " + message);
}

void check_size(const std::string& name, std::int64_t size) {
  if (size < 0 || size > kMaxSize) {
    refuse(name + " is " + std::to_string(size) + ": legal 0.." + std::to_string(kMaxSize));
  }
}

void check_stride(const std::string& name, std::int64_t stride, std::int64_t size) {
  if (size <= 1) return;  // never used
  const bool in_range = stride > 0 && stride < kMaxStrideBytes / kElementBytes;
  if (!in_range || stride * kElementBytes % 16 != 0) {
    refuse(name + " is " + std::to_string(stride) +
           " elements: legal are positive multiples of 8 (16 bytes) below 2^39 (2^40 bytes)");
  }
}

void check_tensor(const std::string& name, const TensorView& t) {
  if (t.dtype != DataType::bf16 && t.dtype != DataType::fp16) {
    refuse(name + ".dtype is " + std::to_string(static_cast<int>(t.dtype)) + ": legal bf16, fp16");
  }
  check_size(name + ".num_batches", t.num_batches);
  check_size(name + ".num_rows", t.num_rows);
  check_size(name + ".num_heads", t.num_heads);
  if (t.head_dim != 64 && t.head_dim != 128) {
    refuse(name + ".head_dim is " + std::to_string(t.head_dim) + ": legal 64, 128");
  }
  if (t.element_stride != 1) {
    refuse(name + ".element_stride is " + std::to_string(t.element_stride) + ": legal 1");
  }
  if (t.num_batches == 0 || t.num_rows == 0 || t.num_heads == 0) return;  // nothing is addressed
  check_stride(name + ".batch_stride", t.batch_stride, t.num_batches);
  check_stride(name + ".row_stride", t.row_stride, t.num_rows);
  check_stride(name + ".head_stride", t.head_stride, t.num_heads);
  if (t.data == nullptr) refuse(name + ".data is null");
  const auto address = reinterpret_cast<std::uintptr_t>(t.data);
  if (address % 16 != 0) {
    refuse(name + ".data is at " + std::to_string(address) +
           ", which is not a multiple of 16 bytes");
  }
}

void check_equal(const std::string& name, std::int64_t value, const std::string& other,
                 std::int64_t expected) {
  if (value != expected) {
    refuse(name + " is " + std::to_string(value) + ", but " + other + " is " +
           std::to_string(expected));
  }
}

void check_same_kind(const std::string& name, const TensorView& t, const std::string& other,
                     const TensorView& expected) {
  if (t.dtype != expected.dtype) {
    refuse(name + ".dtype is " + std::string(to_string(t.dtype)) + ", but " + other + ".dtype is " +
           std::string(to_string(expected.dtype)));
  }
  check_equal(name + ".head_dim", t.head_dim, other + ".head_dim", expected.head_dim);
  check_equal(name + ".num_batches", t.num_batches, other + ".num_batches", expected.num_batches);
}

void check_options(const AttentionOptions& options, std::int64_t num_key_rows) {
  if (!std::isfinite(options.scale) || options.scale < 0.f) {
    refuse("scale is " + std::to_string(options.scale) +
           ": legal are positive numbers, and 0 for 1/sqrt(head_dim)");
  }
  if (options.kv_len < -1 || options.kv_len > num_key_rows) {
    refuse("kv_len is " + std::to_string(options.kv_len) + ": legal 0.." +
           std::to_string(num_key_rows) + " (the rows of k), and -1 for all");
  }
  if (options.rescale_threshold != kRescaleAsFastest &&
      !(options.rescale_threshold >= 0.f && options.rescale_threshold <= 8.f)) {
    refuse("rescale_threshold is " + std::to_string(options.rescale_threshold) +
           ": legal 0..8, and -1 for what is fastest");
  }
}

AttentionOrder make_order(const Problem& p, const AttentionOptions& options, int num_ctas,
                          const Placement& placement) {
  AttentionGrid grid;
  grid.num_batches = p.num_batches;
  grid.num_heads = p.num_heads;
  grid.num_query_rows = p.num_query_rows;
  grid.num_key_rows = p.num_keys;
  grid.block_rows = kTileRows;
  grid.block_keys = block_keys(p.head_dim, p.causal);
  grid.causal = p.causal;
  const SequenceShards& shards = placement.shards;
  AttentionOrderOptions order;
  order.order = p.causal ? TileOrder::longest_first : placement.order;
  order.num_ctas = num_ctas;
  order.split_tail = options.split_last_wave && !p.causal;
  if (p.causal) {
    const std::int64_t heads =
        kv_heads_in_cache(p.num_keys, p.head_dim) * (p.num_heads / p.num_kv_heads);
    const std::int64_t all = static_cast<std::int64_t>(p.num_batches) * p.num_heads;
    order.heads_per_section = static_cast<std::int32_t>(std::min(heads, all));
  }
  const AttentionOrder split(grid, shards, order);
  if (split.num_tail_ctas() == 0) return split;
  // Blocks that the last wave gets shorter by. Storing and adding up the parts costs about six.
  constexpr std::int32_t kMinSavedBlocks = 6;
  const std::int32_t blocks = ceil_div(grid.num_key_rows, grid.block_keys);
  const std::int32_t share = ceil_div(split.num_tail_tiles() * blocks, split.num_tail_ctas());
  if (blocks - share >= kMinSavedBlocks) return split;
  order.split_tail = false;
  return AttentionOrder(grid, shards, order);
}

}  // namespace

Problem make_problem(const TensorView& q, const TensorView& k, const TensorView& v,
                     const AttentionOptions& options, int num_sms) {
  Placement placement;
  placement.shards.first_row[1] =
      static_cast<std::int32_t>(std::clamp<std::int64_t>(q.num_rows, 0, kMaxSize));
  return make_problem(q, k, v, options, num_sms, placement);
}

Problem make_problem(const TensorView& q, const TensorView& k, const TensorView& v,
                     const AttentionOptions& options, int num_sms, const Placement& placement) {
  check_tensor("q", q);
  check_tensor("k", k);
  check_tensor("v", v);
  check_same_kind("k", k, "q", q);
  check_same_kind("v", v, "k", k);
  check_equal("v.num_rows", v.num_rows, "k.num_rows", k.num_rows);
  check_equal("v.num_heads", v.num_heads, "k.num_heads", k.num_heads);
  check_options(options, k.num_rows);
  if (options.num_sms < 0 || options.num_sms > num_sms) {
    refuse("num_sms is " + std::to_string(options.num_sms) + ": legal 1.." +
           std::to_string(num_sms) + ", and 0 for all");
  }
  if (q.num_heads > 0 && (k.num_heads == 0 || q.num_heads % k.num_heads != 0)) {
    refuse("k.num_heads is " + std::to_string(k.num_heads) +
           ": legal are divisors of q.num_heads, " + std::to_string(q.num_heads));
  }
  Problem p;
  p.dtype = q.dtype;
  p.num_batches = static_cast<std::int32_t>(q.num_batches);
  p.num_heads = static_cast<std::int32_t>(q.num_heads);
  p.num_kv_heads = static_cast<std::int32_t>(k.num_heads);
  p.num_query_rows = static_cast<std::int32_t>(q.num_rows);
  p.num_keys = static_cast<std::int32_t>(options.kv_len < 0 ? k.num_rows : options.kv_len);
  p.head_dim = static_cast<std::int32_t>(q.head_dim);
  p.causal = options.causal;
  p.scale = options.scale > 0.f ? options.scale : 1.f / std::sqrt(static_cast<float>(q.head_dim));
  p.rescale_threshold =
      options.rescale_threshold == kRescaleAsFastest ? 0.f : options.rescale_threshold;
  if (q.num_batches == 0 || q.num_heads == 0 || q.num_rows == 0) return p;

  const std::int64_t num_tiles =
      q.num_batches * q.num_heads * ((q.num_rows + kTileRows - 1) / kTileRows);
  if (q.num_batches * q.num_heads > kMaxSize || num_tiles > kMaxSize / 2) {
    refuse("batches x heads x query blocks is " + std::to_string(num_tiles) + ": legal up to " +
           std::to_string(kMaxSize / 2));
  }
  // Key limits of causal rows are sums of row numbers.
  if (std::max(q.num_rows, k.num_rows) > kMaxSize / 2) {
    refuse("rows of q and k are " + std::to_string(q.num_rows) + " and " +
           std::to_string(k.num_rows) + ": legal up to " + std::to_string(kMaxSize / 2));
  }
  const int available = options.num_sms > 0 ? options.num_sms : num_sms;
  p.order = make_order(p, options, available, placement);
  const bool is_split = p.order.num_tail_ctas() > 0;
  p.num_ctas = is_split ? available : std::min(available, p.order.num_tiles());
  return p;
}

void check_output(const TensorView& q, const TensorView& out) {
  check_tensor("out", out);
  check_same_kind("out", out, "q", q);
  check_equal("out.num_rows", out.num_rows, "q.num_rows", q.num_rows);
  check_equal("out.num_heads", out.num_heads, "q.num_heads", q.num_heads);
}

namespace {

WorkspaceLayout layout_of_parts(std::int32_t num_slots, std::int64_t head_dim) {
  WorkspaceLayout layout;
  const std::size_t threads = static_cast<std::size_t>(num_slots) * kNumGroups * kWarpgroupThreads;
  layout.stats_offset = WorkspaceLayout::kCounterBytes;
  layout.rows_offset = layout.stats_offset + threads * 16;
  layout.bytes = layout.rows_offset + threads * static_cast<std::size_t>(head_dim / 2) * 4;
  return layout;
}

}  // namespace

WorkspaceLayout workspace_layout(const Problem& p) {
  WorkspaceLayout layout;
  if (p.num_ctas == 0) return layout;
  if (p.causal) layout.bytes = WorkspaceLayout::kCounterBytes;
  const std::int32_t num_slots = p.order.num_part_slots();
  return num_slots == 0 ? layout : layout_of_parts(num_slots, p.head_dim);
}

std::size_t max_workspace_bytes(int num_sms, std::int64_t head_dim) {
  return layout_of_parts(2 * num_sms, head_dim).bytes;
}

void check_workspace(const WorkspaceLayout& layout, const Workspace& workspace) {
  if (layout.bytes == 0) return;
  if (workspace.data == nullptr || workspace.bytes < layout.bytes) {
    refuse("workspace holds " + std::to_string(workspace.data == nullptr ? 0 : workspace.bytes) +
           " bytes: at least " + std::to_string(layout.bytes) + " are needed");
  }
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % 256 != 0) {
    refuse("workspace.data is not a multiple of 256 bytes");
  }
}

}  // namespace xstage::attention
