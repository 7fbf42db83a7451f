// What a kernel is given of its peers: plain values, no CUDA header, the same on host and device.
//
// The memory of a rank is a control block of kControlBytes followed by the bytes that were asked
// for. `PeerTable::bases` points at those bytes; control_of() finds the control block before them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "xstage/send.hpp"  // XSTAGE_HOST_DEVICE

namespace xstage {

inline constexpr int kMaxRanks = 72;
inline constexpr std::size_t kControlBytes = 4096;

// What a wait was for. Operators number theirs from first_operator_tag.
enum class WaitTag : std::uint32_t {
  none = 0,
  rank_barrier = 1,
  grid_barrier = 2,
  flag = 3,
  first_operator_tag = 256,
};

enum class WaitOutcome : std::uint32_t {
  fine = 0,
  deadline = 1,  // the waiter itself gave up
  aborted = 2,   // somebody else had given up, or a process was lost
};

// A wait of a rank that failed. Lives in pinned host memory, so the host reads it while the kernel
// still runs. `outcome` is written last.
struct StatusRecord {
  std::int32_t rank = 0;
  std::int32_t peer = 0;  // -1: a CTA of the same rank
  std::uint32_t tag = 0;
  std::uint32_t expected = 0;
  std::uint32_t seen = 0;
  std::uint32_t reserved = 0;
  std::uint64_t waited_ns = 0;
  std::uint32_t outcome = 0;  // a WaitOutcome
};

// The page that a rank shares with its host: the first failed wait of either kind, and the word
// through which the host stops all waits of that rank. A wait for a CTA of the same rank fails most
// often because that CTA waits for a peer, so the two are kept apart.
struct HostPage {
  StatusRecord peer_wait;
  StatusRecord local_wait;
  alignas(64) std::uint32_t abort = 0;
};

// State of one rank in its own memory, written by peers as well. Epochs count barriers and wrap;
// they are compared by signed difference.
struct RankControl {
  // Set once before the first kernel.
  std::int32_t rank;
  std::int32_t num_ranks;
  HostPage* host_page;            // as this rank's GPU sees it
  RankControl* peers[kMaxRanks];  // as this rank's GPU sees them; [rank] is this block
  // Live.
  alignas(128) std::uint32_t abort;  // non-zero: the group is dead, no wait waits any more
  std::uint32_t record_claimed[2];   // non-zero: the record has a writer; [1]: the local one
  alignas(128) std::uint32_t epoch;  // rank barriers completed; written by this rank alone
  alignas(128) std::uint32_t grid_arrivals;        // of the grid barrier of this rank's kernel
  alignas(128) std::uint32_t arrivals[kMaxRanks];  // [i]: epoch at which rank i has arrived
};
static_assert(sizeof(RankControl) <= kControlBytes);

struct PeerTable {
  std::int32_t rank = 0;
  std::int32_t num_ranks = 0;
  void* bases[kMaxRanks] = {};  // of the asked-for bytes, as this rank's GPU sees them
};

XSTAGE_HOST_DEVICE inline RankControl* control_of(const PeerTable& table, int rank) noexcept {
  return reinterpret_cast<RankControl*>(static_cast<char*>(table.bases[rank]) - kControlBytes);
}

// What a wait must know to end. The probe uses the first two alone; with `control` the first wait
// that fails is recorded and all ranks are told.
struct WaitContext {
  std::uint32_t* abort = nullptr;  // non-zero: stop waiting everywhere
  std::uint64_t deadline_ns = 0;   // of one wait, by the GPU's global timer; 0: none
  RankControl* control = nullptr;
};

}  // namespace xstage
