#include "attention/exchange_problem.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "attention/forward_shape.hpp"
#include "xstage/error.hpp"
#include "xstage/samples.hpp"

namespace xstage::attention {
namespace {

constexpr std::int64_t kMaxVectors = std::numeric_limits<std::int32_t>::max();
constexpr std::uint32_t kBoxRowBytes = 128;  // of one panel

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCategory::usage, "attention exchange: " + message);
}

std::string text(std::int64_t value) {
  return std::to_string(value);
}

std::string text(std::span<const std::int64_t> values) {
  std::string line = "[";
  for (std::size_t i = 0; i < values.size(); ++i) line += (i > 0 ? ", " : "") + text(values[i]);
  return line + "]";
}

void check_range(const std::string& name, std::int64_t value, std::int64_t first,
                 std::int64_t last) {
  if (value >= first && value <= last) return;
  refuse(name + " is " + text(value) + ": legal " + text(first) + ".." + text(last));
}

std::vector<std::int64_t> even_splits(std::int64_t total, int num_parts, std::int64_t unit = 1) {
  std::vector<std::int64_t> parts;
  for (int i = 0; i < num_parts; ++i) {
    const std::int64_t rest = total % num_parts;
    parts.push_back((total / num_parts + (i < rest ? 1 : 0)) * unit);
  }
  return parts;
}

// Splits given by the caller: one a rank, none negative, `total` together.
void check_splits(const std::string& name, std::span<const std::int64_t> splits, int num_ranks,
                  std::int64_t total, const std::string& of_what,
                  const std::vector<std::int64_t>& nearest) {
  const std::string legal = ": legal is for example " + text(nearest);
  if (splits.size() != static_cast<std::size_t>(num_ranks)) {
    refuse(name + " has " + text(static_cast<std::int64_t>(splits.size())) + " entries for " +
           text(num_ranks) + " ranks" + legal);
  }
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < splits.size(); ++i) {
    if (splits[i] < 0 || splits[i] > total) {
      refuse(name + "[" + std::to_string(i) + "] is " + text(splits[i]) + ": legal 0.." +
             text(total) + " (" + of_what + ")");
    }
    sum += splits[i];
  }
  if (sum != total) {
    refuse(name + " " + text(splits) + " add up to " + text(sum) + ", but there are " +
           text(total) + " " + of_what + legal);
  }
}

SequenceShards make_shards(const ExchangeRank& who, const AttentionShape& max,
                           const AttentionCall& call, std::int64_t num_rows,
                           std::int64_t num_batches) {
  check_range("prefix_rows", call.prefix_rows, 0, num_rows);
  check_range("suffix_rows", call.suffix_rows, 0, num_rows - call.prefix_rows);
  const std::int64_t sharded = num_rows - call.prefix_rows - call.suffix_rows;
  const auto even = even_splits(sharded, who.num_ranks);
  const bool is_given = !call.seq_splits.empty();
  if (is_given) {
    check_splits("seq_splits", call.seq_splits, who.num_ranks, sharded,
                 "rows between prefix and suffix", even);
  }
  const std::span<const std::int64_t> splits = is_given ? call.seq_splits : even;
  SequenceShards shards;
  shards.num_ranks = who.num_ranks;
  shards.rank = who.rank;
  shards.prefix_rows = static_cast<std::int32_t>(call.prefix_rows);
  shards.suffix_rows = static_cast<std::int32_t>(call.suffix_rows);
  std::int64_t row = call.prefix_rows;
  const std::int64_t room = max.num_batches * rows_per_rank(max, who.num_ranks);
  for (int p = 0; p < who.num_ranks; ++p) {
    shards.first_row[p] = static_cast<std::int32_t>(row);
    row += splits[static_cast<std::size_t>(p)];
    shards.first_row[p + 1] = static_cast<std::int32_t>(row);
    const std::int64_t owned = shards.owner_rows(p);
    if (owned * num_batches > room) {
      refuse("rank " + text(p) + " would own " + text(owned) + " rows of " + text(num_batches) +
             " batches, but its buffer is for " + text(rows_per_rank(max, who.num_ranks)) +
             " rows of " + text(max.num_batches) + ": legal from max_rows_per_rank " +
             text((owned * num_batches + max.num_batches - 1) / max.num_batches) + " on");
    }
  }
  return shards;
}

std::int64_t num_kv_heads(const AttentionShape& max) {
  return max.num_kv_heads > 0 ? max.num_kv_heads : max.num_heads;
}

// Whether heads [first, first + count) use whole KV heads, or one alone.
bool keeps_kv_heads(std::int64_t first, std::int64_t count, std::int64_t heads_per_kv) {
  if (count == 0) return true;
  if (first / heads_per_kv == (first + count - 1) / heads_per_kv) return true;
  return first % heads_per_kv == 0 && count % heads_per_kv == 0;
}

