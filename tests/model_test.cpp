// The model against values derived by hand, its limits, conservation and monotonicity.
#include "xstage/model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>

#include "example_links.hpp"
#include "xstage/error.hpp"

namespace xstage {
namespace {

using test::example_link;
using test::kExampleBurst;
using test::random_burst;
using test::random_link;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Predict, DrainLimitedSteadyState) {
  const Prediction p = predict(example_link(), kExampleBurst);
  EXPECT_DOUBLE_EQ(p.t0_ns, 600);
  EXPECT_DOUBLE_EQ(p.issue_ns, 6192);  // 8192 - 2000
  EXPECT_DOUBLE_EQ(p.wait_ns, 5592);
  EXPECT_DOUBLE_EQ(p.period_ns, 8192);
  EXPECT_DOUBLE_EQ(p.onset_gap_ns, 7592);
  EXPECT_DOUBLE_EQ(p.demand, 3276800.0 / 2600);
  EXPECT_EQ(p.regime, Regime::drain_limited);
}

TEST(Predict, FreeSteadyStateAndTheOnsetBetween) {
  Burst burst = kExampleBurst;
  burst.gap_ns = 10000;
  const Prediction free = predict(example_link(), burst);
  EXPECT_DOUBLE_EQ(free.issue_ns, 600);
  EXPECT_DOUBLE_EQ(free.period_ns, 10600);
  EXPECT_EQ(free.regime, Regime::free);

  burst.gap_ns = free.onset_gap_ns;
  EXPECT_EQ(predict(example_link(), burst).regime, Regime::free);
  burst.gap_ns = free.onset_gap_ns - 1;
  EXPECT_EQ(predict(example_link(), burst).regime, Regime::drain_limited);
}

TEST(Predict, Counterfactuals) {
  const Prediction p = predict(example_link(), kExampleBurst);
  EXPECT_DOUBLE_EQ(p.coupled.issue_ns, 9192);  // V/R + latency
  EXPECT_DOUBLE_EQ(p.coupled.period_ns, 11192);
  EXPECT_DOUBLE_EQ(p.unbounded.issue_ns, 600);
  EXPECT_DOUBLE_EQ(p.unbounded.period_ns, 2600);
  EXPECT_DOUBLE_EQ(p.alpha_beta.issue_ns, 100 + 1000 + 8192);
  EXPECT_DOUBLE_EQ(p.alpha_beta.period_ns, 11292);
}

TEST(Predict, IsolatedBurst) {
  const Prediction p = predict(example_link(), kExampleBurst);
  EXPECT_NEAR(p.isolated_issue_ns.value(), 4096, 1e-6);  // (V - Q)/R
  EXPECT_NEAR(p.isolated_issue_slowest_ns.value(), 4096, 1e-6);
  EXPECT_DOUBLE_EQ(p.isolated_visible_ns.value(), 9192);
  EXPECT_EQ(p.first_stalled_burst_idx, 0);
}

TEST(Predict, IsolatedKneeCountsWhatDrainsDuringTheBurst) {
  LinkParams link = example_link();
  link.issue_curve = {{1024, 500}};  // T0(B) = 500 + (B - 1024)/50
  // B = q + (R/K)*T0(B) = 16384 + 4*(500 + (B - 1024)/50)
  const double knee = (16384 + 4 * (500 - 1024 / 50.0)) / (1 - 4 / 50.0);
  const Prediction below = predict(link, {100, knee - 1, 0});
  EXPECT_EQ(below.isolated_issue_ns, below.t0_ns);
  const Prediction above = predict(link, {100, knee + 10, 0});
  EXPECT_GT(above.isolated_issue_ns.value(), above.t0_ns);
}

TEST(Predict, LimitsOfTheCapacity) {
  LinkParams link = example_link();
  link.capacity_mean_bytes = 0;
  EXPECT_NEAR(predict(link, kExampleBurst).isolated_issue_ns.value(), 8192, 1e-6);  // V/R
  link.capacity_mean_bytes = kInfinity;
  EXPECT_DOUBLE_EQ(predict(link, kExampleBurst).isolated_issue_ns.value(), 600);  // T0
}

TEST(Predict, UnknownCapacityGivesNoNumber) {
  LinkParams link = example_link();
  link.capacity_mean_bytes.reset();
  link.capacity_slowest_bytes.reset();
  const Prediction p = predict(link, kExampleBurst);
  EXPECT_FALSE(p.isolated_issue_ns);
  EXPECT_FALSE(p.isolated_issue_slowest_ns);
  EXPECT_FALSE(p.first_stalled_burst_idx);
  EXPECT_DOUBLE_EQ(p.issue_ns, 6192);
  EXPECT_THROW((void)predict_transient(link, kExampleBurst, 3), Error);
  EXPECT_THROW((void)predict_isolated_producers(link, 100, 32768), Error);
}

TEST(Predict, FewProducersAreHeldByTheirOwnCeiling) {
  const LinkParams link = example_link();  // 4 * 50 = 200 B/ns < 400
  EXPECT_DOUBLE_EQ(effective_drain_rate(link, 4), 200);
  const Prediction p = predict(link, {4, 1e6, 0});
  const double t0 = 600 + (1e6 - 32768) / 50;
  EXPECT_DOUBLE_EQ(p.t0_ns, t0);
  EXPECT_DOUBLE_EQ(p.issue_ns, std::max(t0, 4e6 / 200));
  EXPECT_EQ(predict(link, {4, 1e6, 200}).max_free_bytes, kInfinity);
  // A curve that starts steeper than 1/r: the period is that of the SMs, B/r.
  LinkParams steep = link;
  steep.issue_curve = {{1024, 10}};
  const Prediction q = predict(steep, {4, 1e6, 0});
  EXPECT_DOUBLE_EQ(q.period_ns, 1e6 / 50);
}

TEST(Predict, LargestFreeBurst) {
  LinkParams link = example_link();
  link.issue_curve = {{1024, 100}};
  // K*B/R = T0(B) + G: 0.25 B = 100 + (B - 1024)/50 + 2000
  const double expected = (2100 - 1024 / 50.0) / (0.25 - 1 / 50.0);
  const Prediction p = predict(link, kExampleBurst);
  EXPECT_NEAR(p.max_free_bytes, expected, 1e-6);
  EXPECT_EQ(predict(link, {100, expected - 0.01, 2000}).regime, Regime::free);
  EXPECT_EQ(predict(link, {100, expected + 0.01, 2000}).regime, Regime::drain_limited);
}

TEST(Predict, LargestFreeBurstIsTheBoundaryForRandomLinks) {
  const unsigned seed = 20261130;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 2000; ++i) {
    const LinkParams link = random_link(random, 0);
    Burst burst = random_burst(random);
    const double limit = predict(link, burst).max_free_bytes;
    if (limit == kInfinity) continue;
    burst.bytes = limit * (1 - 1e-6);
    EXPECT_EQ(predict(link, burst).regime, Regime::free) << i;
    burst.bytes = limit * (1 + 1e-6);
    EXPECT_EQ(predict(link, burst).regime, Regime::drain_limited) << i;
  }
}

