#include "attention/push_plan.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "xstage/error.hpp"

namespace xstage::attention {
namespace {

constexpr std::int64_t kElementBytes = 2;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCategory::usage, "exchange: " + message);
}

void check_side(const std::string& name, const TensorView& t) {
  if (t.head_dim < 8 || t.head_dim % 8 != 0 || t.head_dim * kElementBytes > kPushTaskBytes) {
    refuse(name + ".head_dim is " + std::to_string(t.head_dim) +
           ": legal are multiples of 8 up to " + std::to_string(kPushTaskBytes / kElementBytes));
  }
  if (t.element_stride != 1) {
    refuse(name + ".element_stride is " + std::to_string(t.element_stride) + ": legal 1");
  }
  if (reinterpret_cast<std::uintptr_t>(t.data) % 16 != 0) {
    refuse(name + ".data is not a multiple of 16 bytes");
  }
  const auto check_stride = [&](const char* what, std::int64_t stride, std::int64_t size) {
    if (size > 1 && (stride < 0 || stride * kElementBytes % 16 != 0)) {
      refuse(name + "." + what + " is " + std::to_string(stride) +
             " elements: legal are multiples of 8 (16 bytes)");
    }
  };
  check_stride("batch_stride", t.batch_stride, t.num_batches);
  check_stride("row_stride", t.row_stride, t.num_rows);
  check_stride("head_stride", t.head_stride, t.num_heads);
}

void check_equal(const std::string& name, std::int64_t value, const std::string& other,
                 std::int64_t expected) {
  if (value != expected) {
    refuse(name + " is " + std::to_string(value) + ", but " + other + " is " +
           std::to_string(expected));
  }
}

// Both sides of a part: the same batches and heads, and the moves stay inside.
void check_part(const std::string& name, const TensorView& from, const TensorView& to,
                std::span<const RowMove> moves) {
  check_side(name + " source", from);
  check_side(name + " destination", to);
  check_equal(name + " destination.dtype", static_cast<int>(to.dtype), "the source's",
              static_cast<int>(from.dtype));
  check_equal(name + " destination.num_batches", to.num_batches, "the source's", from.num_batches);
  check_equal(name + " destination.num_heads", to.num_heads, "the source's", from.num_heads);
  check_equal(name + " destination.head_dim", to.head_dim, "the source's", from.head_dim);
  bool moves_any = false;
  for (const RowMove& move : moves) {
    moves_any |= move.num_rows > 0;
    if (move.from + move.num_rows > from.num_rows || move.to + move.num_rows > to.num_rows) {
      refuse(name + ": rows " + std::to_string(move.from) + ".." +
             std::to_string(move.from + move.num_rows) + " of " + std::to_string(from.num_rows) +
             " to " + std::to_string(move.to) + ".. of " + std::to_string(to.num_rows) +
             " do not fit");
    }
  }
  const bool is_empty = !moves_any || from.num_batches == 0 || from.num_heads == 0;
  if (!is_empty && (from.data == nullptr || to.data == nullptr)) {
    refuse(name + ": " + (from.data == nullptr ? "the source" : "the destination") + " is null");
  }
}

PushPart make_part(const TensorView& from, const TensorView& to, std::span<const RowMove> moves) {
  PushPart part;
  part.source = static_cast<const char*>(from.data);
  part.destination = static_cast<char*>(to.data);
  part.source_batch = from.batch_stride * kElementBytes;
  part.source_row = from.row_stride * kElementBytes;
  part.source_head = from.head_stride * kElementBytes;
  part.destination_batch = to.batch_stride * kElementBytes;
  part.destination_row = to.row_stride * kElementBytes;
  part.destination_head = to.head_stride * kElementBytes;
  std::copy(moves.begin(), moves.end(), part.moves);
  for (const RowMove& move : moves) part.num_rows += move.num_rows;

  const std::int64_t head_bytes = from.head_dim * kElementBytes;
  const auto num_heads = static_cast<std::int32_t>(from.num_heads);
  if (num_heads == 0) return part;
  const bool adjacent = part.source_head == head_bytes && part.destination_head == head_bytes;
  const auto most = adjacent ? static_cast<std::int32_t>(kPushTaskBytes / head_bytes) : 1;
  // Groups as equal as possible: no small one is left over.
  const std::int32_t groups = ceil_div(num_heads, most);
  part.heads_per_group = ceil_div(num_heads, groups);
  part.num_groups = ceil_div(num_heads, part.heads_per_group);
  part.unit_bytes = static_cast<std::int32_t>(part.heads_per_group * head_bytes);
  part.last_unit_bytes = static_cast<std::int32_t>(
      (num_heads - (part.num_groups - 1) * part.heads_per_group) * head_bytes);
  part.rows_per_task = kPushTaskBytes / part.unit_bytes;
  return part;
}

void add_part(PushPlan& plan, const PushPart& part, bool is_remote) {
  const std::int64_t tasks = std::int64_t{plan.num_batches} * part.num_groups *
                             ceil_div(part.num_rows, part.rows_per_task);
  if (plan.num_tasks + tasks > std::numeric_limits<std::int32_t>::max()) {
    refuse("more than 2^31 tasks");
  }
  const std::int64_t row_bytes =
      part.num_groups == 0
          ? 0
          : std::int64_t{part.num_groups - 1} * part.unit_bytes + part.last_unit_bytes;
  const std::int64_t bytes = std::int64_t{plan.num_batches} * part.num_rows * row_bytes;
  plan.bytes += bytes;
  plan.remote_bytes += is_remote ? bytes : 0;
  plan.parts.push_back(part);
  plan.parts.back().first_task = plan.num_tasks;
  plan.parts.back().is_remote = is_remote;
  plan.num_tasks += static_cast<std::int32_t>(tasks);
}

