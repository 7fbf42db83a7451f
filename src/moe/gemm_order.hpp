// The tasks of one expert in the grouped GEMM, in order. Pure: kernels execute it, CPU tests prove
// it.
//
// Single blocks: a task is a tile of rows and columns. Sections of 16 row tiles; inside a section
// the row tiles of a column are neighbours, which share the weights while these are in the L2
// cache.
//
// Pairs of blocks: a task is two row tiles of one column (they share the weights: each block loads
// half of them for both), or, where one row tile is left or the last one is short, one row tile and
// two columns (they share the rows). Sections of 16 pairs of row tiles.
#pragma once

#include <cstdint>

#include "xstage/send.hpp"

namespace xstage::moe {

struct TileTask {
  std::int32_t row = 0;          // of the expert
  std::int32_t num_rows = 0;     // more than a tile: two row tiles
  std::int32_t column_tile = 0;  // of one row tile for a pair: the first of two
};

template <int kTileRows, bool kIsPair>
class ExpertOrder {
 public:
  XSTAGE_HOST_DEVICE constexpr ExpertOrder(std::int32_t num_rows, std::int32_t num_columns)
      : rows_(num_rows), columns_(num_columns) {}

  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t num_tasks() const {
    const std::int32_t full = rows_ / kSectionRows;
    return full * tasks_of(Section(kSectionRows)) + tasks_of(Section(rows_ - full * kSectionRows));
  }
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr TileTask task(std::int32_t idx) const {
    const std::int32_t per_section = tasks_of(Section(kSectionRows));
    // The last section may have a task more than the others.
    const std::int32_t last_section = (rows_ - 1) / kSectionRows;
    const std::int32_t section_idx =
        idx / per_section < last_section ? idx / per_section : last_section;
    const std::int32_t first_row = section_idx * kSectionRows;
    const std::int32_t rows = rows_ - first_row < kSectionRows ? rows_ - first_row : kSectionRows;
    const Section section(rows);
    idx -= section_idx * per_section;
    // Two columns: those of pairs one after the other, then the single tiles of both.
    const std::int32_t group_tasks =
        kIsPair ? 2 * section.pairs + section.singles : section.singles;
    const std::int32_t group = idx / group_tasks;
    idx -= group * group_tasks;
    TileTask result;
    result.column_tile = kIsPair ? group * 2 : group;
    std::int32_t tile = 0;
    const std::int32_t group_columns = kIsPair && result.column_tile + 1 < columns_ ? 2 : 1;
    std::int32_t num_tiles = 1;
    if (idx < section.pairs * group_columns) {
      const std::int32_t column = idx / section.pairs;
      result.column_tile += column;
      tile = (idx - column * section.pairs) * 2;
      num_tiles = 2;
    } else {
      tile = section.pairs * 2 + idx - section.pairs * group_columns;
    }
    const std::int32_t row = tile * kTileRows;
    const std::int32_t left = rows - row;
    result.row = first_row + row;
    result.num_rows = left < num_tiles * kTileRows ? left : num_tiles * kTileRows;
    return result;
  }

 private:
  static constexpr std::int32_t kSectionRows = 16 * kTileRows * (kIsPair ? 2 : 1);

  // Row tiles that go in pairs, and alone. A last tile of up to half the rows is quicker alone.
  struct Section {
    XSTAGE_HOST_DEVICE constexpr explicit Section(std::int32_t rows) {
      const std::int32_t tiles = (rows + kTileRows - 1) / kTileRows;
      if (kIsPair) {
        const bool is_last_short = rows - (tiles - 1) * kTileRows <= kTileRows / 2;
        pairs = (tiles - (is_last_short ? 1 : 0)) / 2;
      }
      singles = tiles - 2 * pairs;
    }
    std::int32_t pairs = 0;
    std::int32_t singles = 0;
  };
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t tasks_of(const Section& section) const {
    return kIsPair ? section.pairs * columns_ + section.singles * ((columns_ + 1) / 2)
                   : section.singles * columns_;
  }

  std::int32_t rows_;
  std::int32_t columns_;
};

}  // namespace xstage::moe
