#include "xstage/compare.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "xstage/error.hpp"

namespace xstage {
namespace {

LinkProfile profile(double rate, double half_width) {
  KindFit kind;
  kind.params.kind = StoreKind::bulk;
  kind.params.drain_rate = rate;
  kind.params.injection_rate = 50;
  kind.params.issue_curve = {{1024, 100}, {32768, 750}};
  kind.drain_rate_interval = Interval{rate - half_width, rate + half_width};
  LinkProfile result;
  result.name = "p";
  result.kinds.push_back(kind);
  return result;
}

Change rate_change(const LinkProfile& before, const LinkProfile& after, double tolerance = 0.02) {
  for (const Comparison& row : compare(before, after, tolerance)) {
    if (row.quantity == "drain_rate") return row.change;
  }
  ADD_FAILURE() << "no drain rate";
  return Change::same;
}

TEST(Compare, AProfileIsTheSameAsItself) {
  const LinkProfile p = profile(372, 1);
  EXPECT_EQ(overall(compare(p, p, 0.02)), Change::same);
}

TEST(Compare, WithinTheToleranceIsTheSameEvenBeyondIntervals) {
  EXPECT_EQ(rate_change(profile(372, 0.1), profile(376, 0.1)), Change::same);
}

TEST(Compare, BeyondToleranceAndIntervalsHasADirection) {
  EXPECT_EQ(rate_change(profile(372, 1), profile(186, 5)), Change::slower);
  EXPECT_EQ(rate_change(profile(186, 5), profile(372, 1)), Change::faster);
}

TEST(Compare, OverlappingIntervalsThatMissEachOthersValueAreAmbiguous) {
  EXPECT_EQ(rate_change(profile(372, 20), profile(340, 20)), Change::ambiguous);
}

TEST(Compare, AValueWithinTheOthersIntervalIsTheSame) {
  EXPECT_EQ(rate_change(profile(372, 20), profile(360, 1)), Change::same);
}

TEST(Compare, LowerTimesAreFaster) {
  LinkProfile before = profile(372, 1);
  LinkProfile after = before;
  after.kinds[0].params.issue_curve[1].issue_ns = 600;
  EXPECT_EQ(overall(compare(before, after, 0.02)), Change::faster);
  EXPECT_EQ(overall(compare(after, before, 0.02)), Change::slower);
}

TEST(Compare, BareNumbersNeedFiveTimesTheTolerance) {
  LinkProfile before = profile(372, 1);
  LinkProfile after = before;
  before.measurements = {{"flag_one_way", "ns", 1000, {}}};
  after.measurements = {{"flag_one_way", "ns", 1080, {}}};
  EXPECT_EQ(overall(compare(before, after, 0.02)), Change::same);
  after.measurements[0].value = 1120;
  EXPECT_EQ(overall(compare(before, after, 0.02)), Change::slower);
}

TEST(Compare, WhatOneSideLacksIsLeftOut) {
  LinkProfile before = profile(372, 1);
  before.kinds[0].params.capacity_mean_bytes = 9000;
  for (const Comparison& row : compare(before, profile(372, 1), 0.02)) {
    EXPECT_NE(row.quantity, "capacity_mean_bytes");
  }
}

TEST(Compare, OneSlowerQuantityDecides) {
  const std::vector<Comparison> rows = {{"bulk", "a", "ns", 1, 1, Change::faster},
                                        {"bulk", "b", "ns", 1, 1, Change::ambiguous},
                                        {"bulk", "c", "ns", 1, 1, Change::slower}};
  EXPECT_EQ(overall(rows), Change::slower);
  EXPECT_EQ(overall({rows[0], rows[1]}), Change::ambiguous);
  EXPECT_EQ(overall({rows[0]}), Change::faster);
  EXPECT_EQ(overall({}), Change::same);
}

TEST(Compare, NothingInCommonAndBadTolerancesAreRefused) {
  LinkProfile other = profile(372, 1);
  other.kinds[0].params.kind = StoreKind::tensor;
  EXPECT_THROW((void)compare(profile(372, 1), other, 0.02), Error);
  for (const double tolerance : {0.0, -1.0, 1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW((void)compare(profile(372, 1), profile(372, 1), tolerance), Error);
  }
}

}  // namespace
}  // namespace xstage
