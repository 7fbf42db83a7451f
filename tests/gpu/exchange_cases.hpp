// Random exchanges, and the slow obvious way to carry them out: what every rank's buffer must hold,
// byte for byte, guards included. No CUDA.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "attention/push_plan.hpp"
#include "xstage/attention_order.hpp"

namespace xstage::test {

inline constexpr std::size_t kGuardBytes = 256;  // on both sides of every buffer
inline constexpr std::uint8_t kPoison = 0xa5;

enum class ExchangeLayout { bshd, bhsd, padded };

struct ExchangeCase {
  int num_ranks = 1;
  std::int64_t num_batches = 1;
  std::int64_t head_dim = 128;
  std::int64_t prefix = 0;
  std::int64_t suffix = 0;
  std::vector<std::int32_t> shard_rows;         // [rank]
  std::vector<std::int64_t> shard_heads;        // [rank]
  ExchangeLayout local = ExchangeLayout::bshd;  // of tensors with all rows of some heads
  ExchangeLayout owned = ExchangeLayout::bshd;  // of tensors with some rows of all heads

  [[nodiscard]] SequenceShards shards(int rank) const {
    SequenceShards s;
    s.num_ranks = num_ranks;
    s.rank = rank;
    s.prefix_rows = static_cast<std::int32_t>(prefix);
    s.suffix_rows = static_cast<std::int32_t>(suffix);
    s.first_row[0] = s.prefix_rows;
    for (int p = 0; p < num_ranks; ++p) {
      s.first_row[p + 1] = s.first_row[p] + shard_rows[static_cast<std::size_t>(p)];
    }
    return s;
  }
  [[nodiscard]] std::int64_t num_rows() const { return shards(0).num_rows(); }
  [[nodiscard]] std::int64_t num_heads() const { return first_head(num_ranks); }
  [[nodiscard]] std::int64_t first_head(int rank) const {
    std::int64_t first = 0;
    for (int p = 0; p < rank; ++p) first += shard_heads[static_cast<std::size_t>(p)];
    return first;
  }
  [[nodiscard]] std::int64_t heads_of_rank(int rank) const {
    return shard_heads[static_cast<std::size_t>(rank)];
  }

  // A tensor of this layout at `data`; `data` null gives sizes and strides alone.
  [[nodiscard]] TensorView view(ExchangeLayout layout, void* data, std::int64_t rows,
                                std::int64_t heads) const {
    if (layout == ExchangeLayout::bhsd) {
      return TensorView::bhsd(data, DataType::bf16, num_batches, rows, heads, head_dim);
    }
    TensorView v = TensorView::bshd(data, DataType::bf16, num_batches, rows, heads, head_dim);
    if (layout == ExchangeLayout::padded) {
      v.head_stride += 8;
      v.row_stride = heads * v.head_stride + 16;
      v.batch_stride = rows * v.row_stride + 24;
    }
    return v;
  }
  [[nodiscard]] TensorView local_view(void* data, int rank) const {
    return view(local, data, num_rows(), heads_of_rank(rank));
  }
  [[nodiscard]] TensorView owned_view(void* data, int rank) const {
    return view(owned, data, shards(rank).owner_rows(rank), num_heads());
  }

