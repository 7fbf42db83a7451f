// The order of an expert's tasks covers every tile once, for single blocks and for pairs. No GPU.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "moe/gemm_order.hpp"

namespace xstage::moe {
namespace {

// How often every tile of `rows` x `columns` is computed.
template <int kTileRows, bool kIsPair>
std::vector<int> visits(std::int32_t rows, std::int32_t columns) {
  const ExpertOrder<kTileRows, kIsPair> order(rows, columns);
  const std::int32_t row_tiles = (rows + kTileRows - 1) / kTileRows;
  std::vector<int> seen(static_cast<std::size_t>(row_tiles * columns), 0);
  const auto visit = [&](std::int32_t row, std::int32_t num_rows, std::int32_t column) {
    if (column >= columns) return;  // a pair's second column, of an odd number
    EXPECT_EQ(row % kTileRows, 0);
    EXPECT_GT(num_rows, 0);
    EXPECT_TRUE(num_rows == kTileRows || row + num_rows == rows);
    ++seen[static_cast<std::size_t>(row / kTileRows * columns + column)];
  };
  for (std::int32_t i = 0; i < order.num_tasks(); ++i) {
    const TileTask task = order.task(i);
    if (!kIsPair) {
      visit(task.row, task.num_rows, task.column_tile);
    } else if (task.num_rows > kTileRows) {
      visit(task.row, kTileRows, task.column_tile);
      visit(task.row + kTileRows, task.num_rows - kTileRows, task.column_tile);
    } else {
      visit(task.row, task.num_rows, task.column_tile);
      visit(task.row, task.num_rows, task.column_tile + 1);
    }
  }
  return seen;
}

TEST(ExpertOrder, VisitsEveryTileOnce) {
  for (const std::int32_t columns : {1, 2, 3, 16, 17}) {
    for (std::int32_t rows = 0; rows < 9000; rows += rows < 600 ? 1 : 37) {
      for (const auto& seen : {visits<128, true>(rows, columns), visits<128, false>(rows, columns),
                               visits<64, false>(rows, columns)}) {
        for (const int count : seen) ASSERT_EQ(count, 1) << rows << " rows, " << columns;
      }
    }
  }
}

// A pair never waits for a second tile of up to half the rows.
TEST(ExpertOrder, PairsHaveTwoTilesOfAboutTheSameTime) {
  for (std::int32_t rows = 0; rows < 9000; ++rows) {
    const ExpertOrder<128, true> order(rows, 2);
    for (std::int32_t i = 0; i < order.num_tasks(); ++i) {
      const std::int32_t num_rows = order.task(i).num_rows;
      ASSERT_TRUE(num_rows <= 128 || num_rows > 192) << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace xstage::moe
