// Which attention tile is computed when, by which CTA, and whose rows it holds. One definition for
// the kernel that executes the order, the simulator that replays it and the tests that prove it:
// constexpr on host and device, no allocation, no exceptions; plain values, passed to a kernel by
// value.
//
// Words. A tile is `block_rows` query rows of one (batch, local head). A rank computes all rows of
// its own heads; the rows of the result belong to the ranks that own that part of the sequence.
// Key blocks are the steps of a tile's main loop.
//
// Guarantees (tests/attention_order_test.cpp): every tile is computed once; parts of a split tile
// cover its key blocks once; every output row reaches each of its owners exactly once.
#pragma once

#include <cstdint>

#include "xstage/send.hpp"

namespace xstage {

inline constexpr int kMaxSequenceShards = 72;

XSTAGE_HOST_DEVICE constexpr std::int32_t ceil_div(std::int32_t a, std::int32_t b) noexcept {
  return (a + b - 1) / b;
}

// Where part `idx` of `total` things split over `num_parts` starts; the first `total % num_parts`
// parts hold one more. The usual split of rows and heads over ranks.
XSTAGE_HOST_DEVICE constexpr std::int32_t even_split(std::int32_t total, std::int32_t num_parts,
                                                     std::int32_t idx) noexcept {
  const std::int32_t rest = total % num_parts;
  return idx * (total / num_parts) + (idx < rest ? idx : rest);
}

// Rows [first_row, first_row + num_rows) of the full sequence go to `owner`, starting at
// `owner_row` of its output buffer.
struct RowRun {
  std::int32_t owner = 0;
  std::int32_t first_row = 0;
  std::int32_t num_rows = 0;
  std::int32_t owner_row = 0;
};

// Which rank owns which rows of the output. The sequence is prefix | shard 0 .. shard P-1 | suffix;
// prefix and suffix (text tokens) are replicated: every rank owns a copy. An owner's buffer holds
// prefix | its shard | suffix.
struct SequenceShards {
  std::int32_t num_ranks = 1;
  std::int32_t rank = 0;  // the rank that computes
  std::int32_t prefix_rows = 0;
  std::int32_t suffix_rows = 0;
  // first_row[p]: first row of shard p; first_row[num_ranks] is where the suffix starts.
  std::int32_t first_row[kMaxSequenceShards + 1] = {};

  // Shards as equal as possible. Legal: 1 <= num_ranks <= 72, 0 <= rank < num_ranks,
  // prefix + suffix <= num_rows; valid() says so.
  XSTAGE_HOST_DEVICE static constexpr SequenceShards even(std::int32_t num_rows,
                                                          std::int32_t num_ranks, std::int32_t rank,
                                                          std::int32_t prefix_rows = 0,
                                                          std::int32_t suffix_rows = 0) noexcept {
    SequenceShards shards;
    shards.num_ranks = num_ranks;
    shards.rank = rank;
    shards.prefix_rows = prefix_rows;
    shards.suffix_rows = suffix_rows;
    const std::int32_t sharded = num_rows - prefix_rows - suffix_rows;
    for (std::int32_t p = 0; p <= num_ranks && p <= kMaxSequenceShards; ++p) {
      shards.first_row[p] = prefix_rows + even_split(sharded, num_ranks, p);
    }
    return shards;
  }

  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr bool valid() const noexcept {
    if (num_ranks < 1 || num_ranks > kMaxSequenceShards || rank < 0 || rank >= num_ranks)
      return false;
    if (prefix_rows < 0 || suffix_rows < 0 || first_row[0] != prefix_rows) return false;
    for (std::int32_t p = 0; p < num_ranks; ++p) {
      if (first_row[p + 1] < first_row[p]) return false;
    }
    return true;
  }

  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t num_rows() const noexcept {
    return first_row[num_ranks] + suffix_rows;
  }
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t owner_rows(
      std::int32_t owner) const noexcept {
    return prefix_rows + first_row[owner + 1] - first_row[owner] + suffix_rows;
  }
  // True if no other rank receives any of the rows [first, end).
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr bool is_local(std::int32_t first,
                                                           std::int32_t end) const noexcept {
    return num_ranks == 1 || (first >= first_row[rank] && end <= first_row[rank + 1]);
  }
};

// Walks the runs of rows [first, end): `RowRun run; while (cursor.next(run)) ...`. A tile that
// straddles owners has one run per owner; replicated rows have one run per rank.
class RowRunCursor {
 public:
  XSTAGE_HOST_DEVICE constexpr RowRunCursor(const SequenceShards& shards, std::int32_t first,
                                            std::int32_t end) noexcept
      : shards_(&shards), row_(first), end_(end) {}

