// Arrival flags with epochs: 32-bit words in a rank's memory that a peer raises and the owner waits
// for. One writer per flag; values only grow (they may wrap).
#pragma once

#include <cstdint>

#include "device/ptx.cuh"
#include "device/wait.cuh"
#include "xstage/peer_table.hpp"

namespace xstage::device {

// The address of one of my bytes in the memory of another rank.
template <typename T>
__device__ inline T* at_rank(const PeerTable& table, int rank, std::uint64_t offset_bytes) {
  return reinterpret_cast<T*>(static_cast<char*>(table.bases[rank]) + offset_bytes);
}

// Raises a flag in a peer's memory. Everything that this thread stored or observed before is
// visible to whoever sees the flag. Bulk copies are covered only if this thread has waited for
// their full completion; stores of other threads only after a barrier with them.
__device__ inline void raise_flag(std::uint32_t* flag, std::uint32_t value) {
  store_release_system(flag, value);
}

}  // namespace xstage::device