TEST(Predict, Monotone) {
  const unsigned seed = 7;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 2000; ++i) {
    const LinkParams link = random_link(random, 0.9);
    const Burst burst = random_burst(random);
    const Prediction base = predict(link, burst);

    LinkParams faster = link;
    faster.drain_rate *= 1.1;
    EXPECT_LE(predict(faster, burst).issue_ns, base.issue_ns) << i;
    EXPECT_LE(predict(faster, burst).onset_gap_ns, base.onset_gap_ns) << i;
    EXPECT_LE(*predict(faster, burst).isolated_issue_ns, *base.isolated_issue_ns * (1 + 1e-9)) << i;

    LinkParams deeper = link;
    *deeper.capacity_mean_bytes += 1000;
    *deeper.capacity_slowest_bytes += 1000;
    EXPECT_LE(*predict(deeper, burst).isolated_issue_ns, *base.isolated_issue_ns * (1 + 1e-9)) << i;
    EXPECT_LE(*predict(deeper, burst).isolated_issue_slowest_ns,
              *base.isolated_issue_slowest_ns * (1 + 1e-9))
        << i;

    Burst later = burst;
    later.gap_ns += 500;
    EXPECT_LE(predict(link, later).issue_ns, base.issue_ns) << i;
    EXPECT_GE(predict(link, later).period_ns, base.period_ns * (1 - 1e-12)) << i;
    EXPECT_GE(predict(link, later).max_free_bytes, base.max_free_bytes) << i;
  }
}

TEST(Transient, FollowsTheRecurrenceByHand) {
  LinkParams link = example_link();
  // Q = 1,638,400; V = 1,600,000 fits; T0(16000) = 100 + 500*(16000 - 1024)/31744.
  const Burst burst{100, 16000, 500};
  const double t0 = 100 + 500.0 * (16000 - 1024) / 31744;
  const auto times = predict_transient(link, burst, 4);
  const double backlog1 = 1.6e6 - 400 * (t0 + 500);
  const double time1 = (backlog1 + 1.6e6 - 1638400) / 400;
  const double backlog2 = backlog1 + 1.6e6 - 400 * (time1 + 500);
  const double time2 = (backlog2 + 1.6e6 - 1638400) / 400;
  ASSERT_EQ(times.size(), 4u);
  EXPECT_DOUBLE_EQ(times[0], t0);
  EXPECT_NEAR(times[1], time1, 1e-6);
  EXPECT_NEAR(times[2], time2, 1e-6);
  EXPECT_NEAR(times[3], 1.6e6 / 400 - 500, 1e-6);
  EXPECT_EQ(predict(link, burst).first_stalled_burst_idx, 1);
}