  XSTAGE_HOST_DEVICE constexpr bool next(RowRun& run) noexcept {
    if (row_ >= end_) return false;
    const SequenceShards& s = *shards_;
    const std::int32_t suffix_row = s.first_row[s.num_ranks];
    const bool in_prefix = row_ < s.prefix_rows;
    if (in_prefix || row_ >= suffix_row) {
      const std::int32_t stop = in_prefix && end_ > s.prefix_rows ? s.prefix_rows : end_;
      // Peers first and rotated, so that ranks do not all write to rank 0 at once.
      std::int32_t owner = s.rank + 1 + replica_;
      if (owner >= s.num_ranks) owner -= s.num_ranks;
      const std::int32_t own_rows = s.first_row[owner + 1] - s.first_row[owner];
      run = {owner, row_, stop - row_,
             in_prefix ? row_ : row_ - suffix_row + s.prefix_rows + own_rows};
      if (++replica_ == s.num_ranks) {
        replica_ = 0;
        row_ = stop;
      }
      return true;
    }
    while (row_ >= s.first_row[owner_ + 1]) ++owner_;
    const std::int32_t shard_end = s.first_row[owner_ + 1];
    const std::int32_t stop = end_ < shard_end ? end_ : shard_end;
    run = {owner_, row_, stop - row_, s.prefix_rows + row_ - s.first_row[owner_]};
    row_ = stop;
    return true;
  }

 private:
  const SequenceShards* shards_;
  std::int32_t row_;
  std::int32_t end_;
  std::int32_t owner_ = 0;
  std::int32_t replica_ = 0;
};

enum class TileOrder : std::uint8_t {
  linear,         // query block fastest, then head, then batch: every rank sends to rank 0 first
  rank_rotated,   // each head starts behind the own shard and ends with it
  remote_first,   // tiles with remote rows (rotated) of all heads, then all local tiles
  longest_first,  // for causal: last query blocks first, heads in sections that fit the L2 cache
};

// What one rank computes.
struct AttentionGrid {
  std::int32_t num_batches = 1;
  std::int32_t num_heads = 1;  // of this rank
  std::int32_t num_query_rows = 0;
  std::int32_t num_key_rows = 0;  // valid keys
  std::int32_t block_rows = 128;
  std::int32_t block_keys = 160;
  bool causal = false;  // aligned at the bottom right, as usual
};

struct AttentionOrderOptions {
  TileOrder order = TileOrder::remote_first;
  std::int32_t num_ctas = 1;
  // Split the tiles of the last partial wave along keys over all CTAs. Not for causal.
  bool split_tail = false;
  std::int32_t min_part_blocks = 4;    // no CTA is given fewer key blocks than about this
  std::int32_t heads_per_section = 0;  // longest_first; 0: all heads in one section
};

struct AttentionTile {
  std::int32_t batch = 0;
  std::int32_t head = 0;  // local
  std::int32_t query_block = 0;
};

// One piece of work of a CTA: a whole tile, or a part of a split one.
struct AttentionItem {
  AttentionTile tile;
  std::int32_t first_key_block = 0;
  std::int32_t num_key_blocks = 0;
  // A split tile: parts 0 .. num_parts-1 run on CTAs first_cta .. first_cta + num_parts - 1.
  // Whoever arrives last at counter `tail_idx` combines all parts, in the order of part_idx, and
  // sends the tile.
  std::int32_t tail_idx = -1;  // -1: not split
  std::int32_t part_idx = 0;
  std::int32_t num_parts = 1;
  std::int32_t first_cta = 0;
};

class AttentionOrder {
 public:
  constexpr AttentionOrder() = default;

