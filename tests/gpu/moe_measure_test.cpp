// The pure parts of measuring the layer: routing, volumes, tile times.
#include <gtest/gtest.h>

#include <set>

#include "moe/measure_inputs.hpp"

namespace xstage::moe {
namespace {

LayerRun small_run() {
  LayerRun run;
  run.shape.max_tokens = 40;
  run.shape.hidden = 256;
  run.shape.intermediate = 128;
  run.shape.num_experts = 12;
  run.shape.top_k = 3;
  run.shape.num_shared_experts = 1;
  run.num_tokens = 40;
  run.num_ranks = 3;
  run.seed = 5;
  return run;
}

TEST(MoeMeasure, RoutingGivesDistinctExpertsAndFollowsItsSeed) {
  const LayerRun run = small_run();
  const auto ids = random_routing(run);
  ASSERT_EQ(ids.size(), 3u);
  for (const auto& of_rank : ids) {
    ASSERT_EQ(of_rank.size(), 40u * 3u);
    for (std::size_t token = 0; token < 40; ++token) {
      const std::set<std::int32_t> experts(of_rank.begin() + static_cast<long>(3 * token),
                                           of_rank.begin() + static_cast<long>(3 * token + 3));
      ASSERT_EQ(experts.size(), 3u);
      ASSERT_GE(*experts.begin(), 0);
      ASSERT_LT(*experts.rbegin(), 12);
    }
  }
  EXPECT_EQ(random_routing(run), ids);
  LayerRun other = run;
  other.seed = 6;
  EXPECT_NE(random_routing(other), ids);
}

TEST(MoeMeasure, SkewLoadsOneExpertMost) {
  LayerRun run = small_run();
  run.skew = 2;
  std::vector<int> counts(12);
  for (const auto& of_rank : random_routing(run)) {
    for (const auto id : of_rank) ++counts[static_cast<std::size_t>(id)];
  }
  // 120 tokens; the most popular expert is wanted by nearly all, an even share would be 30.
  EXPECT_GT(*std::max_element(counts.begin(), counts.end()), 90);
}

TEST(MoeMeasure, EntriesCountWithinTheirExpert) {
  const RankEntries entries = entries_of({4, 2, 4, 4, 2}, 6);
  EXPECT_EQ(entries.counts, (std::vector<std::uint32_t>{0, 0, 2, 0, 3, 0}));
  EXPECT_EQ(entries.entries,
            (std::vector<std::uint32_t>{pack_entry(4, 0), pack_entry(2, 0), pack_entry(4, 1),
                                        pack_entry(4, 2), pack_entry(2, 1)}));
}

// Two ranks of two experts; rank 0 has experts 0 and 1.
TEST(MoeMeasure, VolumesOfAHandMadeRouting) {
  LayerRun run = small_run();
  run.shape.num_experts = 4;
  run.shape.top_k = 2;
  run.num_ranks = 2;
  run.num_tokens = 2;
  const LayerVolume v = volume_of(run, {{0, 1, 2, 3}, {0, 1, 1, 3}});
  const double row = 256 + 16;  // elements, two scales, padding
  EXPECT_EQ(v.rows, 5);
  EXPECT_EQ(v.padded_rows, 64 + 64 + 64);
  EXPECT_EQ(v.active_experts, 3);
  EXPECT_EQ(v.full_tiles, 0);
  EXPECT_EQ(v.half_tiles, 3);
  EXPECT_EQ(v.products_flop, 6.0 * (5 + 2) * 256 * 128);
  EXPECT_EQ(v.weight_bytes, 3.0 * 3 * 256 * 128);
  EXPECT_EQ(v.pool_bytes, 7 * row);
  EXPECT_EQ(v.dispatch_remote_bytes, 3 * row);
  EXPECT_EQ(v.dispatch_unique_bytes, 2 * row);
  EXPECT_EQ(v.combine_bytes, (4 + 2) * 512.0);
  EXPECT_EQ(v.combine_remote_bytes, 2 * 512.0);
}

TEST(MoeMeasure, TileTimesComeBackFromWhatTheyMake) {
  LayerVolume volume;
  volume.full_tiles = 400;
  volume.half_tiles = 30;
  MoeShape shape;
  shape.hidden = 4096;
  shape.intermediate = 2048;
  const double step = 900;
  const double tile = 1500;
  const auto time = [&](int columns, int k_steps) {
    return columns * (430 * tile + 415 * k_steps * step) / 132 / 1e3;
  };
  const TileTimes times = tile_times(volume, shape, time(16, 32), time(16, 16), 132);
  EXPECT_NEAR(times.step_ns, step, 1e-6);
  EXPECT_NEAR(times.tile_ns, tile, 1e-6);
  EXPECT_EQ(tile_times(volume, shape, 10, 1000, 132).step_ns, 0);  // no such tile
}

TEST(MoeMeasure, SpreadIsOfSortedSamples) {
  std::vector<double> samples;
  for (int i = 10; i >= 0; --i) samples.push_back(i);
  const Spread spread = spread_of(samples);
  EXPECT_EQ(spread.median, 5);
  EXPECT_EQ(spread.p10, 1);
  EXPECT_EQ(spread.p90, 9);
  EXPECT_EQ(spread_of({}).median, 0);
}

}  // namespace
}  // namespace xstage::moe
