// Waits that end: by their deadline, by an abort word set anywhere, never by luck. Each kernel here
// waits for what never comes; a wait that does not end would hold the test, so a second, long
// deadline stands behind and is told apart by what it leaves in the abort word.
#include <gtest/gtest.h>

#include <cstddef>

#include "device/grid_barrier.cuh"
#include "device/wait.cuh"
#include "gpu.hpp"
#include "xstage/peer_table.hpp"

namespace xstage::test {
namespace {

constexpr std::uint64_t kShort_ns = 3'000'000;      // a deadline that is meant to pass
constexpr std::uint64_t kLong_ns = 20'000'000'000;  // one that is not
constexpr std::uint32_t kSetByHost = 7;             // waiters themselves write 1

class Waits : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }
};

template <typename T>
Buffer zeroed(Buffer::Place place, std::size_t count = 1) {
  Buffer buffer(place, 0, count * sizeof(T));
  check(cudaMemset(buffer.data(), 0, count * sizeof(T)), "zero");
  check(cudaDeviceSynchronize(), "zero");
  return buffer;
}
Buffer zeroed_words(Buffer::Place place, std::size_t count = 1) {
  return zeroed<std::uint32_t>(place, count);
}
std::uint32_t first_word(const Buffer& buffer) {
  return download<std::uint32_t>(buffer)[0];
}

void launch_ended() {
  check(cudaGetLastError(), "launch");
  check(cudaDeviceSynchronize(), "kernel");
}

// --- wait_until ----------------------------------------------------------------------------------

struct Outcome {
  std::uint32_t result[3];
  std::uint64_t waited_ns;
};

// Three waits: one with the given deadline, then one for what is never ready and one for what is
// ready at once, both without any deadline.
__global__ void wait_until_kernel(const device::WaitContext context, Outcome* outcome) {
  device::WaitContext endless = context;
  endless.deadline_ns = 0;
  const std::uint64_t start = device::global_time_ns();
  outcome->result[0] = device::wait_until(context, [] { return false; });
  outcome->waited_ns = device::global_time_ns() - start;
  // Without an abort word there would be no end to it.
  outcome->result[1] = device::wait_until(endless, [] { return false; });
  outcome->result[2] = device::wait_until(endless, [] { return true; });
}

TEST_F(Waits, GiveUpAtTheirDeadlineAndTellTheOthers) {
  const Buffer abort = zeroed_words(Buffer::Place::device);
  const Buffer outcome = zeroed<Outcome>(Buffer::Place::device);
  wait_until_kernel<<<1, 1>>>({abort.as<std::uint32_t>(), kShort_ns, nullptr},
                              outcome.as<Outcome>());
  launch_ended();
  const Outcome seen = download<Outcome>(outcome)[0];
  EXPECT_EQ(seen.result[0], 0u);
  EXPECT_GE(seen.waited_ns, kShort_ns) << "gave up before its deadline";
  EXPECT_EQ(seen.result[1], 0u) << "a later wait must see the abort word";
  EXPECT_EQ(seen.result[2], 1u) << "what is ready needs no wait, aborted or not";
  EXPECT_EQ(first_word(abort), 1u);
}

TEST_F(Waits, LeaveAnAbortWordAsTheyFoundIt) {
  const Buffer abort = upload(std::vector<std::uint32_t>{kSetByHost});
  const Buffer outcome = zeroed<Outcome>(Buffer::Place::device);
  wait_until_kernel<<<1, 1>>>({abort.as<std::uint32_t>(), kLong_ns, nullptr},
                              outcome.as<Outcome>());
  launch_ended();
  const Outcome seen = download<Outcome>(outcome)[0];
  EXPECT_EQ(seen.result[0], 0u);
  EXPECT_EQ(seen.result[1], 0u);
  EXPECT_EQ(seen.result[2], 1u);
  EXPECT_EQ(first_word(abort), kSetByHost);
}

// All threads of more CTAs than the GPU has SMs: none is left waiting.
__global__ void everybody_waits_kernel(const device::WaitContext context, std::uint32_t* num_failed,
                                       std::uint32_t num_waits) {
  for (std::uint32_t i = 0; i < num_waits; ++i) {
    if (!device::wait_until(context, [] { return false; })) atomicAdd(num_failed, 1u);
  }
}

