// Random routing of all ranks, and the volumes that follow from it. Pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "moe/layout.hpp"
#include "moe/measure.hpp"

namespace xstage::moe {

// ids[rank][token * top_k + k]: distinct experts of a token, drawn by popularity.
inline std::vector<std::vector<std::int32_t>> random_routing(const LayerRun& run) {
  std::mt19937_64 random(run.seed);
  std::vector<std::int32_t> by_popularity(static_cast<std::size_t>(run.shape.num_experts));
  std::iota(by_popularity.begin(), by_popularity.end(), 0);
  std::shuffle(by_popularity.begin(), by_popularity.end(), random);
  std::vector<double> weights;
  for (std::size_t i = 0; i < by_popularity.size(); ++i) {
    weights.push_back(std::pow(static_cast<double>(i + 1), -run.skew));
  }
  std::discrete_distribution<std::size_t> popular(weights.begin(), weights.end());
  std::vector<std::vector<std::int32_t>> ids(static_cast<std::size_t>(run.num_ranks));
  for (auto& of_rank : ids) {
    for (int token = 0; token < run.num_tokens; ++token) {
      const auto first = static_cast<std::ptrdiff_t>(of_rank.size());
      while (static_cast<std::ptrdiff_t>(of_rank.size()) - first < run.shape.top_k) {
        const std::int32_t expert = by_popularity[popular(random)];
        if (std::find(of_rank.begin() + first, of_rank.end(), expert) == of_rank.end()) {
          of_rank.push_back(expert);
        }
      }
    }
  }
  return ids;
}

// What the route kernel of a rank writes: counts of its experts, and entries.
struct RankEntries {
  std::vector<std::uint32_t> counts;
  std::vector<std::uint32_t> entries;
};
inline RankEntries entries_of(const std::vector<std::int32_t>& ids, int num_experts) {
  RankEntries result;
  result.counts.resize(static_cast<std::size_t>(num_experts));
  for (const std::int32_t id : ids) {
    std::uint32_t& count = result.counts[static_cast<std::size_t>(id)];
    result.entries.push_back(pack_entry(static_cast<std::uint32_t>(id), count++));
  }
  return result;
}

// Of rank 0.
inline LayerVolume volume_of(const LayerRun& run,
                             const std::vector<std::vector<std::int32_t>>& ids) {
  const Geometry g = make_geometry(run.shape, run.num_ranks);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(g.experts.count(0)));
  LayerVolume volume;
  for (int rank = 0; rank < run.num_ranks; ++rank) {
    const auto& of_rank = ids[static_cast<std::size_t>(rank)];
    for (std::size_t token = 0; token < static_cast<std::size_t>(run.num_tokens); ++token) {
      bool is_wanted = false;
      for (int k = 0; k < g.top_k; ++k) {
        const std::int32_t id = of_rank[token * static_cast<std::size_t>(g.top_k) + k];
        const bool is_mine = g.experts.owner(id) == 0;
        if (is_mine) ++rows[static_cast<std::size_t>(id)];
        is_wanted |= is_mine;
        if (is_mine && rank != 0) volume.dispatch_remote_bytes += g.x_pitch;
        if (rank == 0) {
          volume.combine_bytes += static_cast<double>(g.output_row_bytes());
          if (!is_mine) volume.combine_remote_bytes += static_cast<double>(g.output_row_bytes());
        }
      }
      if (is_wanted && rank != 0) volume.dispatch_unique_bytes += g.x_pitch;
    }
  }
  const auto add_tiles = [&](std::int64_t count) {
    volume.full_tiles += count / 128 + (count % 128 > 64 ? 1 : 0);
    volume.half_tiles += count % 128 > 0 && count % 128 <= 64 ? 1 : 0;
  };
  for (const std::int64_t count : rows) {
    add_tiles(count);
    volume.rows += count;
    volume.padded_rows += align_rows(static_cast<std::int32_t>(count));
    volume.active_experts += count > 0 ? 1 : 0;
  }
  const std::int64_t shared = static_cast<std::int64_t>(g.num_shared) * run.num_tokens;
  volume.padded_rows += g.num_shared * align_rows(run.num_tokens);
  if (run.num_tokens > 0) volume.active_experts += g.num_shared;
  for (int i = 0; i < g.num_shared; ++i) add_tiles(run.num_tokens);
  const double matrix = static_cast<double>(g.hidden) * g.intermediate;
  volume.products_flop = 6.0 * static_cast<double>(volume.rows + shared) * matrix;
  volume.weight_bytes =
      3.0 * matrix * static_cast<double>(volume.active_experts) * element_bytes(run.shape.dtype);
  volume.pool_bytes = static_cast<double>((volume.rows + shared) * g.x_pitch);
  volume.combine_bytes += static_cast<double>(shared) * static_cast<double>(g.output_row_bytes());
  return volume;
}

// From the times of both products on `num_sms` SMs. Two equations: tasks * tile + steps * step.
// All zero if they have no solution with positive times.
inline TileTimes tile_times(const LayerVolume& volume, const MoeShape& shape, double linear1_us,
                            double linear2_us, int num_sms) {
  const auto ceil_div = [](int a, int b) { return (a + b - 1) / b; };
  const auto tiles = static_cast<double>(volume.full_tiles + volume.half_tiles);
  const double steps =
      static_cast<double>(volume.full_tiles) + 0.5 * static_cast<double>(volume.half_tiles);
  const double columns1 = ceil_div(2 * shape.intermediate, 256);
  const double columns2 = ceil_div(shape.hidden, 256);
  const double a1 = columns1 * tiles;
  const double b1 = columns1 * steps * ceil_div(shape.hidden, 128);
  const double a2 = columns2 * tiles;
  const double b2 = columns2 * steps * ceil_div(shape.intermediate, 128);
  const double t1 = linear1_us * 1e3 * num_sms;
  const double t2 = linear2_us * 1e3 * num_sms;
  const double determinant = a1 * b2 - a2 * b1;
  if (determinant == 0) return {};
  const TileTimes times{(a1 * t2 - a2 * t1) / determinant, (t1 * b2 - t2 * b1) / determinant};
  return times.step_ns > 0 && times.tile_ns > 0 ? times : TileTimes{};
}

inline Spread spread_of(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::vector<double> sorted = samples;
  std::sort(sorted.begin(), sorted.end());
  const auto at = [&](double share) {
    return sorted[static_cast<std::size_t>(
        std::lround(share * static_cast<double>(sorted.size() - 1)))];
  };
  return {at(0.5), at(0.1), at(0.9), std::move(samples)};
}

}  // namespace xstage::moe