  [[nodiscard]] std::string text() const {
    std::string t = "P " + std::to_string(num_ranks) + ", B " + std::to_string(num_batches) +
                    ", D " + std::to_string(head_dim) + ", prefix " + std::to_string(prefix) +
                    ", suffix " + std::to_string(suffix) + ", rows";
    for (const auto rows : shard_rows) t += " " + std::to_string(rows);
    t += ", heads";
    for (const auto heads : shard_heads) t += " " + std::to_string(heads);
    return t + ", layouts " + std::to_string(static_cast<int>(local)) + " " +
           std::to_string(static_cast<int>(owned));
  }
};

inline ExchangeCase random_case(std::mt19937& random, int max_rows = 200) {
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  ExchangeCase c;
  c.num_ranks = pick(1, 8);
  c.num_batches = pick(0, 20) == 0 ? 0 : pick(1, 3);
  constexpr std::int64_t kHeadDims[] = {64, 128, 128, 8, 96};
  c.head_dim = kHeadDims[pick(0, 4)];
  c.prefix = pick(0, 2) == 0 ? pick(1, 40) : 0;
  c.suffix = pick(0, 2) == 0 ? pick(1, 40) : 0;
  const bool even = pick(0, 1) == 0;
  const int rows = pick(0, 3) == 0 ? pick(0, c.num_ranks) : pick(0, max_rows);
  for (int p = 0; p < c.num_ranks; ++p) {
    c.shard_rows.push_back(even ? even_split(rows, c.num_ranks, p + 1) -
                                      even_split(rows, c.num_ranks, p)
                                : pick(0, max_rows / 4));
    c.shard_heads.push_back(pick(0, 9) == 0 ? pick(40, 56) : pick(0, 5));
  }
  c.local = static_cast<ExchangeLayout>(pick(0, 2));
  c.owned = static_cast<ExchangeLayout>(pick(0, 2));
  return c;
}

inline std::size_t extent_bytes(const TensorView& v) {
  if (v.num_batches == 0 || v.num_rows == 0 || v.num_heads == 0) return 0;
  return static_cast<std::size_t>((v.num_batches - 1) * v.batch_stride +
                                  (v.num_rows - 1) * v.row_stride +
                                  (v.num_heads - 1) * v.head_stride + v.head_dim) *
         2;
}

// guard | tensor | guard. 16-byte aligned where std::vector's memory is.
inline std::vector<std::uint8_t> poisoned(const TensorView& v) {
  return std::vector<std::uint8_t>(extent_bytes(v) + 2 * kGuardBytes, kPoison);
}

// The elements of a tensor whose value says whose they are: rank, tensor, batch, row of the whole
// sequence and head of all heads, element, call.
inline std::uint16_t element_value(int tensor, std::int64_t batch, std::int64_t row,
                                   std::int64_t head, std::int64_t element, std::uint32_t call) {
  std::uint32_t h =
      static_cast<std::uint32_t>(((batch * 1009 + row) * 2003 + head) * 4001 + element);
  h = (h ^ (call * 0x9e3779b9u) ^ (static_cast<std::uint32_t>(tensor) << 28)) * 0x85ebca6bu;
  h ^= h >> 15;
  return static_cast<std::uint16_t>(h * 0xc2b2ae35u >> 16);
}

// Writes every element of `v`, found at `bytes`, by `value(batch, row, head, element)`.
template <typename Value>
void write_elements(const TensorView& v, std::uint8_t* bytes, Value value) {
  for (std::int64_t b = 0; b < v.num_batches; ++b) {
    for (std::int64_t s = 0; s < v.num_rows; ++s) {
      for (std::int64_t h = 0; h < v.num_heads; ++h) {
        for (std::int64_t d = 0; d < v.head_dim; ++d) {
          const std::uint16_t x = value(b, s, h, d);
          std::memcpy(bytes + 2 * (b * v.batch_stride + s * v.row_stride + h * v.head_stride + d),
                      &x, 2);
        }
      }
    }
  }
}

// Which row of the whole sequence lies in row `row` of `owner`'s buffer.
inline std::int64_t row_of_owner(const ExchangeCase& c, int owner, std::int64_t row) {
  if (row < c.prefix) return row;
  std::int64_t first = c.prefix;
  for (int p = 0; p < owner; ++p) first += c.shard_rows[static_cast<std::size_t>(p)];
  const std::int64_t mine = c.shard_rows[static_cast<std::size_t>(owner)];
  if (row < c.prefix + mine) return first + row - c.prefix;
  return c.num_rows() - c.suffix + row - c.prefix - mine;
}

// What a rank has before a gather: all rows of its heads.
inline std::vector<std::uint8_t> local_bytes(const ExchangeCase& c, int rank, int tensor,
                                             std::uint32_t call) {
  const TensorView v = c.local_view(nullptr, rank);
  auto bytes = poisoned(v);
  write_elements(v, bytes.data() + kGuardBytes, [&](auto b, auto s, auto h, auto d) {
    return element_value(tensor, b, s, c.first_head(rank) + h, d, call);
  });
  return bytes;
}
// What it has after it, and before a scatter: all heads of its rows.
inline std::vector<std::uint8_t> owned_bytes(const ExchangeCase& c, int rank, int tensor,
                                             std::uint32_t call) {
  const TensorView v = c.owned_view(nullptr, rank);
  auto bytes = poisoned(v);
  write_elements(v, bytes.data() + kGuardBytes, [&](auto b, auto s, auto h, auto d) {
    return element_value(tensor, b, row_of_owner(c, rank, s), h, d, call);
  });
  return bytes;
}

// The plans of `rank`, given where every rank's buffers lie as that rank sees them.
inline attention::PushPlan plan_gather(const ExchangeCase& c, int rank, void* source,
                                       const std::vector<void*>& owned) {
  std::vector<TensorView> to;
  for (int p = 0; p < c.num_ranks; ++p) {
    to.push_back(attention::heads_of(c.owned_view(owned[static_cast<std::size_t>(p)], p),
                                     c.first_head(rank), c.heads_of_rank(rank)));
  }
  return attention::gather_plan(c.shards(rank), c.local_view(source, rank), to);
}

// `sources[t]`: tensor t of this rank; `local[t][p]`: tensor t of rank p.
inline attention::PushPlan plan_scatter(const ExchangeCase& c, int rank,
                                        const std::vector<void*>& sources,
                                        const std::vector<std::vector<void*>>& local) {
  std::vector<std::vector<TensorView>> to(sources.size());
  std::vector<std::int64_t> first_heads;
  for (int p = 0; p < c.num_ranks; ++p) first_heads.push_back(c.first_head(p));
  std::vector<attention::ScatterTensor> tensors;
  for (std::size_t t = 0; t < sources.size(); ++t) {
    for (int p = 0; p < c.num_ranks; ++p) {
      to[t].push_back(c.local_view(local[t][static_cast<std::size_t>(p)], p));
    }
    tensors.push_back({c.owned_view(sources[t], rank), to[t], first_heads});
  }
  return attention::scatter_plan(c.shards(rank), tensors);
}

}  // namespace xstage::test