TEST_F(Waits, EndForEveryThreadOfAFullGrid) {
  const Buffer abort = zeroed_words(Buffer::Place::device);
  const Buffer num_failed = zeroed_words(Buffer::Place::device);
  everybody_waits_kernel<<<300, 256>>>({abort.as<std::uint32_t>(), kShort_ns, nullptr},
                                       num_failed.as<std::uint32_t>(), 5);
  launch_ended();
  EXPECT_EQ(first_word(num_failed), 300u * 256u * 5u);
  EXPECT_EQ(first_word(abort), 1u);
}

// The host ends a kernel that waits, through a word that the kernel reads over the bus.
__global__ void signal_and_wait_kernel(const device::WaitContext context, std::uint32_t* started,
                                       std::uint32_t* result) {
  device::store_release_system(started, 1);
  *result = 2u + device::wait_until(context, [] { return false; });
}

void await_start(const Buffer& started) {
  const volatile std::uint32_t* word = started.as<std::uint32_t>();
  while (*word == 0 && cudaStreamQuery(nullptr) == cudaErrorNotReady) {
  }
}

TEST_F(Waits, EndWhenTheHostSetsTheAbortWord) {
  const Buffer abort = zeroed_words(Buffer::Place::pinned_host);
  const Buffer started = zeroed_words(Buffer::Place::pinned_host);
  const Buffer result = zeroed_words(Buffer::Place::device);
  signal_and_wait_kernel<<<1, 1>>>({abort.as<std::uint32_t>(), kLong_ns, nullptr},
                                   started.as<std::uint32_t>(), result.as<std::uint32_t>());
  check(cudaGetLastError(), "launch");
  await_start(started);
  *static_cast<volatile std::uint32_t*>(abort.as<std::uint32_t>()) = kSetByHost;
  check(cudaDeviceSynchronize(), "kernel");
  EXPECT_EQ(first_word(result), 2u);
  EXPECT_EQ(first_word(abort), kSetByHost) << "ended by its deadline, not by the host";
}

// --- barriers in shared memory -------------------------------------------------------------------

__global__ void barrier_kernel(const device::WaitContext context, std::uint32_t* results) {
  __shared__ std::uint64_t barrier;
  if (threadIdx.x == 0) {
    device::mbarrier_init(&barrier, 2);
    device::mbarrier_arrive(&barrier);
    device::mbarrier_arrive(&barrier);  // completes phase 0
    device::mbarrier_arrive(&barrier);  // one of two in phase 1
  }
  __syncthreads();
  results[threadIdx.x * 2] = device::wait_barrier(context, &barrier, 0);
  results[threadIdx.x * 2 + 1] = device::wait_barrier(context, &barrier, 1);
}

TEST_F(Waits, EndAtABarrierThatNeverCompletes) {
  const Buffer abort = zeroed_words(Buffer::Place::device);
  const Buffer results = zeroed_words(Buffer::Place::device, 128);
  barrier_kernel<<<1, 64>>>({abort.as<std::uint32_t>(), kShort_ns, nullptr},
                            results.as<std::uint32_t>());
  launch_ended();
  const auto seen = download<std::uint32_t>(results);
  for (int thread = 0; thread < 64; ++thread) {
    EXPECT_EQ(seen[thread * 2], 1u) << "a completed phase, thread " << thread;
    EXPECT_EQ(seen[thread * 2 + 1], 0u) << "an incomplete phase, thread " << thread;
  }
  EXPECT_EQ(first_word(abort), 1u);
}

// --- flags, records, peers -----------------------------------------------------------------------

struct ReachedCase {
  std::uint32_t seen, expected, reached;
};
__global__ void reached_kernel(const ReachedCase* cases, std::uint32_t* results) {
  results[threadIdx.x] = device::has_reached(cases[threadIdx.x].seen, cases[threadIdx.x].expected);
}

TEST_F(Waits, CompareEpochsAcrossTheWrap) {
  const std::vector<ReachedCase> all = {{0, 0, 1},          {1, 0, 1},          {0, 1, 0},
                                        {0xffffffff, 0, 0}, {0, 0xffffffff, 1}, {5, 0xfffffff0, 1},
                                        {0xfffffff0, 5, 0}, {0x7fffffff, 0, 1}, {0, 0x7fffffff, 0}};
  const Buffer cases = upload(all);
  const Buffer results = zeroed_words(Buffer::Place::device, all.size());
  reached_kernel<<<1, static_cast<unsigned>(all.size())>>>(cases.as<ReachedCase>(),
                                                           results.as<std::uint32_t>());
  launch_ended();
  const auto seen = download<std::uint32_t>(results);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(seen[i], all[i].reached) << all[i].seen << " against " << all[i].expected;
  }
}

