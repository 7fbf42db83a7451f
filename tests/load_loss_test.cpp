#include <gtest/gtest.h>

#include "xstage/probe.hpp"

namespace xstage {
namespace {

Table interference() {
  Table table;
  table.name = "load_interference";
  table.columns = {"kind",      "phase", "bytes", "demand", "in_flight", "load_gb_s_per_sm",
                   "store_gb_s"};
  table.rows = {
      {std::string("none"), std::string("drifting"), 0.0, 0.0, 1.0, 40.0, 0.0},
      {std::string("none"), std::string("drifting"), 0.0, 0.0, 4.0, 60.0, 0.0},
      {std::string("bulk"), std::string("lockstep"), 8192.0, 0.83, 4.0, 20.0, 264.0},
      {std::string("bulk"), std::string("drifting"), 8192.0, 0.83, 4.0, 57.0, 264.0},
      {std::string("register16"), std::string("drifting"), 8192.0, 0.83, 4.0, 61.0, 264.0},
  };
  return table;
}

TEST(LoadRateLoss, IsLostLoadRatePerStoreRateOfTheSameSm) {
  // 132 SMs store 264 B/ns: 2 B/ns each; loads fall from 60 to 57 B/ns.
  const auto loss = load_rate_loss({interference()}, StoreKind::bulk, 132);
  ASSERT_TRUE(loss.has_value());
  EXPECT_DOUBLE_EQ(*loss, 1.5);
}

TEST(LoadRateLoss, NeverNegative) {
  EXPECT_DOUBLE_EQ(load_rate_loss({interference()}, StoreKind::register16, 132).value(), 0.0);
}

TEST(LoadRateLoss, AbsentWithoutTheTableTheKindOrTheControl) {
  EXPECT_FALSE(load_rate_loss({}, StoreKind::bulk, 132).has_value());
  EXPECT_FALSE(load_rate_loss({interference()}, StoreKind::tensor, 132).has_value());
  Table table = interference();
  table.rows.erase(table.rows.begin() + 1);
  EXPECT_FALSE(load_rate_loss({table}, StoreKind::bulk, 132).has_value());
}

// An aligned burst of 16384 bytes an SM, 10 SMs, drained at 10 B/ns: stored 163,840 bytes every
// 20,480 ns (8 B/ns). Loads that lose half of their rate lose half of the period, 10,240 ns, in
// which 102,400 bytes drain: 61,440 were let by.
Table aligned_bursts() {
  Table table = interference();
  table.rows.push_back(
      {std::string("bulk"), std::string("lockstep"), 16384.0, 0.8, 4.0, 30.0, 8.0});
  return table;
}

TEST(LoadBypassBytes, IsWhatABurstHoldsWhenLoadsBeginToWait) {
  Table table = aligned_bursts();
  table.rows.erase(table.rows.begin() + 2);
  const auto bypass = load_bypass_bytes({table}, StoreKind::bulk, 10, 10.0);
  ASSERT_TRUE(bypass.has_value());
  EXPECT_NEAR(*bypass, 61440.0, 1e-6);
}

TEST(LoadBypassBytes, NeverNegative) {
  Table table = aligned_bursts();
  table.rows.erase(table.rows.begin() + 2);
  EXPECT_DOUBLE_EQ(load_bypass_bytes({table}, StoreKind::bulk, 10, 100.0).value(), 0.0);
}

TEST(LoadBypassBytes, TensorStoresTakeThatOfBulkOnesWhereOnlyThoseWereMeasured) {
  Table table = aligned_bursts();
  table.rows.erase(table.rows.begin() + 2);
  EXPECT_NEAR(load_bypass_bytes({table}, StoreKind::tensor, 10, 10.0).value(), 61440.0, 1e-6);
  EXPECT_FALSE(load_bypass_bytes({table}, StoreKind::register16, 10, 10.0).has_value());
}

TEST(LoadBypassBytes, AbsentWithoutTheTableOrTheControl) {
  EXPECT_FALSE(load_bypass_bytes({}, StoreKind::bulk, 10, 10.0).has_value());
  Table table = aligned_bursts();
  table.rows.erase(table.rows.begin() + 1);
  EXPECT_FALSE(load_bypass_bytes({table}, StoreKind::bulk, 10, 10.0).has_value());
}

}  // namespace
}  // namespace xstage
