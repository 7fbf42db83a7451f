// The fit: known parameters come back from noisy samples, what cannot be known is said, held-out
// samples never matter, order never matters, and the shipped measurements meet the accuracy bars.
#include "xstage/fit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "synthetic_samples.hpp"
#include "xstage/error.hpp"
#include "xstage/files.hpp"
#include "xstage/grid.hpp"

namespace xstage {
namespace {

using test::synthesize;
using test::true_link;

bool has_reason(const KindFit& kind, std::string_view quantity) {
  return std::any_of(kind.unidentified.begin(), kind.unidentified.end(),
                     [&](const Unidentified& entry) {
                       return entry.quantity == quantity && !entry.reason.empty();
                     });
}

const KindFit& only_kind(const Fit& fit) {
  EXPECT_EQ(fit.kinds.size(), 1u);
  return fit.kinds.front();
}

void expect_same_params(const LinkParams& a, const LinkParams& b) {
  EXPECT_EQ(a.drain_rate, b.drain_rate);
  EXPECT_EQ(a.injection_rate, b.injection_rate);
  EXPECT_EQ(a.capacity_mean_bytes, b.capacity_mean_bytes);
  EXPECT_EQ(a.capacity_slowest_bytes, b.capacity_slowest_bytes);
  EXPECT_EQ(a.share_spread, b.share_spread);
  EXPECT_EQ(a.visible_latency_ns, b.visible_latency_ns);
  ASSERT_EQ(a.issue_curve.size(), b.issue_curve.size());
  for (std::size_t i = 0; i < a.issue_curve.size(); ++i) {
    EXPECT_EQ(a.issue_curve[i].issue_ns, b.issue_curve[i].issue_ns);
  }
}

TEST(Fit, KnownParametersComeBackFromNoiseAndOutliers) {
  for (const unsigned long long seed : {1ULL, 2ULL, 3ULL}) {
    SCOPED_TRACE(seed);
    const LinkParams truth = true_link();
    const Fit result = fit(synthesize(truth, {.seed = seed}));
    const KindFit& kind = only_kind(result);
    EXPECT_NEAR(kind.params.drain_rate, 372, 0.01 * 372);
    EXPECT_NEAR(kind.params.injection_rate, 50, 0.03 * 50);
    EXPECT_NEAR(kind.params.capacity_mean_bytes.value(), 17000, 0.05 * 17000);
    EXPECT_NEAR(kind.params.capacity_slowest_bytes.value(), 17000, 0.05 * 17000);
    EXPECT_NEAR(kind.params.share_spread, 0.4, 0.05);
    EXPECT_NEAR(kind.params.visible_latency_ns.value(), 1200, 100);
    ASSERT_TRUE(kind.drain_rate_interval);
    EXPECT_LE(kind.drain_rate_interval->low, 372 * 1.002);
    EXPECT_GE(kind.drain_rate_interval->high, 372 * 0.998);
    ASSERT_TRUE(kind.capacity_mean_interval);
    EXPECT_LE(kind.capacity_mean_interval->low, 17000 * 1.02);
    EXPECT_GE(kind.capacity_mean_interval->high, 17000 * 0.98);
    ASSERT_TRUE(kind.held_out);
    EXPECT_LT(kind.held_out->burst_gap.p95, 0.02);
    EXPECT_GT(kind.held_out->unbounded.p95, 0.2);
  }
}

TEST(Fit, CapacityByProducerCountAgreesWhenItSitsInTheSm) {
  const Fit result = fit(synthesize(true_link(), {.noise = 0, .outlier_share = 0}));
  const KindFit& kind = only_kind(result);
  ASSERT_EQ(kind.capacity_at_k.size(), 3u);  // 16, 66, 132: one and four cannot fill the link
  EXPECT_EQ(kind.capacity_at_k[0].num_producers, 16);
  EXPECT_EQ(kind.capacity_at_k[2].num_producers, 132);
  for (const CapacityAtK& row : kind.capacity_at_k) {
    ASSERT_TRUE(row.by_mean) << row.num_producers;
    EXPECT_NEAR(row.by_mean->bytes, 17000, 0.05 * 17000) << row.num_producers;
    EXPECT_NEAR(row.by_slowest->bytes, 17000, 0.05 * 17000) << row.num_producers;
    EXPECT_NEAR(row.share_spread.value(), 0.4, 0.051) << row.num_producers;
  }
}

TEST(Fit, ASharedBufferShowsAsCapacityThatFallsWithK) {
  // 17000 bytes per SM at 132 producers, but the total stays: 34000 per SM at 66.
  LinkParams all = true_link();
  LinkParams half = all;
  half.capacity_mean_bytes = half.capacity_slowest_bytes = 34000;
  std::vector<Sample> samples;
  for (const LinkParams& link : {all, half}) {
    const int count = link.capacity_mean_bytes == 34000 ? 66 : 132;
    for (const Sample& sample : synthesize(link, {.noise = 0, .outlier_share = 0})) {
      if (sample.num_producers == count || sample.num_producers < 16) samples.push_back(sample);
    }
  }
  const Fit result = fit(samples);
  const KindFit& kind = only_kind(result);
  ASSERT_EQ(kind.capacity_at_k.size(), 2u);
  EXPECT_NEAR(kind.capacity_at_k[0].by_mean->bytes / kind.capacity_at_k[1].by_mean->bytes, 2, 0.2);
}

TEST(Fit, DoesNotDependOnTheOrderOfSamples) {
  std::vector<Sample> samples = synthesize(true_link(), {});
  const Fit first = fit(samples);
  std::mt19937_64 random(5);
  std::shuffle(samples.begin(), samples.end(), random);
  const Fit second = fit(samples);
  expect_same_params(only_kind(first).params, only_kind(second).params);
  EXPECT_EQ(first.kinds[0].capacity_mean_interval->low,
            second.kinds[0].capacity_mean_interval->low);
  EXPECT_EQ(first.kinds[0].drain_rate_interval->high, second.kinds[0].drain_rate_interval->high);
  EXPECT_EQ(first.kinds[0].held_out->burst_gap.median, second.kinds[0].held_out->burst_gap.median);
}

TEST(Fit, SeedMovesIntervalsAndNothingElse) {
  const std::vector<Sample> samples = synthesize(true_link(), {});
  const Fit first = fit(samples, {.seed = 1});
  const Fit second = fit(samples, {.seed = 2});
  expect_same_params(only_kind(first).params, only_kind(second).params);
}

TEST(Fit, PointsVoteNotRows) {
  const std::vector<Sample> samples =
      synthesize(true_link(), {.num_rounds = 1, .outlier_share = 0});
  std::vector<Sample> weighted = samples;
  for (const Sample& sample : samples) {
    if (sample.bytes < 30000) continue;
    for (int copy = 0; copy < 20; ++copy) weighted.push_back(sample);
  }
  expect_same_params(only_kind(fit(samples)).params, only_kind(fit(weighted)).params);
}

TEST(Fit, HeldOutSamplesNeverEnter) {
  const std::vector<Sample> samples = synthesize(true_link(), {});
  const double rate = rough_drain_rate(samples, StoreKind::register16);
  std::vector<Sample> spoilt = samples;
  int num_held_out = 0;
  for (Sample& sample : spoilt) {
    if (!is_held_out(sample, rate)) continue;
    ++num_held_out;
    // The gap stays, so the sample stays held out.
    sample.issue_ns *= 3;
    if (sample.experiment == Experiment::periodic) {
      sample.period_ns = sample.issue_ns + sample.gap_ns;
    } else {
      sample.issue_slowest_ns *= 3;
      sample.visible_slowest_ns *= 3;
    }
  }
  ASSERT_GT(num_held_out, 100);
  const Fit clean = fit(samples);
  const Fit dirty = fit(spoilt);
  expect_same_params(only_kind(clean).params, only_kind(dirty).params);
  EXPECT_GT(dirty.kinds[0].held_out->burst_gap.median,
            clean.kinds[0].held_out->burst_gap.median + 0.05);
}

TEST(Fit, HoldOutFalseFitsEverything) {
  const std::vector<Sample> samples = synthesize(true_link(), {});
  const Fit everything = fit(samples, {.hold_out = false});
  const KindFit& kind = only_kind(everything);
  EXPECT_FALSE(kind.held_out);
  EXPECT_GT(kind.residuals.num_points, only_kind(fit(samples)).residuals.num_points);
}

TEST(Fit, NoBurstAboveTheCapacityMeansNoCapacity) {
  LinkParams truth = true_link();
  truth.capacity_mean_bytes = truth.capacity_slowest_bytes = 200'000;
  const Fit result = fit(synthesize(truth, {}));
  const KindFit& kind = only_kind(result);
  EXPECT_FALSE(kind.params.capacity_mean_bytes);
  EXPECT_FALSE(kind.params.capacity_slowest_bytes);
  EXPECT_FALSE(kind.capacity_mean_interval);
  EXPECT_TRUE(has_reason(kind, "capacity_mean_bytes"));
  EXPECT_TRUE(has_reason(kind, "capacity_slowest_bytes"));
  EXPECT_NEAR(kind.params.drain_rate, 372, 4);
  for (const CapacityAtK& row : kind.capacity_at_k) EXPECT_FALSE(row.by_mean);
  EXPECT_FALSE(predict(kind.params, {132, 32768, 0}).isolated_issue_ns);
}

TEST(Fit, NoDrainedPeriodMeansNoDrainRate) {
  std::vector<Sample> samples = synthesize(true_link(), {});
  std::erase_if(samples, [](const Sample& sample) {
    return sample.experiment == Experiment::periodic &&
           sample.gap_ns < 1.3 * sample.num_producers * sample.bytes / 372;
  });
  const Fit result = fit(samples);
  const KindFit& kind = only_kind(result);
  EXPECT_EQ(kind.params.drain_rate, 0);
  EXPECT_TRUE(has_reason(kind, "drain_rate"));
  EXPECT_TRUE(has_reason(kind, "capacity_mean_bytes"));
  EXPECT_THROW((void)predict(kind.params, {132, 32768, 0}), Error);
}

TEST(Fit, ProducersHeldByTheirOwnCeilingGiveNoDrainRate) {
  // The stage takes 16 KiB at once, so back-to-back bursts of four SMs wait; yet 4*r < R.
  LinkParams truth = true_link();
  truth.issue_curve = {{1024, 10}, {16384, 80}, {98304, 80 + 81920 / 50.0}};
  std::vector<Sample> samples;
  for (const double bytes : kIsolatedBytes) {
    Sample sample;
    sample.num_producers = 1;
    sample.bytes = bytes;
    sample.issue_ns = issue_time_empty(truth, bytes);
    samples.push_back(sample);
  }
  for (const int count : {4, 132}) {
    for (const double bytes : {8192.0, 16384.0}) {
      Sample sample;
      sample.experiment = Experiment::periodic;
      sample.num_producers = count;
      sample.bytes = bytes;
      sample.gap_ns = 0;
      sample.issue_ns = predict(truth, {count, bytes, 0}).issue_ns;
      samples.push_back(sample);
    }
    const KindFit kind = only_kind(fit(samples));
    if (count == 4) {
      EXPECT_EQ(kind.params.drain_rate, 0);
      EXPECT_TRUE(has_reason(kind, "drain_rate"));
    } else {
      EXPECT_NEAR(kind.params.drain_rate, 372, 4);
    }
  }
}

TEST(Fit, IsolatedAloneGivesNoDrainRate) {
  std::vector<Sample> samples = synthesize(true_link(), {});
  std::erase_if(samples, [](const Sample& s) { return s.experiment == Experiment::periodic; });
  const Fit result = fit(samples);
  EXPECT_TRUE(has_reason(only_kind(result), "drain_rate"));
  EXPECT_FALSE(only_kind(result).params.issue_curve.empty());
}

TEST(Fit, PeriodicAloneGivesRateAndPlateau) {
  std::vector<Sample> samples = synthesize(true_link(), {});
  std::erase_if(samples, [](const Sample& s) { return s.experiment == Experiment::isolated; });
  const Fit result = fit(samples);
  const KindFit& kind = only_kind(result);
  EXPECT_NEAR(kind.params.drain_rate, 372, 4);
  EXPECT_TRUE(has_reason(kind, "injection_rate"));
  EXPECT_TRUE(has_reason(kind, "capacity_mean_bytes"));
  EXPECT_TRUE(has_reason(kind, "visible_latency_ns"));
  EXPECT_NEAR(issue_time_empty(kind.params, 32768), 100 + 32768 / 50.0, 20);
  EXPECT_LT(kind.held_out->burst_gap.p95, 0.02);
}

TEST(Fit, WithoutSlowestTimesThePapersLawIsFitted) {
  LinkParams truth = true_link();
  truth.share_spread = 0;
  std::vector<Sample> samples = synthesize(truth, {});
  for (Sample& sample : samples) sample.issue_slowest_ns = kUnmeasured;
  const Fit result = fit(samples);
  const KindFit& kind = only_kind(result);
  EXPECT_NEAR(kind.params.capacity_mean_bytes.value(), 17000, 0.05 * 17000);
  EXPECT_EQ(kind.params.share_spread, 0);
  EXPECT_FALSE(kind.params.capacity_slowest_bytes);
  EXPECT_TRUE(has_reason(kind, "capacity_slowest_bytes"));
  EXPECT_TRUE(has_reason(kind, "share_spread"));
}

TEST(Fit, BothDirections) {
  LinkParams truth = true_link();
  std::vector<Sample> samples = synthesize(truth, {});
  truth.drain_rate *= 0.9;
  for (Sample sample : synthesize(truth, {.seed = 4})) {
    sample.num_directions = 2;
    samples.push_back(sample);
  }
  const Fit result = fit(samples);
  EXPECT_NEAR(only_kind(result).params.drain_rate, 372, 4);
  EXPECT_NEAR(only_kind(result).params.both_directions_factor, 0.9, 0.01);
}

TEST(Fit, OneSampleIsEnoughToSayWhatIsMissing) {
  Sample sample;
  sample.num_producers = 1;
  sample.bytes = 1024;
  sample.issue_ns = 136;
  const Fit result = fit(std::vector<Sample>{sample});
  EXPECT_TRUE(has_reason(only_kind(result), "drain_rate"));
  EXPECT_TRUE(has_reason(only_kind(result), "injection_rate"));
}

TEST(Fit, KindsAreApart) {
  std::vector<Sample> samples = synthesize(true_link(), {});
  LinkParams other = true_link();
  other.kind = StoreKind::bulk;
  other.drain_rate = 200;
  for (const Sample& sample : synthesize(other, {})) samples.push_back(sample);
  const Fit result = fit(samples);
  ASSERT_EQ(result.kinds.size(), 2u);
  EXPECT_NEAR(result.kinds[0].params.drain_rate, 372, 4);
  EXPECT_NEAR(result.kinds[1].params.drain_rate, 200, 2);
}

// The bars of the project on the measurements that ship with it.
TEST(ShippedSamples, MeetTheAccuracyBars) {
  const SampleFile file = read_samples(XSTAGE_SOURCE_DIR "/tests/data/h200-nv18-aggregates.csv");
  const Fit result = fit(file.samples);
  ASSERT_EQ(result.kinds.size(), 2u);
  for (const KindFit& kind : result.kinds) {
    SCOPED_TRACE(to_string(kind.params.kind));
    EXPECT_NEAR(kind.params.drain_rate, 372, 0.03 * 372);
    ASSERT_TRUE(kind.held_out);
    EXPECT_LE(kind.held_out->burst_gap.median, 0.03);
    EXPECT_LE(kind.held_out->burst_gap.p95, 0.10);
    EXPECT_LE(kind.held_out->period.median, 0.02);
    EXPECT_GE(kind.held_out->near_onset_share, 0.30);
    EXPECT_GE(kind.held_out->burst_gap.num_points, 20);
    EXPECT_GT(kind.held_out->coupled.median, 10 * kind.held_out->burst_gap.median);
    EXPECT_GT(kind.held_out->unbounded.p95, 3 * kind.held_out->burst_gap.p95);
  }
}

}  // namespace
}  // namespace xstage
