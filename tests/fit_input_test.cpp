// What the fit refuses, the error metric, the held-out grid, and the robust statistics below it
// all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "model/robust.hpp"
#include "synthetic_samples.hpp"
#include "xstage/error.hpp"
#include "xstage/fit.hpp"
#include "xstage/grid.hpp"

namespace xstage {
namespace {

using test::synthesize;
using test::true_link;

struct BadSample {
  const char* what;
  void (*spoil)(Sample& sample);
};

class BadSamples : public testing::TestWithParam<BadSample> {};

TEST_P(BadSamples, AreUsageErrorsThatNameTheSample) {
  std::vector<Sample> samples = synthesize(true_link(), {});
  const auto idx = std::size_t{700};
  ASSERT_EQ(samples[idx].experiment, Experiment::periodic);
  GetParam().spoil(samples[idx]);
  for (const bool evaluating : {false, true}) {
    try {
      if (evaluating) {
        (void)evaluate(true_link(), samples);
      } else {
        (void)fit(samples);
      }
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.category(), ErrorCategory::usage);
      EXPECT_THAT(error.what(), testing::HasSubstr("sample 700"));
      EXPECT_THAT(error.what(), testing::HasSubstr(GetParam().what));
    }
  }
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

INSTANTIATE_TEST_SUITE_P(
    All, BadSamples,
    testing::Values(BadSample{"producers 0", [](Sample& s) { s.num_producers = 0; }},
                    BadSample{"producers -7", [](Sample& s) { s.num_producers = -7; }},
                    BadSample{"bytes nan", [](Sample& s) { s.bytes = kNan; }},
                    BadSample{"bytes 0", [](Sample& s) { s.bytes = 0; }},
                    BadSample{"bytes 1e+308", [](Sample& s) { s.bytes = 1e308; }},
                    BadSample{"issue_ns nan", [](Sample& s) { s.issue_ns = kNan; }},
                    BadSample{"issue_ns 0", [](Sample& s) { s.issue_ns = 0; }},
                    BadSample{"issue_ns 1e+308", [](Sample& s) { s.issue_ns = 1e308; }},
                    BadSample{"gap_ns -1", [](Sample& s) { s.gap_ns = -1; }},
                    BadSample{"period_ns inf", [](Sample& s) { s.period_ns = kInfinity; }},
                    BadSample{"period_ns 0", [](Sample& s) { s.period_ns = 0; }},
                    BadSample{"visible_ns -2", [](Sample& s) { s.visible_ns = -2; }},
                    BadSample{"directions 3", [](Sample& s) { s.num_directions = 3; }},
                    BadSample{"neither", [](Sample& s) { s.gap_ns = s.period_ns = kNan; }}),
    [](const auto& test) { return "case" + std::to_string(test.index); });

TEST(BadSamples, NoneAtAll) {
  EXPECT_THROW((void)fit({}), Error);
}

TEST(BadSamples, LegalExtremesGiveAnAnswer) {
  // Nothing here makes sense together; whatever comes out is finite and the call returns.
  const unsigned seed = 23;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto wild = [&](double low, double high) {
    return std::exp(std::uniform_real_distribution<double>(std::log(low), std::log(high))(random));
  };
  for (int round = 0; round < 60; ++round) {
    std::vector<Sample> samples(static_cast<std::size_t>(1 + round * 3));
    for (Sample& sample : samples) {
      sample.experiment = random() % 2 == 0 ? Experiment::isolated : Experiment::periodic;
      sample.kind = static_cast<StoreKind>(random() % 2);
      sample.num_producers = static_cast<int>(wild(1, 300));
      sample.bytes = wild(1, 1e9);
      sample.gap_ns = wild(1e-3, 1e12);
      sample.issue_ns = wild(1e-3, 1e12);
      sample.issue_slowest_ns = wild(1e-3, 1e12);
      sample.num_directions = 1 + static_cast<int>(random() % 2);
    }
    const Fit result = fit(samples, {.num_bootstrap = 5});
    for (const KindFit& kind : result.kinds) {
      EXPECT_TRUE(std::isfinite(kind.params.drain_rate));
      EXPECT_GE(kind.params.drain_rate, 0);
      EXPECT_TRUE(std::isfinite(kind.params.injection_rate));
    }
  }
}

TEST(Evaluate, PerfectPredictionsHaveNoErrorAndOffsetsTheirOwn) {
  const LinkParams truth = true_link();
  std::vector<Sample> samples =
      synthesize(truth, {.num_rounds = 1, .noise = 0, .outlier_share = 0});
  EXPECT_LT(evaluate(truth, samples).burst_gap.worst, 1e-9);
  EXPECT_LT(evaluate(truth, samples).isolated_slowest.worst, 1e-9);

  // One periodic point whose period is 100 ns longer than V/R - 0 allows: error 100 / period.
  Sample sample;
  sample.experiment = Experiment::periodic;
  sample.kind = truth.kind;
  sample.num_producers = 132;
  sample.bytes = 32768;
  const double drain_ns = 132 * 32768 / 372.0;
  sample.gap_ns = 1000;
  sample.issue_ns = drain_ns - 1000 + 100;
  sample.period_ns = drain_ns + 100;
  const HeldOut errors = evaluate(truth, std::vector<Sample>{sample});
  EXPECT_EQ(errors.burst_gap.num_points, 1);
  EXPECT_NEAR(errors.burst_gap.median, 100 / (drain_ns + 100), 1e-9);
  EXPECT_NEAR(errors.period.median, 100 / (drain_ns + 100), 1e-9);
  EXPECT_NEAR(errors.coupled.median, (1200 + 1000 - 100) / (drain_ns + 100), 1e-9);
  EXPECT_EQ(errors.near_onset_share, 0);
  EXPECT_THAT(errors.burst_gap.worst_point, testing::HasSubstr("32 KiB"));
}

TEST(Grid, HeldOutPartCannotDodgeTheKnee) {
  for (const double rate : {52.5, 372.0}) {
    const LinkParams truth = [&] {
      LinkParams link = true_link();
      link.drain_rate = rate;
      return link;
    }();
    std::vector<Sample> held_out;
    for (const Sample& sample :
         synthesize(truth, {.num_rounds = 1, .noise = 0, .outlier_share = 0})) {
      if (is_held_out(sample, rate)) held_out.push_back(sample);
    }
    const HeldOut errors = evaluate(truth, held_out);
    EXPECT_GE(errors.near_onset_share, 0.3) << rate;
    EXPECT_GE(errors.burst_gap.num_points, 40) << rate;
    EXPECT_GT(errors.isolated_slowest.num_points, 5) << rate;
  }
}

TEST(Grid, FlagsAgreeWithTheRuleOnSamples) {
  int num_held_out = 0;
  for (const GridPoint& point : measuring_grid(132, 372)) {
    Sample sample;
    sample.experiment = point.experiment;
    sample.num_producers = point.num_producers;
    sample.bytes = point.bytes;
    sample.gap_ns = point.gap_ns;
    EXPECT_EQ(is_held_out(sample, 372), point.held_out);
    num_held_out += point.held_out;
  }
  EXPECT_GT(num_held_out, 40);
  EXPECT_THROW((void)measuring_grid(0, 372), Error);
  EXPECT_THROW((void)measuring_grid(132, kNan), Error);
}

TEST(Grid, SmallGpus) {
  for (const int num_sms : {1, 2, 3, 20}) {
    for (const GridPoint& point : measuring_grid(num_sms, 50)) {
      EXPECT_GE(point.num_producers, 1);
      EXPECT_LE(point.num_producers, num_sms);
    }
  }
}

TEST(Robust, MedianQuantileSlope) {
  EXPECT_DOUBLE_EQ(model::median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(model::median({4, 1, 2, 3}), 2.5);
  EXPECT_DOUBLE_EQ(model::quantile({0, 10}, 0.95), 9.5);
  EXPECT_DOUBLE_EQ(model::quantile({5}, 0.95), 5);
  EXPECT_TRUE(std::isnan(model::median({})));
  EXPECT_DOUBLE_EQ(*model::theil_sen_slope({{0, 0}, {1, 2}, {2, 4}, {3, 600}, {4, 8}}), 2);
  EXPECT_FALSE(model::theil_sen_slope({{1, 1}, {1, 2}}));
}

}  // namespace
}  // namespace xstage