std::vector<std::int64_t> make_head_splits(const AttentionShape& max, const AttentionCall& call,
                                           int num_ranks) {
  const std::int64_t kv_heads = num_kv_heads(max);
  const std::int64_t heads_per_kv = max.num_heads / kv_heads;
  const auto by_kv = even_splits(kv_heads, num_ranks, heads_per_kv);
  const bool is_given = !call.head_splits.empty();
  std::vector<std::int64_t> splits(call.head_splits.begin(), call.head_splits.end());
  if (is_given) {
    check_splits("head_splits", call.head_splits, num_ranks, max.num_heads, "heads", by_kv);
  } else {
    splits = kv_heads >= num_ranks ? by_kv : even_splits(max.num_heads, num_ranks);
  }
  std::int64_t first = 0;
  for (std::size_t rank = 0; rank < splits.size(); ++rank) {
    if (!keeps_kv_heads(first, splits[rank], heads_per_kv)) {
      refuse("rank " + std::to_string(rank) + " would get heads " + text(first) + ".." +
             text(first + splits[rank] - 1) + ", which split a KV head of " + text(heads_per_kv) +
             " heads: legal head_splits are whole KV heads or parts of one, for example " +
             text(by_kv));
    }
    first += splits[rank];
  }
  return splits;
}

void check_tensor_heads(const std::string& name, std::int64_t actual, std::int64_t expected,
                        int rank) {
  if (actual == expected) return;
  refuse(name + ".num_heads is " + text(actual) + ": rank " + text(rank) + " computes " +
         text(expected));
}

std::string why_not_fused(const Problem& problem, const UlyssesOptions& options, int num_ranks) {
  if (options.path == ExchangePath::serial) return "the serial path was asked for";
  if (problem.causal) return "causal: the fused kernel has full attention alone";
  if (problem.head_dim != 128) {
    return "head_dim " + text(problem.head_dim) + ": the fused kernel has 128 alone";
  }
  if (num_ranks > kMaxFusedOwners) {
    return text(num_ranks) + " ranks: the fused kernel stores to " + text(kMaxFusedOwners) +
           " at most";
  }
  return "";
}

}  // namespace

void check_shape(const AttentionShape& max, int num_ranks) {
  check_range("the number of ranks", num_ranks, 1, kMaxRanks);
  if (max.dtype != DataType::bf16 && max.dtype != DataType::fp16) {
    refuse("dtype is " + text(static_cast<int>(max.dtype)) + ": legal bf16, fp16");
  }
  if (max.head_dim != 64 && max.head_dim != 128) {
    refuse("head_dim is " + text(max.head_dim) + ": legal 64, 128");
  }
  check_range("num_batches", max.num_batches, 1, kMaxVectors);
  check_range("max_rows", max.max_rows, 1, kMaxVectors / 2);
  check_range("max_rows_per_rank", max.max_rows_per_rank, 0, max.max_rows);
  check_range("num_heads", max.num_heads, 1, kMaxVectors);
  const std::int64_t kv_heads = num_kv_heads(max);
  if (kv_heads < 1 || max.num_heads % kv_heads != 0) {
    refuse("num_kv_heads is " + text(max.num_kv_heads) + ": legal are divisors of num_heads, " +
           text(max.num_heads) + ", and 0 for as many");
  }
  if (max.num_batches > kMaxVectors / max.max_rows ||
      max.num_batches * max.max_rows > kMaxVectors / max.num_heads) {
    refuse("num_batches x max_rows x num_heads is more than " + text(kMaxVectors) + ": " +
           text(max.num_batches) + " x " + text(max.max_rows) + " x " + text(max.num_heads));
  }
}

BoxSend box_send(const Send& send, std::int64_t head_dim) {
  const bool is_box = send.kind == StoreKind::tensor || send.kind == StoreKind::bulk;
  if (!is_box && send.kind != StoreKind::register16) {
    refuse("send.kind is " + std::string(to_string(send.kind)) +
           ": legal tensor, bulk, register16");
  }
  if (static_cast<int>(send.completion) > static_cast<int>(Completion::visible)) {
    refuse("send.completion is " + text(static_cast<int>(send.completion)) +
           ": legal accepted, read, visible");
  }
  const auto tile_bytes = static_cast<std::uint32_t>(kGroupRows * head_dim * 2);
  const std::uint32_t smallest =
      is_box ? 8 * kBoxRowBytes : static_cast<std::uint32_t>(head_dim * 2);
  if (send.chunk_bytes != 0 && send.chunk_bytes < smallest) {
    refuse("send.chunk_bytes is " + text(send.chunk_bytes) + ": legal from " + text(smallest) +
           " (" + (is_box ? "8 rows of a box" : "one row") + ") on, and 0 for whole tiles");
  }
  BoxSend result;
  result.send = send;
  result.send.kind = is_box ? StoreKind::tensor : StoreKind::register16;
  std::uint32_t chunk = send.chunk_bytes == 0 ? tile_bytes : std::min(send.chunk_bytes, tile_bytes);
  result.box_rows = kGroupRows;
  while (is_box && static_cast<std::uint32_t>(result.box_rows) * kBoxRowBytes > chunk) {
    result.box_rows /= 2;
  }
  const std::uint32_t unit =
      is_box ? static_cast<std::uint32_t>(result.box_rows) * kBoxRowBytes : smallest;
  result.send.chunk_bytes = chunk / unit * unit;
  return result;
}

