// What a wait that failed leaves behind: one record per rank for its host, and the abort word of
// every rank, so that the whole group stops waiting.
//
// Cold code in line behind the caller's: a call's fixed registers would cost the caller more. Every
// value is made just before it is stored, one after the other, so that nothing of it adds to the
// registers that the caller's loop needs anyway (tests/gpu/wait_registers.cu).
#pragma once

#include <cstdint>

#include "device/ptx.cuh"
#include "xstage/peer_table.hpp"

namespace xstage::device {

// Times of waits in steps of 1024 ns: 32 bits hold 73 minutes, in one register.
__device__ inline std::uint32_t coarse_time() {
  return static_cast<std::uint32_t>(global_time_ns() >> 10);
}
__device__ inline std::uint32_t coarse_deadline(const WaitContext& context) {
  if (context.deadline_ns == 0) return 0xffffffffu;  // never later than that
  const std::uint64_t steps = context.deadline_ns >> 10;
  return steps > 0x7fffffffu ? 0x7fffffffu : static_cast<std::uint32_t>(steps) + 1;
}
__device__ inline bool is_late(const WaitContext& context, std::uint32_t start) {
  return coarse_time() - start > coarse_deadline(context);
}

struct FailedWait {
  std::int32_t peer;
  std::uint32_t tag;
  std::uint32_t expected;
  std::uint32_t seen = 0;
  std::uint32_t start = 0;  // coarse
};

// Safe to call from any number of threads: the first one of a rank and kind writes the record.
__device__ inline void give_up(const WaitContext& context, const FailedWait& failed) {
  const bool late = is_late(context, failed.start);
  if (context.abort != nullptr) store_relaxed_system(context.abort, 1);
  RankControl* control = context.control;
  if (control == nullptr) return;
  const bool is_local = failed.peer < 0;
  if (atomicExch(&control->record_claimed[is_local ? 1 : 0], 1u) != 0) return;
  HostPage* page = control->host_page;
  volatile StatusRecord* record = is_local ? &page->local_wait : &page->peer_wait;
  const std::uint32_t waited = coarse_time() - failed.start;
  auto* waited_ns = reinterpret_cast<volatile std::uint32_t*>(&record->waited_ns);
  waited_ns[0] = waited << 10;
  waited_ns[1] = waited >> 22;
  record->seen = failed.seen;
  record->rank = control->rank;
  record->peer = failed.peer;
  record->tag = failed.tag;
  record->expected = failed.expected;
  fence_system();
  record->outcome = static_cast<std::uint32_t>(late ? WaitOutcome::deadline : WaitOutcome::aborted);
#pragma unroll 1
  for (int rank = control->num_ranks; rank-- > 0;) {
    RankControl* peer = control->peers[rank];
    if (peer != nullptr) store_relaxed_system(&peer->abort, 1);
  }
  fence_system();
}

}  // namespace xstage::device