// Two ranks' control blocks on one GPU, as an owner of peer memory would set them up.
class RecordedWaits : public Waits {
 protected:
  void SetUp() override {
    Waits::SetUp();
    if (IsSkipped()) return;
    controls_ = zeroed<RankControl>(Buffer::Place::device, 2);
    pages_ = zeroed<HostPage>(Buffer::Place::pinned_host, 2);
    std::vector<RankControl> values(2);
    std::memset(static_cast<void*>(values.data()), 0, 2 * sizeof(RankControl));
    for (int rank = 0; rank < 2; ++rank) {
      values[rank].rank = rank;
      values[rank].num_ranks = 2;
      values[rank].host_page = page(rank);
      for (int peer = 0; peer < 2; ++peer) values[rank].peers[peer] = control(peer);
    }
    check(cudaMemcpy(controls_.data(), values.data(), 2 * sizeof(RankControl), cudaMemcpyDefault),
          "controls");
  }

  RankControl* control(int rank) const { return controls_.as<RankControl>() + rank; }
  HostPage* page(int rank) const { return pages_.as<HostPage>() + rank; }
  device::WaitContext context_of(int rank, std::uint64_t deadline_ns) const {
    return {&control(rank)->abort, deadline_ns, control(rank)};
  }
  std::uint32_t abort_word(int rank) const {
    return download<RankControl>(controls_)[static_cast<std::size_t>(rank)].abort;
  }

  Buffer controls_;
  Buffer pages_;
};

__global__ void wait_flag_kernel(const device::WaitContext context, const std::uint32_t* flag,
                                 std::uint32_t* started, std::uint32_t* num_failed) {
  if (started != nullptr) device::store_release_system(started, 1);
  // Every thread waits for something else, so that a record mixed of two shows.
  const std::uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  const bool fine =
      device::wait_flag(context, flag, 1000 + thread, static_cast<int>(thread % 50), 256 + thread);
  if (!fine) atomicAdd(num_failed, 1u);
}

TEST_F(RecordedWaits, LeaveOneConsistentRecordAndStopAllRanks) {
  const Buffer flag = upload(std::vector<std::uint32_t>{42});
  const Buffer num_failed = zeroed_words(Buffer::Place::device);
  wait_flag_kernel<<<64, 256>>>(context_of(1, kShort_ns), flag.as<std::uint32_t>(), nullptr,
                                num_failed.as<std::uint32_t>());
  launch_ended();
  EXPECT_EQ(first_word(num_failed), 64u * 256u);
  const StatusRecord& record = page(1)->peer_wait;
  EXPECT_EQ(record.rank, 1);
  ASSERT_GE(record.tag, 256u);
  const std::uint32_t thread = record.tag - 256;
  ASSERT_LT(thread, 64u * 256u);
  EXPECT_EQ(record.expected, 1000 + thread) << "a record mixed of two waits";
  EXPECT_EQ(record.peer, static_cast<int>(thread % 50)) << "a record mixed of two waits";
  EXPECT_EQ(record.seen, 42u);
  // A thread that sees the abort word of another may be the one that records.
  EXPECT_NE(record.outcome, static_cast<std::uint32_t>(WaitOutcome::fine));
  EXPECT_EQ(abort_word(0), 1u) << "the other rank must be told";
  EXPECT_EQ(abort_word(1), 1u);
  EXPECT_EQ(page(0)->peer_wait.outcome, 0u) << "the other rank's own record is not ours to write";
  EXPECT_EQ(page(1)->local_wait.outcome, 0u) << "no CTA of the same rank was waited for";
}

TEST_F(RecordedWaits, NameTheDeadlineWhenOneWaitsAlone) {
  const Buffer flag = upload(std::vector<std::uint32_t>{999});
  const Buffer num_failed = zeroed_words(Buffer::Place::device);
  wait_flag_kernel<<<1, 1>>>(context_of(0, kShort_ns), flag.as<std::uint32_t>(), nullptr,
                             num_failed.as<std::uint32_t>());
  launch_ended();
  const StatusRecord& record = page(0)->peer_wait;
  EXPECT_EQ(first_word(num_failed), 1u);
  EXPECT_EQ(record.outcome, static_cast<std::uint32_t>(WaitOutcome::deadline));
  EXPECT_EQ(record.seen, 999u);
  EXPECT_EQ(record.expected, 1000u);
  EXPECT_GE(record.waited_ns, kShort_ns / 1024 * 1024);
}