TEST(Transient, EndsOnTheClosedFormOrOnTheIsolatedBurst) {
  const unsigned seed = 11;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  int num_closed = 0;
  int num_isolated = 0;
  for (int i = 0; i < 1000; ++i) {
    const LinkParams link = random_link(random, 0);
    const Burst burst = random_burst(random);
    const Prediction p = predict(link, burst);
    // A pace just below R converges slowly; what is left of the backlog is not the closed form yet.
    if (std::abs(p.demand / effective_drain_rate(link, burst.num_producers) - 1) < 0.02) continue;
    const double last = predict_transient(link, burst, 5000).back();
    const double total = burst.num_producers * *link.capacity_mean_bytes;
    const double rate = effective_drain_rate(link, burst.num_producers);
    if (total >= rate * burst.gap_ns) {
      EXPECT_NEAR(last, p.issue_ns, 1e-6 * p.issue_ns) << i;
      ++num_closed;
    } else {
      EXPECT_NEAR(last, *p.isolated_issue_ns, 1e-6 * last) << i;
      ++num_isolated;
    }
  }
  EXPECT_GT(num_closed, 50);
  EXPECT_GT(num_isolated, 50);
}

TEST(Transient, FirstStalledBurstIsTheFirstThatWaits) {
  const unsigned seed = 13;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  int num_late = 0;
  for (int i = 0; i < 3000; ++i) {
    const LinkParams link = random_link(random, 0);
    Burst burst = random_burst(random);
    burst.bytes = std::min(burst.bytes, *link.capacity_mean_bytes + 500);
    if (burst.bytes <= 0) continue;
    burst.gap_ns /= 10;
    const Prediction p = predict(link, burst);
    const auto times = predict_transient(link, burst, 3000);
    std::optional<long> first;
    for (std::size_t n = 0; n < times.size() && !first; ++n) {
      if (times[n] > p.t0_ns * (1 + 1e-9)) first = static_cast<long>(n);
    }
    if (first) {
      ASSERT_TRUE(p.first_stalled_burst_idx) << i;
      EXPECT_LE(std::abs(*p.first_stalled_burst_idx - *first), *first > 500 ? 1 : 0) << i;
      num_late += *first > 0;
    } else if (p.first_stalled_burst_idx) {
      EXPECT_GE(*p.first_stalled_burst_idx, 3000) << i;
    }
  }
  EXPECT_GT(num_late, 100);
}

TEST(Transient, UnboundedStageNeverWaits) {
  LinkParams link = example_link();
  link.capacity_mean_bytes = link.capacity_slowest_bytes = kInfinity;
  EXPECT_FALSE(predict(link, kExampleBurst).first_stalled_burst_idx);
  EXPECT_THAT(predict_transient(link, kExampleBurst, 100), testing::Each(600.0));
}

TEST(StageOf, ByProducerCount) {
  LinkParams link = example_link();
  EXPECT_EQ(stage_of(link, 7).capacity_mean_bytes, 16384);
  link.stages = {{16, 20000, 18000, 0.8}, {64, 10000, std::nullopt, 0.4}};
  EXPECT_NEAR(stage_of(link, 4).capacity_mean_bytes.value(), 40000, 1e-6);  // half per factor 4
  EXPECT_EQ(stage_of(link, 4).capacity_slowest_bytes, 18000);
  EXPECT_EQ(stage_of(link, 4).share_spread, 0.8);
  EXPECT_EQ(stage_of(link, 16).share_spread, 0.8);
  const Stage middle = stage_of(link, 32);  // half-way in log K
  EXPECT_EQ(middle.num_producers, 32);
  EXPECT_NEAR(middle.capacity_mean_bytes.value(), std::sqrt(20000.0 * 10000.0), 1e-6);
  EXPECT_NEAR(middle.capacity_slowest_bytes.value(), 18000, 1e-9);
  EXPECT_NEAR(middle.share_spread, 0.6, 1e-12);
  EXPECT_EQ(stage_of(link, 132).capacity_mean_bytes, 10000);
  EXPECT_THROW((void)stage_of(link, 0), Error);

  // No steeper than a shared stage, no rising with K.
  link.stages = {{16, 20000, 10000, 0}, {32, 1000, 11000, 0}};
  EXPECT_NEAR(stage_of(link, 8).capacity_mean_bytes.value(), 40000, 1e-6);
  EXPECT_EQ(stage_of(link, 8).capacity_slowest_bytes, 10000);

  link.stages = {{100, 8192, 8192, 0}};
  EXPECT_NEAR(predict(link, kExampleBurst).isolated_issue_ns.value(), 8192 * 0.75, 1e-6);
  EXPECT_NEAR(predict_transient(link, kExampleBurst, 1)[0], 8192 * 0.75, 1e-6);
}