void require_owners(const SequenceShards& shards, std::size_t num_destinations) {
  if (!shards.valid()) refuse("the split of the sequence is not valid");
  check_equal("destinations", static_cast<std::int64_t>(num_destinations), "the number of ranks",
              shards.num_ranks);
}

int rotated(const SequenceShards& shards, int idx) {
  return (shards.rank + 1 + idx) % shards.num_ranks;
}

}  // namespace

TensorView heads_of(TensorView tensor, std::int64_t first, std::int64_t num) noexcept {
  if (tensor.data != nullptr) {
    tensor.data = static_cast<char*>(tensor.data) + first * tensor.head_stride * kElementBytes;
  }
  tensor.num_heads = num;
  return tensor;
}

std::vector<RowMove> gather_moves(const SequenceShards& shards, int owner) {
  const std::int32_t first = shards.first_row[owner];
  const std::int32_t count = shards.first_row[owner + 1] - first;
  return {{0, 0, shards.prefix_rows},
          {first, shards.prefix_rows, count},
          {shards.first_row[shards.num_ranks], shards.prefix_rows + count, shards.suffix_rows}};
}

std::vector<RowMove> scatter_moves(const SequenceShards& shards, int to) {
  std::vector<RowMove> moves = gather_moves(shards, shards.rank);
  for (RowMove& move : moves) std::swap(move.from, move.to);
  if (to != shards.rank) return {moves[1]};
  return moves;
}

PushPlan gather_plan(const SequenceShards& shards, const TensorView& source,
                     std::span<const TensorView> destinations) {
  require_owners(shards, destinations.size());
  check_equal("the source's rows", source.num_rows, "the split's", shards.num_rows());
  PushPlan plan;
  plan.num_batches = static_cast<std::int32_t>(source.num_batches);
  plan.num_owners = shards.num_ranks;
  plan.head_bytes = source.head_dim * kElementBytes;
  for (int i = 0; i < shards.num_ranks; ++i) {
    const int owner = rotated(shards, i);
    const auto moves = gather_moves(shards, owner);
    const TensorView& to = destinations[static_cast<std::size_t>(owner)];
    check_part("owner " + std::to_string(owner), source, to, moves);
    add_part(plan, make_part(source, to, moves), owner != shards.rank);
  }
  return plan;
}

PushPlan scatter_plan(const SequenceShards& shards, std::span<const ScatterTensor> tensors) {
  if (tensors.empty() || tensors.size() > kMaxPushTensors) {
    refuse(std::to_string(tensors.size()) + " tensors: legal 1.." +
           std::to_string(kMaxPushTensors));
  }
  PushPlan plan;
  plan.num_batches = static_cast<std::int32_t>(tensors.front().source.num_batches);
  plan.num_owners = shards.num_ranks;
  plan.head_bytes = tensors.front().source.head_dim * kElementBytes;
  for (const ScatterTensor& t : tensors) {
    require_owners(shards, t.destinations.size());
    require_owners(shards, t.first_heads.size());
    check_equal("a source's rows", t.source.num_rows, "this rank's",
                shards.owner_rows(shards.rank));
    check_equal("a source's batches", t.source.num_batches, "the first one's", plan.num_batches);
    check_equal("a source's head_dim", t.source.head_dim * kElementBytes, "the first one's",
                plan.head_bytes);
  }
  for (int i = 0; i < shards.num_ranks; ++i) {
    const auto owner = static_cast<std::size_t>(rotated(shards, i));
    const bool is_remote = static_cast<int>(owner) != shards.rank;
    const auto moves = scatter_moves(shards, static_cast<int>(owner));
    for (const ScatterTensor& t : tensors) {
      const TensorView& to = t.destinations[owner];
      const std::int64_t first = t.first_heads[owner];
      if (first < 0 || to.num_heads < 0 || first + to.num_heads > t.source.num_heads) {
        refuse("heads " + std::to_string(first) + ".." + std::to_string(first + to.num_heads) +
               " of rank " + std::to_string(owner) + ": legal 0.." +
               std::to_string(t.source.num_heads));
      }
      const TensorView from = heads_of(t.source, first, to.num_heads);
      check_part("rank " + std::to_string(owner), from, to, moves);
      add_part(plan, make_part(from, to, moves), is_remote);
    }
  }
  return plan;
}

PushPlan rows_of_plan(const PushPlan& plan, std::int32_t begin, std::int32_t end) {
  PushPlan some;
  some.num_batches = plan.num_batches;
  some.num_owners = plan.num_owners;
  some.head_bytes = plan.head_bytes;
  for (PushPart part : plan.parts) {
    part.num_rows = 0;
    for (RowMove& move : part.moves) {
      const std::int32_t first = std::max(move.from, begin);
      const std::int32_t last = std::min(move.from + move.num_rows, end);
      move.to += first - move.from;
      move.from = first;
      move.num_rows = std::max(0, last - first);
      part.num_rows += move.num_rows;
    }
    add_part(some, part, part.is_remote);
  }
  return some;
}

}  // namespace xstage::attention
