// Producers of one GPU that send to several destinations in turn: every byte lands where it should,
// and nowhere else. Destinations are this GPU's own memory and the host's, so one GPU is enough.
#include <gtest/gtest.h>

#include "gpu.hpp"
#include "probe/link.hpp"

namespace xstage::test {
namespace {

using probing::BurstSpec;
using probing::Link;
using probing::Target;

class FanOut : public testing::TestWithParam<StoreKind> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }
};

BurstSpec spec_of(StoreKind kind) {
  BurstSpec spec;
  spec.kind = kind;
  spec.send.kind = kind;
  spec.send.chunk_bytes = kind == StoreKind::bulk ? 4096 : 0;
  spec.num_producers = 14;
  spec.bytes = 8192;
  spec.num_bursts = 6;
  spec.seed = 20261201;
  return spec;
}

TEST_P(FanOut, ReachesEveryDestinationAndOnlyItsOwnPart) {
  Link first(0, {Endpoint::Type::local_memory, 0}, 10);
  Link second(0, {Endpoint::Type::local_memory, 0}, 10);
  Link third(0, {Endpoint::Type::host_memory, 0}, 10);
  const BurstSpec spec = spec_of(GetParam());
  first.prepare(spec, {&second, &third});
  first.start();
  const probing::BurstRun run = first.collect();
  EXPECT_EQ(run.num_wrong_words, 0u);
  // Four slices and a guard zone of each producer, at each of the three.
  EXPECT_EQ(run.num_checked_words, 3ull * 14 * (4 * 8192 + 1024) / 4);
}

// The same bytes are wrong for who expects all of them in one place: the check can fail.
TEST_P(FanOut, IsSeenByWhoExpectsAllInOnePlace) {
  Link first(0, {Endpoint::Type::local_memory, 0}, 10);
  Link second(0, {Endpoint::Type::local_memory, 0}, 10);
  const BurstSpec spec = spec_of(GetParam());
  first.prepare(spec, {&second});
  first.start();
  (void)first.collect();
  second.prepare(spec, {&first});  // poisons both; then nothing is sent, but half is expected
  EXPECT_EQ(second.check_destinations().num_wrong, 2ull * 7 * 4 * 8192 / 4);
}

TEST(FanOutSpec, RefusesKindsThatItCannotSpread) {
  if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  Link first(0, {Endpoint::Type::local_memory, 0}, 10);
  Link second(0, {Endpoint::Type::local_memory, 0}, 10);
  BurstSpec spec = spec_of(StoreKind::tensor);
  spec.send.chunk_bytes = 4096;
  EXPECT_THROW(first.prepare(spec, {&second}), Error);
}

INSTANTIATE_TEST_SUITE_P(Kinds, FanOut, testing::Values(StoreKind::register16, StoreKind::bulk),
                         [](const auto& each) { return std::string(to_string(each.param)); });

}  // namespace
}  // namespace xstage::test