TEST(IssueCurve, InterpolatesAndExtends) {
  const LinkParams link = example_link();
  EXPECT_DOUBLE_EQ(issue_time_empty(link, 1), 100);
  EXPECT_DOUBLE_EQ(issue_time_empty(link, 1024), 100);
  EXPECT_DOUBLE_EQ(issue_time_empty(link, (1024 + 32768) / 2.0), 350);
  EXPECT_DOUBLE_EQ(issue_time_empty(link, 32768), 600);
  EXPECT_DOUBLE_EQ(issue_time_empty(link, 32768 + 5000), 700);
}

struct BadInput {
  const char* what;                               // must be in the message
  void (*spoil)(LinkParams& link, Burst& burst);  // makes a legal input illegal
};

class BadInputs : public testing::TestWithParam<BadInput> {};

TEST_P(BadInputs, AreUsageErrorsThatNameTheValueAndTheLegalRange) {
  LinkParams link = example_link();
  Burst burst = kExampleBurst;
  GetParam().spoil(link, burst);
  for (const bool transient : {false, true}) {
    try {
      if (transient) {
        (void)predict_transient(link, burst, 2);
      } else {
        (void)predict(link, burst);
      }
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.category(), ErrorCategory::usage);
      EXPECT_THAT(error.what(), testing::HasSubstr(GetParam().what));
      EXPECT_THAT(error.what(), testing::HasSubstr("legal"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BadInputs,
    testing::Values(
        BadInput{"producers 0", [](LinkParams&, Burst& b) { b.num_producers = 0; }},
        BadInput{"producers -1", [](LinkParams&, Burst& b) { b.num_producers = -1; }},
        BadInput{"producers 2", [](LinkParams&, Burst& b) { b.num_producers = 2'000'000'000; }},
        BadInput{"bytes per producer 0", [](LinkParams&, Burst& b) { b.bytes = 0; }},
        BadInput{"bytes per producer nan", [](LinkParams&, Burst& b) { b.bytes = kNan; }},
        BadInput{"bytes per producer 1e+308", [](LinkParams&, Burst& b) { b.bytes = 1e308; }},
        BadInput{"gap -1", [](LinkParams&, Burst& b) { b.gap_ns = -1; }},
        BadInput{"gap inf", [](LinkParams&, Burst& b) { b.gap_ns = kInfinity; }},
        BadInput{"drain rate R 0", [](LinkParams& l, Burst&) { l.drain_rate = 0; }},
        BadInput{"drain rate R nan", [](LinkParams& l, Burst&) { l.drain_rate = kNan; }},
        BadInput{"injection rate r -5", [](LinkParams& l, Burst&) { l.injection_rate = -5; }},
        BadInput{"no point", [](LinkParams& l, Burst&) { l.issue_curve.clear(); }},
        BadInput{"bytes 1024", [](LinkParams& l, Burst&) { l.issue_curve[1].bytes = 1024; }},
        BadInput{"issue time nan", [](LinkParams& l, Burst&) { l.issue_curve[0].issue_ns = kNan; }},
        BadInput{"capacity by the mean -1",
                 [](LinkParams& l, Burst&) { l.capacity_mean_bytes = -1; }},
        BadInput{"capacity by the slowest nan",
                 [](LinkParams& l, Burst&) { l.capacity_slowest_bytes = kNan; }},
        BadInput{"share spread 1", [](LinkParams& l, Burst&) { l.share_spread = 1; }},
        BadInput{"stage: producers 0",
                 [](LinkParams& l, Burst&) {
                   l.stages = {{0, 1, 1, 0}};
                 }},
        BadInput{"stage: producers 16",
                 [](LinkParams& l, Burst&) {
                   l.stages = {{16, 1, 1, 0}, {16, 1, 1, 0}};
                 }},
        BadInput{"stage: share spread 2",
                 [](LinkParams& l, Burst&) {
                   l.stages = {{16, 1, 1, 2}};
                 }},
        BadInput{"latency -3", [](LinkParams& l, Burst&) { l.visible_latency_ns = -3; }},
        BadInput{"factor 0", [](LinkParams& l, Burst&) { l.both_directions_factor = 0; }}),
    [](const auto& test) { return "case" + std::to_string(test.index); });

TEST(BadInput, NumberOfBursts) {
  EXPECT_THROW((void)predict_transient(example_link(), kExampleBurst, 0), Error);
  EXPECT_THROW((void)predict_transient(example_link(), kExampleBurst, -4), Error);
}

}  // namespace
}  // namespace xstage
