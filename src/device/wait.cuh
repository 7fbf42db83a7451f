// Waits that end. Every wait for another CTA, another GPU or the copy engine goes through here: it
// gives up at a deadline or when the group has been aborted.
//
// After a wait has failed, the abort words of all ranks are set; every later wait returns false
// within one look interval, so that each role of each kernel runs to its end with garbage (the
// poison drain) and none is left spinning.
#pragma once

#include <cstdint>

#include "device/ptx.cuh"
#include "device/status.cuh"
#include "xstage/peer_table.hpp"

namespace xstage::device {

using xstage::WaitContext;
using xstage::WaitTag;

// Polls between two looks at the clock.
inline constexpr int kPollsPerCheck = 32;

// Looks at the abort words are far apart in time: every thread of every SM may be waiting, and a
// read of the host's page crosses PCIe (polled at every turn it slowed a kernel 90 times).
inline constexpr std::uint32_t kLookInterval =
    32;  // coarse steps, about 33 us: the rank's own word
inline constexpr std::uint32_t kLooksPerHostLook = 32;  // about 1 ms: the host's page

// When a wait that goes on must look at the abort words next.
struct LookSchedule {
  std::uint32_t start = coarse_time();
  std::uint32_t num_looks = 1;  // the first look is due after one interval

  // True if waiting has become useless: an abort word is set, here or by the host.
  __device__ bool sees_abort(const WaitContext& context) {
    if (coarse_time() - start < num_looks * kLookInterval) return false;
    const std::uint32_t look = num_looks++;
    if (context.abort != nullptr && load_relaxed_system(context.abort) != 0) return true;
    return context.control != nullptr && look % kLooksPerHostLook == 0 &&
           load_relaxed_system(&context.control->host_page->abort) != 0;
  }
  // Whether the wait must end now, and why.
  __device__ WaitOutcome outcome(const WaitContext& context) {
    if (sees_abort(context)) return WaitOutcome::aborted;
    return is_late(context, start) ? WaitOutcome::deadline : WaitOutcome::fine;
  }
};

// Polls `ready()` until it is true. Returns false if the deadline passed or the abort word is set;
// the caller then runs to its end without waiting again. Records nothing: for waits inside a CTA.
template <typename Ready>
__device__ inline bool wait_until(const WaitContext& context, Ready ready) {
  if (ready()) return true;
  LookSchedule schedule;
  while (true) {
#pragma unroll 1  // 32 copies of `ready` would push the working kernel out of the instruction cache
    for (int i = 0; i < kPollsPerCheck; ++i) {
      if (ready()) return true;
    }
    const WaitOutcome outcome = schedule.outcome(context);
    if (outcome == WaitOutcome::fine) continue;
    if (outcome == WaitOutcome::deadline && context.abort != nullptr) {
      store_relaxed_system(context.abort, 1);
    }
    return false;
  }
}

// A shared-memory barrier phase, with the same promise.
__device__ inline bool wait_barrier(const WaitContext& context, std::uint64_t* barrier,
                                    std::uint32_t parity) {
  return wait_until(context, [&] { return mbarrier_try_wait(barrier, parity); });
}

// True if `seen` has reached `expected`; both count upwards and may wrap.
__device__ inline bool has_reached(std::uint32_t seen, std::uint32_t expected) {
  return static_cast<std::int32_t>(seen - expected) >= 0;
}

// Polls `ready()`, a load of global memory that also notes what it saw in `failed`. A poll takes
// most of a microsecond, so looks are counted in polls: two registers and no clock in the loop. A
// wait that has become useless, too late or with an abort word set here or by the host, is
// recorded.
template <typename Ready>
__device__ inline bool wait_recorded(const WaitContext& context, FailedWait& failed, Ready ready) {
  constexpr std::uint32_t kPollsPerHostLook = 2048;  // about 1 ms
  if (ready()) return true;
  failed.start = coarse_time();
#pragma unroll 1
  for (std::uint32_t num_polls = 1;; ++num_polls) {
    if (ready()) return true;
    if (num_polls % kPollsPerCheck != 0) continue;
    if (is_late(context, failed.start)) break;  // one exit each: a flag would cost a register
    if (context.abort != nullptr && load_relaxed_system(context.abort) != 0) break;
    if (num_polls % kPollsPerHostLook != 0 || context.control == nullptr) continue;
    if (load_relaxed_system(&context.control->host_page->abort) != 0) break;
  }
  give_up(context, failed);
  return false;
}

// Until the flag has reached `expected`, with acquire order at system scope: what its writer stored
// before the flag is then visible to this thread. `peer` is the rank that is waited for, or -1.
__device__ inline bool wait_flag(const WaitContext& context, const std::uint32_t* flag,
                                 std::uint32_t expected, int peer, std::uint32_t tag) {
  FailedWait failed{peer, tag, expected};
  return wait_recorded(context, failed, [&] {
    failed.seen = load_acquire_system(flag);
    return has_reached(failed.seen, expected);
  });
}

}  // namespace xstage::device
