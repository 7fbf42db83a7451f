// What a wait that failed leaves behind: one record per rank for its host, and the abort word of
// every rank, so that the whole group stops waiting. Cold code, placed behind
// the caller's by the compiler; not a call, whose fixed registers would cost the caller more.
#pragma once

#include <cstdint>

#include "device/ptx.cuh"
#include "xstage/peer_table.hpp"

namespace xstage::device {

struct FailedWait {
  std::int32_t peer;
  std::uint32_t tag;
  std::uint32_t expected;
  std::uint32_t seen;
  std::uint32_t waited;  // in steps of 1024 ns
  WaitOutcome outcome;
};

// Safe to call from any number of threads: the first one of a rank and kind writes the record.
__device__ inline void give_up(const WaitContext& context, const FailedWait& failed) {
  if (context.abort != nullptr) store_relaxed_system(context.abort, 1);
  RankControl* control = context.control;
  if (control == nullptr) return;
  const bool is_local = failed.peer < 0;
  if (atomicExch(&control->record_claimed[is_local ? 1 : 0], 1u) != 0) return;
  HostPage* page = control->host_page;
  volatile StatusRecord* record = is_local ? &page->local_wait : &page->peer_wait;
  record->rank = control->rank;
  record->peer = failed.peer;
  record->tag = failed.tag;
  record->expected = failed.expected;
  record->seen = failed.seen;
  record->waited_ns = static_cast<std::uint64_t>(failed.waited) << 10;
  fence_system();
  record->outcome = static_cast<std::uint32_t>(failed.outcome);
  for (int rank = 0; rank < control->num_ranks; ++rank) {
    if (control->peers[rank] != nullptr) store_relaxed_system(&control->peers[rank]->abort, 1);
  }
  fence_system();
}

}  // namespace xstage::device
