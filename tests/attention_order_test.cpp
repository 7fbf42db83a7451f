// The attention order: every tile once, split tiles covered once, every output row to each of its
// owners exactly once; the orders do what their names say; V_last by hand.
#include "xstage/attention_order.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <vector>

namespace xstage {
namespace {

// A fixed seed, printed, so that a failure can be repeated.
std::mt19937_64 seeded(const char* test) {
  const unsigned long long seed = 20261130;
  std::cout << test << ": seed " << seed << "\n";
  return std::mt19937_64(seed);
}

int pick(std::mt19937_64& rng, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(rng);
}

struct Covered {
  std::map<std::int64_t, int> key_blocks;  // of a tile
  std::map<std::int64_t, int> parts;
  int num_items = 0;
  int largest_tail_share = 0;
};

std::int64_t tile_key(const AttentionGrid& grid, const AttentionOrder& order,
                      const AttentionTile& t) {
  return (static_cast<std::int64_t>(t.batch) * grid.num_heads + t.head) * order.num_query_blocks() +
         t.query_block;
}

// Runs every item of every CTA; asserts what must hold for each.
void cover(const AttentionGrid& grid, const AttentionOrder& order, Covered& seen) {
  std::vector<std::vector<bool>> done;  // [tile][key block]
  done.resize(static_cast<std::size_t>(order.num_tiles()));
  std::map<int, std::map<int, int>> slot_of;  // tail tile -> part -> slot
  for (int cta = 0; cta < order.num_ctas(); ++cta) {
    int share = 0;
    for (int i = 0; i < order.num_items(cta); ++i) {
      const AttentionItem item = order.item(cta, i);
      ASSERT_GE(item.tile.batch, 0);
      ASSERT_LT(item.tile.batch, grid.num_batches);
      ASSERT_LT(item.tile.head, grid.num_heads);
      ASSERT_LT(item.tile.query_block, order.num_query_blocks());
      ASSERT_GE(item.tile.query_block, 0);
      const std::int64_t key = tile_key(grid, order, item.tile);
      const int num_blocks = order.key_blocks(item.tile.query_block);
      std::vector<bool>& blocks = done[static_cast<std::size_t>(key)];
      blocks.resize(static_cast<std::size_t>(num_blocks));
      ASSERT_TRUE(item.num_key_blocks > 0 || num_blocks == 0);
      for (int k = 0; k < item.num_key_blocks; ++k) {
        const auto at = static_cast<std::size_t>(item.first_key_block + k);
        ASSERT_LT(at, blocks.size());
        ASSERT_FALSE(blocks[at]) << "key block computed twice";
        blocks[at] = true;
      }
      seen.key_blocks[key] += item.num_key_blocks;
      seen.parts[key] += 1;
      ++seen.num_items;
      if (i >= order.num_full_waves()) share += item.num_key_blocks;
      if (item.tail_idx >= 0) {
        ASSERT_EQ(cta, item.first_cta + item.part_idx);
        ASSERT_LT(item.part_idx, item.num_parts);
        const int slot = order.part_slot(cta, item.tail_idx);
        ASSERT_LT(slot, order.num_part_slots());
        const bool is_new = slot_of[item.tail_idx].emplace(item.part_idx, slot).second;
        ASSERT_TRUE(is_new);
        // The combiner finds all parts from what any part knows.
        for (int p = 0; p < item.num_parts; ++p) {
          const int other = order.part_slot(item.first_cta + p, item.tail_idx);
          ASSERT_EQ(other / 2, item.first_cta + p);
        }
      }
    }
    seen.largest_tail_share = std::max(seen.largest_tail_share, share);
  }
  std::map<int, int> slot_users;
  for (const auto& [tail, parts] : slot_of) {
    for (const auto& [part, slot] : parts) {
      ASSERT_EQ(parts.size(), static_cast<std::size_t>(parts.rbegin()->first) + 1)
          << "part missing";
      ASSERT_EQ(++slot_users[slot], 1) << "slot shared by two parts";
    }
  }
  ASSERT_EQ(seen.key_blocks.size(), static_cast<std::size_t>(order.num_tiles()));
  for (const auto& [key, count] : seen.key_blocks) {
    ASSERT_EQ(count, order.key_blocks(static_cast<int>(key % order.num_query_blocks())));
  }
}

TEST(AttentionOrder, EveryTileOnceExhaustivelyForSmallCases) {
  int num_cases = 0;
  for (int blocks = 1; blocks <= 7; ++blocks) {
    for (int heads = 1; heads <= 4; ++heads) {
      for (int batches = 1; batches <= 2; ++batches) {
        for (int ranks = 1; ranks <= 4; ++ranks) {
          for (int ctas = 1; ctas <= 9; ++ctas) {
            for (int kind = 0; kind < 4; ++kind) {
              for (int variant = 0; variant < 3; ++variant) {
                AttentionGrid grid;
                grid.num_batches = batches;
                grid.num_heads = heads;
                grid.block_rows = 4;
                grid.block_keys = 2;
                grid.num_query_rows = blocks * 4 - (blocks * heads) % 4;
                grid.num_key_rows = 3 + 2 * ((blocks * ctas) % 9);
                grid.causal = variant == 2;
                if (grid.causal) grid.num_key_rows = grid.num_query_rows;
                AttentionOrderOptions options;
                options.order = static_cast<TileOrder>(kind);
                options.num_ctas = ctas;
                options.split_tail = variant == 1;
                options.min_part_blocks = 2;
                options.heads_per_section = (blocks + ctas) % 4;
                for (int rank = 0; rank < ranks; ++rank) {
                  const auto shards = SequenceShards::even(grid.num_query_rows, ranks, rank);
                  const AttentionOrder order(grid, shards, options);
                  Covered seen;
                  ASSERT_NO_FATAL_FAILURE(cover(grid, order, seen))
                      << "blocks " << blocks << " heads " << heads << " batches " << batches
                      << " ranks " << ranks << " ctas " << ctas << " order " << kind << " variant "
                      << variant << " rank " << rank;
                  ++num_cases;
                }
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(num_cases, 10000);
}

// Everything at once: random batch, sequence, heads, ranks, uneven splits, text rows, orders; every
// row of every head must arrive at each owner once, from the one rank that computes the head.
TEST(AttentionOrder, EveryOutputRowReachesEachOwnerOnce) {
  std::mt19937_64 rng = seeded("EveryOutputRowReachesEachOwnerOnce");
  for (int round = 0; round < 400; ++round) {
    const int num_ranks = pick(rng, 1, round % 20 == 0 ? 72 : 9);
    const int num_rows = pick(rng, 1, 700);
    const int num_heads = pick(rng, 1, 12);
    const int num_batches = pick(rng, 1, 3);
    const int prefix = pick(rng, 0, 2) == 0 ? pick(rng, 0, num_rows / 3) : 0;
    const int suffix = pick(rng, 0, 2) == 0 ? pick(rng, 0, num_rows / 3) : 0;
    SequenceShards base = SequenceShards::even(num_rows, num_ranks, 0, prefix, suffix);
    if (pick(rng, 0, 1) == 1) {  // uneven on purpose, empty shards included
      for (int p = 1; p < num_ranks; ++p) base.first_row[p] = pick(rng, prefix, num_rows - suffix);
      std::sort(base.first_row + 1, base.first_row + num_ranks);
    }
    ASSERT_TRUE(base.valid());
    // written[owner][batch][owner row][head]
    std::vector<std::vector<int>> written(static_cast<std::size_t>(num_ranks));
    const auto at = [&](int owner, int batch, int row, int head) {
      return (static_cast<std::size_t>(batch) * base.owner_rows(owner) + row) * num_heads + head;
    };
    for (int p = 0; p < num_ranks; ++p) {
      written[p].assign(at(p, num_batches, 0, 0), 0);
    }
    const int block_rows = pick(rng, 1, 3) * 16;
    AttentionOrderOptions options;
    options.order = static_cast<TileOrder>(pick(rng, 0, 3));
    options.num_ctas = pick(rng, 1, 148);
    options.split_tail = pick(rng, 0, 1) == 1;
    for (int rank = 0; rank < num_ranks; ++rank) {
      SequenceShards shards = base;
      shards.rank = rank;
      AttentionGrid grid;
      grid.num_batches = num_batches;
      const int first_head = even_split(num_heads, num_ranks, rank);
      grid.num_heads = even_split(num_heads, num_ranks, rank + 1) - first_head;
      grid.num_query_rows = num_rows;
      grid.num_key_rows = pick(rng, 1, 3000);
      grid.block_rows = block_rows;
      grid.block_keys = 32;
      const AttentionOrder order(grid, shards, options);
      for (int cta = 0; cta < order.num_ctas(); ++cta) {
        for (int i = 0; i < order.num_items(cta); ++i) {
          const AttentionItem item = order.item(cta, i);
          if (item.part_idx != item.num_parts - 1) continue;  // one part of a tile sends it
          RowRunCursor cursor(shards, order.first_row(item.tile), order.end_row(item.tile));
          RowRun run;
          int remote = 0;
          while (cursor.next(run)) {
            ASSERT_GT(run.num_rows, 0);
            if (run.owner != rank) remote += run.num_rows;
            for (int r = 0; r < run.num_rows; ++r) {
              ASSERT_LT(run.owner_row + r, base.owner_rows(run.owner));
              ++written[run.owner][at(run.owner, item.tile.batch, run.owner_row + r,
                                      first_head + item.tile.head)];
            }
          }
          ASSERT_EQ(remote, order.remote_rows(item.tile, shards));
          ASSERT_EQ(remote == 0,
                    shards.is_local(order.first_row(item.tile), order.end_row(item.tile)));
        }
      }
    }
    for (int p = 0; p < num_ranks; ++p) {
      for (const int count : written[p]) ASSERT_EQ(count, 1) << "round " << round << " owner " << p;
    }
  }
}

TEST(AttentionOrder, SplitTailIsBalancedAndWithoutSlivers) {
  std::mt19937_64 rng = seeded("SplitTailIsBalancedAndWithoutSlivers");
  int num_split = 0;
  for (int round = 0; round < 4000; ++round) {
    AttentionGrid grid;
    grid.num_heads = pick(rng, 1, 40);
    grid.num_query_rows = pick(rng, 1, 9000);
    grid.num_key_rows = pick(rng, 1, round % 50 == 0 ? 600000 : 30000);
    AttentionOrderOptions options;
    options.num_ctas = pick(rng, 1, 148);
    options.split_tail = true;
    options.min_part_blocks = pick(rng, 1, 8);
    const AttentionOrder order(grid, SequenceShards::even(grid.num_query_rows, 1, 0), options);
    const int num_blocks = order.key_blocks(0);
    int covered = 0;
    int largest = 0;
    for (int cta = 0; cta < order.num_ctas(); ++cta) {
      int share = 0;
      ASSERT_LE(order.num_items(cta), order.num_full_waves() + 2);
      for (int i = order.num_full_waves(); i < order.num_items(cta); ++i) {
        const AttentionItem item = order.item(cta, i);
        share += item.num_key_blocks;
        if (item.num_parts > 1) {
          ASSERT_GE(item.num_key_blocks, std::max(1, std::max(2, options.min_part_blocks) / 2));
        }
      }
      covered += share;
      largest = std::max(largest, share);
    }
    ASSERT_EQ(covered, order.num_tail_tiles() * num_blocks);
    if (order.num_tail_ctas() > 0) {
      ++num_split;
      const int fair = ceil_div(covered, order.num_tail_ctas());
      ASSERT_LE(largest, fair + 2 * (std::max(2, options.min_part_blocks) / 2));
      ASSERT_LE(largest, num_blocks + 1);
    }
  }
  EXPECT_GT(num_split, 1000);
}

// FLUX at 1024 px on two ranks: 1x4608x24x128, 12 heads a rank, tiles of 128x160 on 132 SMs.
// 36 query blocks x 12 heads = 432 tiles = 3 waves and 36 tiles; 29 key blocks. Split over 132 CTAs
// a CTA gets 36 * 29 / 132 = 7.9 blocks instead of 29: 3.27 waves instead of 4.
TEST(AttentionOrder, FluxOnTwoRanks) {
  AttentionGrid grid;
  grid.num_heads = 12;
  grid.num_query_rows = grid.num_key_rows = 4608;
  AttentionOrderOptions options;
  options.num_ctas = 132;
  options.split_tail = true;
  const auto shards = SequenceShards::even(4608, 2, 0);
  const AttentionOrder order(grid, shards, options);
  EXPECT_EQ(order.num_tiles(), 432);
  EXPECT_EQ(order.num_full_waves(), 3);
  EXPECT_EQ(order.num_tail_tiles(), 36);
  EXPECT_EQ(order.num_tail_ctas(), 132);
  EXPECT_EQ(order.num_local_tiles(), 216);
  Covered seen;
  ASSERT_NO_FATAL_FAILURE(cover(grid, order, seen));
  EXPECT_LE(seen.largest_tail_share, 10);
  // Remote first: the first 216 tiles hold rows 2304.., the last 216 are the rank's own.
  for (int i = 0; i < 432; ++i) {
    EXPECT_EQ(order.remote_rows(order.tile(i), shards), i < 216 ? 128 : 0) << i;
  }
}

TEST(AttentionOrder, LastWaveBytesByHand) {
  AttentionGrid grid;
  grid.num_heads = 12;
  grid.num_query_rows = grid.num_key_rows = 4608;
  AttentionOrderOptions options;
  options.num_ctas = 132;
  const auto shards = SequenceShards::even(4608, 2, 0);
  // Remote first: the last wave is local.
  EXPECT_EQ(AttentionOrder(grid, shards, options).last_wave_bytes(shards, 256), 0);
  // Linear: the last 36 tiles are the 36 query blocks of the last head; 18 of them are remote.
  options.order = TileOrder::linear;
  EXPECT_EQ(AttentionOrder(grid, shards, options).last_wave_bytes(shards, 256), 18 * 128 * 256);
  // Eight ranks, 3 heads: 108 tiles, less than a wave. All remote rows are in it, 7/8 of 4608 x 3.
  const auto eight = SequenceShards::even(4608, 8, 3);
  grid.num_heads = 3;
  options.order = TileOrder::remote_first;
  EXPECT_EQ(AttentionOrder(grid, eight, options).last_wave_bytes(eight, 256), 4032 * 3 * 256);
  // Exactly full waves: the last full one counts. 2 ranks, 1 head, 8 blocks, 4 CTAs, linear, rank
  // 0: blocks 4..7 are the peer's.
  grid.num_heads = 1;
  grid.num_query_rows = 1024;
  options.order = TileOrder::linear;
  options.num_ctas = 4;
  const auto two = SequenceShards::even(1024, 2, 0);
  EXPECT_EQ(AttentionOrder(grid, two, options).last_wave_bytes(two, 256), 4 * 128 * 256);
}

TEST(AttentionOrder, RotationSpreadsTargetsAndEndsAtHome) {
  AttentionGrid grid;
  grid.num_heads = 2;
  grid.num_query_rows = grid.num_key_rows = 1024;  // 8 blocks
  AttentionOrderOptions options;
  options.order = TileOrder::rank_rotated;
  for (int rank = 0; rank < 4; ++rank) {  // 2 blocks each
    const auto shards = SequenceShards::even(1024, 4, rank);
    const AttentionOrder order(grid, shards, options);
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(order.tile(i).head, i / 8);
      EXPECT_EQ(order.tile(i).query_block, (2 * (rank + 1) + i) % 8);
    }
  }
}

TEST(AttentionOrder, CausalLongestFirst) {
  AttentionGrid grid;
  grid.num_heads = 3;
  grid.num_query_rows = 512;
  grid.num_key_rows = 512;
  grid.block_keys = 128;
  grid.causal = true;
  AttentionOrderOptions options;
  options.order = TileOrder::longest_first;
  options.heads_per_section = 2;
  options.split_tail = true;  // ignored for causal
  const AttentionOrder order(grid, SequenceShards::even(512, 1, 0), options);
  EXPECT_EQ(order.num_tail_ctas(), 0);
  const int expected_head[] = {0, 1, 0, 1, 0, 1, 0, 1, 2, 2, 2, 2};
  const int expected_block[] = {3, 3, 2, 2, 1, 1, 0, 0, 3, 2, 1, 0};
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(order.tile(i).head, expected_head[i]) << i;
    EXPECT_EQ(order.tile(i).query_block, expected_block[i]) << i;
    EXPECT_EQ(order.key_blocks(expected_block[i]), expected_block[i] + 1);
  }
  // Bottom right: with 640 keys every query sees 128 more; with 256 the first two blocks see none.
  grid.num_key_rows = 640;
  EXPECT_EQ(AttentionOrder(grid, SequenceShards::even(512, 1, 0), options).key_blocks(0), 2);
  grid.num_key_rows = 256;
  EXPECT_EQ(AttentionOrder(grid, SequenceShards::even(512, 1, 0), options).key_blocks(1), 0);
}

TEST(AttentionOrder, StraddlingTileAndTextRows) {
  // 100 rows, 4 prefix, 6 suffix, 90 sharded over 3: shards start at 4, 34, 64; suffix at 94.
  const auto shards = SequenceShards::even(100, 3, 1, 4, 6);
  EXPECT_EQ(shards.owner_rows(2), 40);
  std::vector<RowRun> runs;
  RowRunCursor cursor(shards, 0, 100);
  RowRun run;
  while (cursor.next(run)) runs.push_back(run);
  const RowRun expected[] = {{2, 0, 4, 0},   {0, 0, 4, 0},   {1, 0, 4, 0},
                             {0, 4, 30, 4},  {1, 34, 30, 4}, {2, 64, 30, 4},
                             {2, 94, 6, 34}, {0, 94, 6, 34}, {1, 94, 6, 34}};
  ASSERT_EQ(runs.size(), std::size(expected));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(runs[i].owner, expected[i].owner) << i;
    EXPECT_EQ(runs[i].first_row, expected[i].first_row) << i;
    EXPECT_EQ(runs[i].num_rows, expected[i].num_rows) << i;
    EXPECT_EQ(runs[i].owner_row, expected[i].owner_row) << i;
  }
}

TEST(AttentionOrder, NothingToDoIsLegal) {
  AttentionGrid grid;
  grid.num_heads = 0;
  grid.num_query_rows = 128;
  const AttentionOrder order(grid, SequenceShards::even(128, 2, 1), {});
  EXPECT_EQ(order.num_tiles(), 0);
  EXPECT_EQ(order.num_items(0), 0);
  EXPECT_EQ(order.last_wave_bytes(SequenceShards::even(128, 2, 1), 256), 0);
}

// The order is usable at compile time, and small enough to pass to a kernel by value.
constexpr AttentionOrder kConstantOrder(AttentionGrid{1, 2, 256, 256, 128, 128, false},
                                        SequenceShards::even(256, 2, 0), {});
static_assert(kConstantOrder.num_tiles() == 4);
static_assert(kConstantOrder.tile(0).query_block == 1);
static_assert(sizeof(AttentionOrder) <= 96);

}  // namespace
}  // namespace xstage
