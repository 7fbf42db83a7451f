#include "model/paired.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace xstage::model {
namespace {

TEST(Paired, DriftCancelsWithinARound) {
  // Forwards a then b, backwards b then a, while everything becomes slower.
  std::vector<double> a;
  std::vector<double> b;
  const std::vector<double> clock(20, 1700);
  double now = 1000;
  for (int round = 0; round < 10; ++round) {
    a.push_back(now + 50);
    b.push_back(now + 10);
    b.push_back(now + 20);
    a.push_back(now + 80);
    now += 30;
  }
  const PairedEstimate e = paired_difference({a, clock}, {b, clock});
  EXPECT_DOUBLE_EQ(e.value, 50);
  ASSERT_TRUE(e.interval);
  EXPECT_DOUBLE_EQ(e.interval->low, 50);
  EXPECT_EQ(e.num_rounds, 10u);
}

TEST(Paired, RoundsAtDifferentClocksAreDropped) {
  const std::vector<double> a(12, 200);
  std::vector<double> b(12, 100);
  std::vector<double> clock_a(12, 1700);
  const std::vector<double> clock_b(12, 1700);
  b[4] = b[5] = 5;  // round 2
  clock_a[4] = clock_a[5] = 1710;
  const PairedEstimate e = paired_difference({a, clock_a}, {b, clock_b});
  EXPECT_EQ(e.num_dropped, 1u);
  EXPECT_EQ(e.num_rounds, 5u);
  EXPECT_DOUBLE_EQ(e.interval->high, 100);
  EXPECT_DOUBLE_EQ(paired_ratio({a, clock_a}, {b, clock_b}).value, 2);
}

TEST(Paired, ClocksThatAlwaysDifferAreToldAndNothingIsDropped) {
  const std::vector<double> a(12, 200);
  const std::vector<double> b(12, 100);
  const std::vector<double> clock_a(12, 1900);
  const std::vector<double> clock_b(12, 1980);
  const PairedEstimate e = paired_difference({a, clock_a}, {b, clock_b});
  EXPECT_TRUE(e.clocks_differ);
  EXPECT_EQ(e.num_rounds, 6u);
  EXPECT_EQ(e.num_dropped, 0u);
  EXPECT_DOUBLE_EQ(e.value, 100);
  EXPECT_FALSE(paired_difference({a, clock_a}, {b, clock_a}).clocks_differ);
}

TEST(Paired, NoRoundsAreNoNumber) {
  const std::vector<double> none;
  const PairedEstimate e = paired_ratio({none, none}, {none, none});
  EXPECT_TRUE(std::isnan(e.value));
  EXPECT_FALSE(e.interval);
  EXPECT_TRUE(std::isnan(round_median({none, none}).value));
}

TEST(Paired, RoundMedianIsOfRoundMeans) {
  const std::vector<double> ns = {1, 3, 10, 10, 2, 4};
  EXPECT_DOUBLE_EQ(round_median({ns, ns}).value, 3);
}

}  // namespace
}  // namespace xstage::model