void check_options(const UlyssesOptions& options, int num_sms) {
  check_range("num_sms", options.num_sms, 0, num_sms);
  if (static_cast<int>(options.path) > static_cast<int>(ExchangePath::serial)) {
    refuse("path is " + text(static_cast<int>(options.path)) + ": legal automatic, fused, serial");
  }
  const std::int64_t available = options.num_sms > 0 ? options.num_sms : num_sms;
  check_range("num_sending_sms", options.num_sending_sms, 0, available - 1);
  (void)box_send(options.send, 128);
}

ExchangeProblem make_exchange_problem(const ExchangeRank& who, const AttentionShape& max,
                                      const UlyssesOptions& options, const TensorView& q,
                                      const TensorView& k, const TensorView& v,
                                      const AttentionCall& call) {
  check_range("q.num_rows", q.num_rows, 0, max.max_rows);
  check_range("q.num_batches", q.num_batches, 0, max.num_batches);
  if (q.dtype != max.dtype || q.head_dim != max.head_dim) {
    refuse("q is " + std::string(to_string(q.dtype)) + " with head_dim " + text(q.head_dim) +
           ": legal is what the operator was created for, " + std::string(to_string(max.dtype)) +
           " with head_dim " + text(max.head_dim));
  }
  if (call.lse && !max.lse) {
    refuse("the log-sum-exp is asked for: legal for an operator whose shape has lse");
  }
  ExchangeProblem problem;
  problem.shards = make_shards(who, max, call, q.num_rows, q.num_batches);
  const auto heads = make_head_splits(max, call, who.num_ranks);
  const std::int64_t own_heads = heads[static_cast<std::size_t>(who.rank)];
  std::int64_t first_head = 0;
  for (int rank = 0; rank < who.rank; ++rank) first_head += heads[static_cast<std::size_t>(rank)];
  problem.num_heads = static_cast<std::int32_t>(max.num_heads);
  problem.first_head = static_cast<std::int32_t>(first_head);
  problem.lse = call.lse;
  problem.wait = call.wait;

  check_tensor_heads("q", q.num_heads, own_heads, who.rank);
  const std::int64_t heads_per_kv = max.num_heads / num_kv_heads(max);
  const std::int64_t own_kv =
      own_heads == 0 ? 0
                     : (first_head + own_heads - 1) / heads_per_kv - first_head / heads_per_kv + 1;
  check_tensor_heads("k", k.num_heads, own_kv, who.rank);
  AttentionOptions local;
  local.causal = call.causal;
  local.scale = call.scale;
  local.kv_len = call.kv_len;
  local.split_last_wave = call.split_last_wave;
  local.rescale_threshold = call.rescale_threshold;
  local.num_sms = who.num_sms;
  problem.attention = make_problem(q, k, v, local, who.num_sms, {problem.shards, call.order});
  problem.reason = why_not_fused(problem.attention, options, who.num_ranks);
  problem.path = problem.reason.empty() ? ExchangePath::fused : ExchangePath::serial;
  if (options.num_sending_sms > 0 &&
      (problem.path != ExchangePath::fused || max.dtype != DataType::bf16)) {
    refuse("num_sending_sms is " + text(options.num_sending_sms) +
           ": legal 0 unless the path is fused and the dtype bf16");
  }
  if (options.path == ExchangePath::fused && problem.path == ExchangePath::serial) {
    refuse("path is fused: not possible for " + problem.reason + "; legal automatic, serial");
  }
  return problem;
}

TensorView owner_view(const ExchangeProblem& problem, int owner, void* out) noexcept {
  return TensorView::bshd(out, problem.attention.dtype, problem.attention.num_batches,
                          problem.shards.owner_rows(owner), problem.num_heads,
                          problem.attention.head_dim);
}

TensorView destination(const ExchangeProblem& problem, int owner, void* out) noexcept {
  TensorView view = owner_view(problem, owner, out);
  view.data =
      static_cast<char*>(out) + std::int64_t{problem.first_head} * problem.attention.head_dim * 2;
  view.num_heads = problem.attention.num_heads;
  return view;
}

LseDestination lse_destination(const ExchangeProblem& problem, int owner) noexcept {
  const std::int64_t rows = problem.shards.owner_rows(owner);
  return {problem.first_head * rows, problem.num_heads * rows, rows};
}

std::string describe_operator(const AttentionShape& max, const UlyssesOptions& options,
                              std::size_t offset) {
  return std::string(to_string(max.dtype)) + ", batches " + text(max.num_batches) + ", rows " +
         text(max.max_rows) + ", rows per rank " + text(max.max_rows_per_rank) + ", heads " +
         text(max.num_heads) + ", KV heads " + text(num_kv_heads(max)) + ", head_dim " +
         text(max.head_dim) + (max.lse ? ", with" : ", without") + " log-sum-exp, path " +
         std::string(to_string(options.path)) + ", offset " + std::to_string(offset);
}

}  // namespace xstage::attention
