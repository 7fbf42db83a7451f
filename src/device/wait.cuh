// Waits that end. Every wait for another CTA, another GPU or the copy engine goes through here:
// it gives up at a deadline or when the group has been aborted.
#pragma once

#include <cstdint>

#include "device/ptx.cuh"

namespace xstage::device {

// What a kernel needs to know to stop waiting. `abort` lives in device or pinned memory; the host,
// another rank or the first waiter that ran into its deadline sets it.
struct WaitContext {
  std::uint32_t* abort = nullptr;  // non-zero: stop waiting everywhere
  std::uint64_t deadline_ns = 0;   // of one wait, by the GPU's global timer; 0: none
};

// Polls `ready()` until it is true. Returns false if the deadline passed or the abort word is set;
// the caller then runs to its end without waiting again.
template <typename Ready>
__device__ inline bool wait_until(const WaitContext& context, Ready ready) {
  if (ready()) return true;
  const std::uint64_t start_ns = global_time_ns();
  while (true) {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
    }
    if (context.abort != nullptr && load_relaxed_system(context.abort) != 0) return false;
    if (context.deadline_ns != 0 && global_time_ns() - start_ns > context.deadline_ns) {
      if (context.abort != nullptr) store_relaxed_system(context.abort, 1);
      return false;
    }
  }
}

// A shared-memory barrier phase, with the same promise.
__device__ inline bool wait_barrier(const WaitContext& context, std::uint64_t* barrier,
                                    std::uint32_t parity) {
  return wait_until(context, [&] { return mbarrier_try_wait(barrier, parity); });
}

}  // namespace xstage::device
