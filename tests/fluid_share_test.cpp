// Isolated bursts with unequal shares: values by hand, the equal-shares limit, conservation.
#include "model/fluid_share.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "example_links.hpp"
#include "xstage/model.hpp"

namespace xstage {
namespace {

using test::example_link;
using test::random_burst;
using test::random_link;

TEST(UnequalShares, TwoProducersByHand) {
  // Weights 1.25 and 0.75 of R/2 = 5 B/ns: 6.25 and 3.75 until the first has drained at 160 ns;
  // then the second, with 400 bytes left, has the link alone.
  std::vector<double> times;
  const model::FluidShare share(2, 10, 100, 0.5);
  share.issue_times(1000, 0, 0, times);
  EXPECT_THAT(times,
              testing::ElementsAre(testing::DoubleNear(160, 1e-9), testing::DoubleNear(200, 1e-9)));
  share.issue_times(1000, 200, 0, times);
  EXPECT_THAT(times,
              testing::ElementsAre(testing::DoubleNear(128, 1e-9), testing::DoubleNear(180, 1e-9)));
  share.issue_times(1000, 200, 150, times);  // T0 is the floor
  EXPECT_THAT(times, testing::ElementsAre(150, testing::DoubleNear(180, 1e-9)));
}

TEST(UnequalShares, NobodyDrainsFasterThanAnSmInjects) {
  // Ceiling 6: the first gets 6 instead of 6.25, the second the other 4, then 6.
  std::vector<double> times;
  model::FluidShare(2, 10, 6, 0.5).issue_times(1000, 200, 0, times);
  const double finished = 1000 / 6.0;
  EXPECT_THAT(times, testing::ElementsAre(
                         testing::DoubleNear(800 / 6.0, 1e-9),
                         testing::DoubleNear(finished + (800 - 4 * finished) / 6.0, 1e-9)));
}

TEST(UnequalShares, NoSpreadIsThePapersLaw) {
  const unsigned seed = 17;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 2000; ++i) {
    const LinkParams link = random_link(random, 0);
    const Burst burst = random_burst(random);
    const double t0 = issue_time_empty(link, burst.bytes);
    const double rate = effective_drain_rate(link, burst.num_producers);
    const double law =
        std::max(t0, burst.num_producers * (burst.bytes - *link.capacity_mean_bytes) / rate);
    for (const double time : predict_isolated_producers(link, burst.num_producers, burst.bytes)) {
      ASSERT_NEAR(time, law, 1e-9 * law) << i;
    }
  }
}

// The bytes that producer i has drained at time t, from issue times alone: the largest burst part
// that has left by t.
double drained_at(const model::FluidShare& share, double bytes, std::size_t producer, double time) {
  std::vector<double> times;
  double low = 0;
  double high = bytes;
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    share.issue_times(bytes, bytes - middle, 0, times);
    (times[producer] <= time ? low : high) = middle;
  }
  return low;
}

TEST(UnequalShares, EveryDrainedByteIsConserved) {
  const unsigned seed = 19;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 40; ++i) {
    const int count = std::uniform_int_distribution<int>(2, 12)(random);
    const double rate = 10;
    const double ceiling = i % 2 == 0 ? 1000 : std::uniform_real_distribution<double>(2, 8)(random);
    const double spread = std::uniform_real_distribution<double>(0, 0.9)(random);
    if (count * ceiling <= rate * (1 + spread)) continue;
    const model::FluidShare share(count, rate, ceiling, spread);
    const double bytes = 1000;
    for (const double part : {0.1, 0.5, 0.9}) {
      // While the ceilings let the link work at its rate: not in the last drain of a few producers.
      const double time = part * count * bytes / rate;
      double sum = 0;
      for (int producer = 0; producer < count; ++producer) {
        sum += drained_at(share, bytes, static_cast<std::size_t>(producer), time);
      }
      if (ceiling == 1000) {
        EXPECT_NEAR(sum, rate * time, 1e-6 * rate * time) << i << " " << part;
      } else {
        EXPECT_LE(sum, rate * time * (1 + 1e-6)) << i << " " << part;
      }
    }
  }
}

TEST(UnequalShares, SlowestApproachesTheDrainTime) {
  LinkParams link = example_link();
  link.share_spread = 0.5;
  const auto times = predict_isolated_producers(link, 100, 1 << 20);
  const double drain_ns = 100.0 * (1 << 20) / 400;
  // From both sides: the last few cannot use all of R.
  EXPECT_NEAR(times.back(), drain_ns, 0.01 * drain_ns);
  EXPECT_LT(times.front(), 0.7 * drain_ns);  // about 1/(1 + s)
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
}

}  // namespace
}  // namespace xstage
