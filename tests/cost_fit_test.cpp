// Tile costs from measured calls: exact on exact timings, never negative, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "xstage/error.hpp"
#include "xstage/tile_costs.hpp"

namespace xstage {
namespace {

using ::testing::DoubleNear;

AttentionTiming timing(double steps, double tiles, double parts, double step_ns, double tile_ns,
                       double part_ns, double launch_ns) {
  return {steps, tiles, parts, launch_ns + steps * step_ns + tiles * tile_ns + parts * part_ns};
}

TEST(CostFit, FindsTheCostsThatMadeTheTimings) {
  const std::vector<AttentionTiming> timings = {
      timing(190, 8, 1, 2000, 1500, 700, 5000), timing(1600, 16, 0, 2000, 1500, 700, 5000),
      timing(110, 5, 2, 2000, 1500, 700, 5000), timing(6000, 8, 1, 2000, 1500, 700, 5000)};
  const AttentionCostFit fit = fit_attention_cost(timings, 5000);
  EXPECT_THAT(fit.step_ns, DoubleNear(2000, 0.1));
  EXPECT_THAT(fit.tile_ns, DoubleNear(1500, 5));
  EXPECT_THAT(fit.part_ns, DoubleNear(700, 5));
  EXPECT_LT(fit.worst_error, 1e-6);
}

TEST(CostFit, OneTimingGivesTheStepAlone) {
  const std::vector<AttentionTiming> timings = {timing(100, 4, 0, 2000, 0, 0, 5000)};
  const AttentionCostFit fit = fit_attention_cost(timings, 5000);
  EXPECT_DOUBLE_EQ(fit.step_ns, 2000);
  EXPECT_EQ(fit.tile_ns, 0);
  EXPECT_EQ(fit.part_ns, 0);
}

TEST(CostFit, NoCostIsNegative) {
  // Tiles that cost less than nothing: the fit without them is the honest one.
  const std::vector<AttentionTiming> timings = {timing(100, 10, 0, 2000, -300, 0, 5000),
                                                timing(1000, 10, 0, 2000, -300, 0, 5000),
                                                timing(3000, 20, 0, 2000, -300, 0, 5000)};
  const AttentionCostFit fit = fit_attention_cost(timings, 5000);
  EXPECT_GT(fit.step_ns, 1900);
  EXPECT_GE(fit.tile_ns, 0);
  EXPECT_GE(fit.part_ns, 0);
  EXPECT_GT(fit.worst_error, 0);
}

TEST(CostFit, TimingsThatAreMultiplesDoNotInventATileCost) {
  const std::vector<AttentionTiming> timings = {timing(100, 10, 0, 2000, 500, 0, 0),
                                                timing(200, 20, 0, 2000, 500, 0, 0)};
  const AttentionCostFit fit = fit_attention_cost(timings, 0);
  EXPECT_NEAR(fit.step_ns, 2050, 1e-6);
  EXPECT_EQ(fit.tile_ns, 0);
}

TEST(CostFit, RefusesNothingAndNonsense) {
  EXPECT_THROW((void)fit_attention_cost({}, 5000), Error);
  const std::vector<AttentionTiming> no_steps = {{0, 1, 0, 6000}};
  EXPECT_THROW((void)fit_attention_cost(no_steps, 5000), Error);
  const std::vector<AttentionTiming> too_fast = {{10, 1, 0, 4000}};
  EXPECT_THROW((void)fit_attention_cost(too_fast, 5000), Error);
}

}  // namespace
}  // namespace xstage
