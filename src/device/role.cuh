// A role: the threads of a CTA that do one job together, such as owning an outbox.
#pragma once

#include <cstdint>

#include "device/ptx.cuh"

namespace xstage::device {

struct Role {
  std::uint32_t thread_idx;   // within the role
  std::uint32_t num_threads;  // 1 (kinds of the copy engine alone) or a multiple of 32
  std::uint32_t barrier_idx;  // named barrier of the role, unused up to a single warp

  // One thread speaks for the role: it issues bulk copies, writes flags, reads clocks.
  __device__ bool is_leader() const { return thread_idx == 0; }

  // Orders the role's shared-memory accesses before and after.
  __device__ void sync() const {
    if (num_threads > 32) {
      named_barrier_sync(barrier_idx, num_threads);
    } else if (num_threads == 32) {
      __syncwarp();
    }
  }
};

}  // namespace xstage::device
