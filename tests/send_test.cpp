// The pacer and the chunk count, on every small case.
#include "xstage/send.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace xstage {
namespace {

constexpr Send every(std::uint32_t steps) {
  return Send{StoreKind::bulk, 4096, steps, Completion::accepted};
}

// --- at compile time, as kernels and orders use them ---------------------------------------------

constexpr int num_granted(std::uint32_t steps_per_chunk, int num_steps) {
  Pacer pacer(every(steps_per_chunk));
  int granted = pacer.take() ? 1 : 0;
  for (int i = 0; i < num_steps; ++i) {
    pacer.step();
    if (pacer.take()) ++granted;
  }
  return granted;
}
static_assert(num_granted(0, 10) == 11);
static_assert(num_granted(1, 10) == 11);
static_assert(num_granted(2, 10) == 6);
static_assert(num_granted(3, 10) == 4);
static_assert(num_granted(11, 10) == 1);

static_assert(num_chunks(0, 0) == 0);
static_assert(num_chunks(0, 16) == 0);
static_assert(num_chunks(1, 0) == 1);
static_assert(num_chunks(16, 16) == 1);
static_assert(num_chunks(17, 16) == 2);
static_assert(num_chunks(32 * 1024, 8 * 1024) == 4);
static_assert(sizeof(Send) <= 16, "a Send is passed to kernels by value");

// --- the pacer against its promise ---------------------------------------------------------------

// All scripts of `kLength` calls, a bit a call: step() or take().
constexpr int kLength = 12;

// What the header promises, written down a second time without a credit counter.
struct Promise {
  std::uint32_t interval;
  bool any_granted = false;
  std::uint32_t steps_since = 0;

  void step() { ++steps_since; }
  bool take() {
    if (any_granted && steps_since < interval) return false;
    any_granted = true;
    steps_since = 0;
    return true;
  }
};

TEST(Pacer, KeepsItsPromiseOnEveryScript) {
  for (std::uint32_t interval = 0; interval <= 5; ++interval) {
    for (std::uint32_t script = 0; script < 1u << kLength; ++script) {
      Pacer pacer(every(interval));
      Promise promise{interval};
      for (int call = 0; call < kLength; ++call) {
        if ((script >> call & 1) != 0) {
          pacer.step();
          promise.step();
        } else {
          ASSERT_EQ(pacer.take(), promise.take())
              << "interval " << interval << ", script " << script << ", call " << call;
        }
      }
    }
  }
}

TEST(Pacer, GrantsTheFirstChunkAtOnce) {
  for (const std::uint32_t interval : {0u, 1u, 7u, 0xffffffffu}) {
    Pacer pacer(every(interval));
    EXPECT_TRUE(pacer.take()) << interval;
  }
}

TEST(Pacer, StepsInAdvanceBuyOneChunkOnly) {
  Pacer pacer(every(3));
  for (int i = 0; i < 100; ++i) pacer.step();
  EXPECT_TRUE(pacer.take());
  EXPECT_FALSE(pacer.take());
}

TEST(Pacer, AnUnpacedSenderIsNeverHeldUp) {
  Pacer pacer(every(0));
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(pacer.take());
}

TEST(Pacer, TheLongestIntervalDoesNotWrap) {
  Pacer pacer(every(std::numeric_limits<std::uint32_t>::max()));
  ASSERT_TRUE(pacer.take());
  for (int i = 0; i < 1000; ++i) {
    pacer.step();
    ASSERT_FALSE(pacer.take());
  }
}

TEST(Pacer, CopiesGoOnIndependently) {
  Pacer pacer(every(2));
  ASSERT_TRUE(pacer.take());
  pacer.step();
  Pacer copy = pacer;
  copy.step();
  EXPECT_TRUE(copy.take());
  EXPECT_FALSE(pacer.take());
}

// --- chunks --------------------------------------------------------------------------------------

TEST(NumChunks, CountsWhatCuttingGives) {
  for (std::uint32_t bytes = 0; bytes <= 200; ++bytes) {
    for (std::uint32_t chunk_bytes = 0; chunk_bytes <= 210; ++chunk_bytes) {
      std::uint32_t count = 0;
      for (std::uint32_t left = bytes; left > 0; ++count) {
        left -= chunk_bytes == 0 || chunk_bytes > left ? left : chunk_bytes;
      }
      ASSERT_EQ(num_chunks(bytes, chunk_bytes), count) << bytes << " in " << chunk_bytes;
    }
  }
}

TEST(NumChunks, TheLargestParcelsDoNotWrap) {
  constexpr std::uint32_t kMost = std::numeric_limits<std::uint32_t>::max();
  EXPECT_EQ(num_chunks(1u << 31, 1u << 30), 2u);
  EXPECT_EQ(num_chunks(kMost, 1u << 31), 2u);
  EXPECT_EQ(num_chunks(kMost, 1), kMost);
  EXPECT_EQ(num_chunks(kMost, kMost), 1u);
  EXPECT_EQ(num_chunks(kMost, 0), 1u);
}

TEST(StoreKind, EveryKindIsCounted) {
  EXPECT_EQ(static_cast<int>(StoreKind::load) + 1, kNumStoreKinds);
}

}  // namespace
}  // namespace xstage