  // Sizes of 0 are legal and give no tiles. num_ctas, block_rows, block_keys >= 1.
  XSTAGE_HOST_DEVICE constexpr AttentionOrder(const AttentionGrid& grid,
                                              const SequenceShards& shards,
                                              const AttentionOrderOptions& options) noexcept
      : order_(options.order),
        causal_(grid.causal),
        num_heads_(grid.num_heads),
        num_rows_(grid.num_query_rows),
        num_keys_(grid.num_key_rows),
        block_rows_(grid.block_rows),
        block_keys_(grid.block_keys),
        num_ctas_(options.num_ctas),
        num_query_blocks_(ceil_div(grid.num_query_rows, grid.block_rows)),
        num_key_blocks_(ceil_div(grid.num_key_rows, grid.block_keys)),
        num_columns_(grid.num_batches * grid.num_heads),
        section_(options.heads_per_section > 0 ? options.heads_per_section : num_columns_) {
    place_local(shards);
    num_tiles_ = num_columns_ * num_query_blocks_;
    num_full_waves_ = num_tiles_ / num_ctas_;
    num_tail_tiles_ = num_tiles_ - num_full_waves_ * num_ctas_;
    if (options.split_tail && !causal_) plan_tail(options.min_part_blocks);
  }

  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t num_tiles() const noexcept {
    return num_tiles_;
  }
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t num_ctas() const noexcept {
    return num_ctas_;
  }
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t num_query_blocks() const noexcept {
    return num_query_blocks_;
  }
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t num_full_waves() const noexcept {
    return num_full_waves_;
  }
  // Tiles behind the last full wave, and the CTAs that share them (0: not split).
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t num_tail_tiles() const noexcept {
    return num_tail_tiles_;
  }
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t num_tail_ctas() const noexcept {
    return num_tail_ctas_;
  }
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t num_local_tiles() const noexcept {
    return num_columns_ * (local_end_ - local_begin_);
  }

  // Key blocks of a tile's main loop; fewer for early query blocks if causal.
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t key_blocks(
      std::int32_t query_block) const noexcept {
    if (!causal_) return num_key_blocks_;
    std::int32_t end_row = (query_block + 1) * block_rows_;
    if (end_row > num_rows_) end_row = num_rows_;
    const std::int32_t keys = end_row + num_keys_ - num_rows_;
    if (keys <= 0) return 0;
    return ceil_div(keys, block_keys_);
  }

  // The tile at position `idx` of the order; at most three divisions. For kernels that take
  // positions from a shared counter; item() is the static assignment.
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr AttentionTile tile(std::int32_t idx) const noexcept {
    std::int32_t column = 0;
    std::int32_t block = 0;
    if (order_ == TileOrder::longest_first) {
      const std::int32_t per_section = section_ * num_query_blocks_;
      const std::int32_t section = idx / per_section;
      const std::int32_t first = section * section_;
      const std::int32_t width = num_columns_ - first < section_ ? num_columns_ - first : section_;
      const std::int32_t rest = idx - section * per_section;
      const std::int32_t depth = rest / width;
      column = first + rest - depth * width;
      block = num_query_blocks_ - 1 - depth;
    } else {
      std::int32_t start = shift_;
      std::int32_t count = num_query_blocks_;
      if (order_ == TileOrder::remote_first) {
        const std::int32_t num_local = local_end_ - local_begin_;
        const std::int32_t num_remote = num_columns_ * (num_query_blocks_ - num_local);
        const bool local = idx >= num_remote;
        if (local) {
          idx -= num_remote;
          start = local_begin_;
        }
        count = local ? num_local : num_query_blocks_ - num_local;
      }
      column = idx / count;
      block = start + idx - column * count;
      if (block >= num_query_blocks_) block -= num_query_blocks_;
    }
    const std::int32_t batch = column / num_heads_;
    return {batch, column - batch * num_heads_, block};
  }

  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t num_items(
      std::int32_t cta) const noexcept {
    if (num_tail_ctas_ == 0) return num_full_waves_ + (cta < num_tail_tiles_ ? 1 : 0);
    if (cta >= num_tail_ctas_) return num_full_waves_;
    const std::int32_t first_tile = tail_bound(cta) / num_key_blocks_;
    const std::int32_t last_tile = (tail_bound(cta + 1) - 1) / num_key_blocks_;
    return num_full_waves_ + 1 + last_tile - first_tile;
  }