TEST_F(RecordedWaits, SucceedWithoutARecordWhenTheFlagIsThere) {
  const Buffer flag = upload(std::vector<std::uint32_t>{1000 + 64 * 256});
  const Buffer num_failed = zeroed_words(Buffer::Place::device);
  wait_flag_kernel<<<64, 256>>>(context_of(0, kLong_ns), flag.as<std::uint32_t>(), nullptr,
                                num_failed.as<std::uint32_t>());
  launch_ended();
  EXPECT_EQ(first_word(num_failed), 0u);
  EXPECT_EQ(page(0)->peer_wait.outcome, 0u);
  EXPECT_EQ(abort_word(0), 0u);
  EXPECT_EQ(abort_word(1), 0u);
}

// The host's page ends the waits of its rank; these tell the other rank, whose waits end too.
TEST_F(RecordedWaits, EndWhenTheHostAbortsTheRank) {
  const Buffer flag = upload(std::vector<std::uint32_t>{0});
  const Buffer started = zeroed_words(Buffer::Place::pinned_host);
  const Buffer num_failed = zeroed_words(Buffer::Place::device);
  wait_flag_kernel<<<4, 64>>>(context_of(0, kLong_ns), flag.as<std::uint32_t>(),
                              started.as<std::uint32_t>(), num_failed.as<std::uint32_t>());
  check(cudaGetLastError(), "launch");
  await_start(started);
  *static_cast<volatile std::uint32_t*>(&page(0)->abort) = kSetByHost;
  check(cudaDeviceSynchronize(), "kernel");
  EXPECT_EQ(first_word(num_failed), 4u * 64u);
  EXPECT_EQ(page(0)->peer_wait.outcome, static_cast<std::uint32_t>(WaitOutcome::aborted));
  EXPECT_EQ(page(0)->abort, kSetByHost);
  EXPECT_EQ(abort_word(0), 1u);

  // The host's page of rank 1 was never touched.
  wait_flag_kernel<<<4, 64>>>(context_of(1, kLong_ns), flag.as<std::uint32_t>(), nullptr,
                              num_failed.as<std::uint32_t>());
  launch_ended();
  EXPECT_EQ(first_word(num_failed), 2u * 4u * 64u);
  EXPECT_EQ(page(1)->peer_wait.outcome, static_cast<std::uint32_t>(WaitOutcome::aborted));
}

// --- the barrier of a grid -----------------------------------------------------------------------

// CTA `missing` never comes to round `last`.
__global__ void grid_barrier_kernel(const device::WaitContext context, std::uint32_t* counter,
                                    std::uint32_t num_rounds, std::uint32_t missing,
                                    std::uint32_t* num_failed) {
  for (std::uint32_t round = 0; round < num_rounds; ++round) {
    if (blockIdx.x == missing && round + 1 == num_rounds) return;
    const bool fine = device::grid_barrier(context, counter, blockIdx.x, gridDim.x);
    if (!fine && threadIdx.x == 0) atomicAdd(num_failed, 1u);
  }
}

TEST_F(RecordedWaits, EndAtAGridBarrierThatACtaMisses) {
  const Buffer num_failed = zeroed_words(Buffer::Place::device);
  constexpr std::uint32_t kNumCtas = 16;
  grid_barrier_kernel<<<kNumCtas, 64>>>(context_of(0, kShort_ns), &control(0)->grid_arrivals, 20, 5,
                                        num_failed.as<std::uint32_t>());
  launch_ended();
  EXPECT_EQ(first_word(num_failed), kNumCtas - 1);
  const StatusRecord& record = page(0)->local_wait;
  EXPECT_EQ(record.tag, static_cast<std::uint32_t>(WaitTag::grid_barrier));
  EXPECT_EQ(record.peer, -1);
  EXPECT_EQ(page(0)->peer_wait.outcome, 0u) << "no peer was waited for";
  EXPECT_EQ(record.expected, kNumCtas);
  EXPECT_EQ(record.seen, kNumCtas - 1) << "how many had come";
}

TEST_F(RecordedWaits, PassGridBarriersOfAnySizeInTurn) {
  const Buffer num_failed = zeroed_words(Buffer::Place::device);
  for (const unsigned num_ctas : {1u, 2u, 132u, 7u, 64u}) {
    grid_barrier_kernel<<<num_ctas, 64>>>(context_of(0, kLong_ns), &control(0)->grid_arrivals, 101,
                                          0xffffffff, num_failed.as<std::uint32_t>());
    launch_ended();
    EXPECT_EQ(first_word(num_failed), 0u) << num_ctas << " CTAs";
  }
}

}  // namespace
}  // namespace xstage::test