  // The item_idx-th piece of work of `cta`, 0 <= item_idx < num_items(cta): whole tiles first, then
  // at most two parts of split ones.
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr AttentionItem item(
      std::int32_t cta, std::int32_t item_idx) const noexcept {
    AttentionItem item;
    if (item_idx < num_full_waves_ || num_tail_ctas_ == 0) {
      item.tile = tile(item_idx * num_ctas_ + cta);
      item.num_key_blocks = key_blocks(item.tile.query_block);
      return item;
    }
    const std::int32_t begin = tail_bound(cta);
    const std::int32_t end = tail_bound(cta + 1);
    item.tail_idx = begin / num_key_blocks_ + item_idx - num_full_waves_;
    const std::int32_t tile_begin = item.tail_idx * num_key_blocks_;
    const std::int32_t tile_end = tile_begin + num_key_blocks_;
    const std::int32_t part_begin = begin > tile_begin ? begin : tile_begin;
    const std::int32_t part_end = end < tile_end ? end : tile_end;
    item.tile = tile(num_full_waves_ * num_ctas_ + item.tail_idx);
    item.first_key_block = part_begin - tile_begin;
    item.num_key_blocks = part_end - part_begin;
    item.first_cta = tail_cta(tile_begin);
    item.part_idx = cta - item.first_cta;
    item.num_parts = tail_cta(tile_end - 1) - item.first_cta + 1;
    if (item.num_parts == 1) item.tail_idx = -1;
    return item;
  }

  // Slots for the partial results of split tiles: num_part_slots() in all; the part of tail tile
  // `tail_idx` that `cta` computes lies in slot part_slot().
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t num_part_slots() const noexcept {
    return 2 * num_tail_ctas_;
  }
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t part_slot(
      std::int32_t cta, std::int32_t tail_idx) const noexcept {
    return 2 * cta + (tail_bound(cta) < tail_idx * num_key_blocks_ ? 1 : 0);
  }

  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t first_row(
      const AttentionTile& t) const noexcept {
    return t.query_block * block_rows_;
  }
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t end_row(
      const AttentionTile& t) const noexcept {
    const std::int32_t end = (t.query_block + 1) * block_rows_;
    return end < num_rows_ ? end : num_rows_;
  }

  // Rows of a tile that leave this rank; replicated rows count once per peer.
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t remote_rows(
      const AttentionTile& t, const SequenceShards& shards) const noexcept {
    RowRunCursor cursor(shards, first_row(t), end_row(t));
    RowRun run;
    std::int32_t rows = 0;
    while (cursor.next(run)) rows += run.owner != shards.rank ? run.num_rows : 0;
    return rows;
  }

  // V_last: bytes that leave this rank after the last main loop has ended, if every tile is sent
  // when it is finished: the remote rows of the tiles of the last, perhaps partial, wave.
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int64_t last_wave_bytes(
      const SequenceShards& shards, std::int32_t row_bytes) const noexcept {
    std::int32_t first = num_full_waves_ * num_ctas_;
    if (num_tail_tiles_ == 0) first -= num_ctas_;
    std::int64_t bytes = 0;
    for (std::int32_t i = first < 0 ? 0 : first; i < num_tiles_; ++i) {
      bytes += static_cast<std::int64_t>(remote_rows(tile(i), shards)) * row_bytes;
    }
    return bytes;
  }

 private:
  // Query blocks [local_begin_, local_end_) hold own rows only; walks start behind them.
  XSTAGE_HOST_DEVICE constexpr void place_local(const SequenceShards& shards) noexcept {
    if (shards.num_ranks == 1) {
      local_end_ = num_query_blocks_;
      return;
    }
    const std::int32_t own_end = shards.first_row[shards.rank + 1];
    local_begin_ = ceil_div(shards.first_row[shards.rank], block_rows_);
    local_end_ = own_end == num_rows_ ? num_query_blocks_ : own_end / block_rows_;
    if (local_end_ < local_begin_) local_end_ = local_begin_;
    if (order_ != TileOrder::linear && num_query_blocks_ > 0) {
      // Without a block of its own the shard may end inside a block: that block is walked last.
      const bool inside = local_end_ == local_begin_;
      shift_ = (inside ? ceil_div(own_end, block_rows_) : local_end_) % num_query_blocks_;
      if (inside) local_begin_ = local_end_ = shift_;
    }
  }

  // The key blocks of all tail tiles lie on one line; CTA c takes [tail_bound(c), tail_bound(c+1)).
  XSTAGE_HOST_DEVICE constexpr void plan_tail(std::int32_t min_part_blocks) noexcept {
    if (num_tail_tiles_ == 0 || num_key_blocks_ == 0) return;
    const std::int32_t min_blocks = min_part_blocks < 2 ? 2 : min_part_blocks;
    const std::int32_t total = num_tail_tiles_ * num_key_blocks_;
    std::int32_t ctas = total / min_blocks;
    if (ctas > num_ctas_) ctas = num_ctas_;
    if (ctas <= num_tail_tiles_) return;
    num_tail_ctas_ = ctas;
    tail_share_ = total / ctas;
    tail_rest_ = total % ctas;
    min_sliver_ = min_blocks / 2;
  }

  // A bound closer to a tile's edge than min_sliver_ moves onto it. Shares are at least
  // 2 * min_sliver_ long, so none becomes empty.
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t tail_bound(
      std::int32_t cta) const noexcept {
    const std::int32_t raw = cta * tail_share_ + cta * tail_rest_ / num_tail_ctas_;
    const std::int32_t begin = raw / num_key_blocks_ * num_key_blocks_;
    if (raw - begin < min_sliver_) return begin;
    if (begin + num_key_blocks_ - raw < min_sliver_) return begin + num_key_blocks_;
    return raw;
  }

  // The CTA whose share holds `unit`.
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t tail_cta(
      std::int32_t unit) const noexcept {
    std::int32_t cta = unit * num_tail_ctas_ / (num_tail_tiles_ * num_key_blocks_);
    while (cta > 0 && tail_bound(cta) > unit) --cta;
    while (tail_bound(cta + 1) <= unit) ++cta;
    return cta;
  }

  TileOrder order_ = TileOrder::linear;
  bool causal_ = false;
  std::int32_t num_heads_ = 1;
  std::int32_t num_rows_ = 0;
  std::int32_t num_keys_ = 0;
  std::int32_t block_rows_ = 128;
  std::int32_t block_keys_ = 160;
  std::int32_t num_ctas_ = 1;
  std::int32_t num_query_blocks_ = 0;
  std::int32_t num_key_blocks_ = 0;
  std::int32_t num_columns_ = 0;  // batches x heads
  std::int32_t section_ = 1;
  std::int32_t local_begin_ = 0;
  std::int32_t local_end_ = 0;
  std::int32_t shift_ = 0;
  std::int32_t num_tiles_ = 0;
  std::int32_t num_full_waves_ = 0;
  std::int32_t num_tail_tiles_ = 0;
  std::int32_t num_tail_ctas_ = 0;  // 0: the tail is not split
  std::int32_t tail_share_ = 0;
  std::int32_t tail_rest_ = 0;
  std::int32_t min_sliver_ = 0;
};

}  // namespace xstage
