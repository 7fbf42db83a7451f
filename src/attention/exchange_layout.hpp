// Where things lie in the peer memory of an attention with its output exchange: the same on every
// rank, so that a rank finds its peers' bytes by its own offsets. Pure: no CUDA.
//
//   header | guard | output 0 | guard | output 1 | guard | lse 0 | guard | lse 1 | guard
//
// Guards are never written: whoever stores past an end changes one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "xstage/peer_table.hpp"
#include "xstage/tensor.hpp"
#include "xstage/ulysses.hpp"

namespace xstage::attention {

inline constexpr int kNumSlots = 2;  // output buffers, taken in turn
inline constexpr std::size_t kLayoutAlignment = 1024;
inline constexpr std::size_t kGuardBytes = 1024;

// A call's epoch is its number, from 1 on; epochs wrap and are compared by signed difference.
struct ExchangeHeader {
  // Written by this rank alone.
  std::uint32_t epoch = 0;                 // calls whose kernels have ended here
  std::uint32_t last_use[kNumSlots] = {};  // the latest of them that filled the slot; 0: none
  // Written by peers.
  alignas(128) std::uint32_t arrived[kMaxRanks] = {};   // [r]: rank r's rows of that epoch are here
  alignas(128) std::uint32_t released[kMaxRanks] = {};  // [p]: rank p has done with the results of
                                                        // that epoch and all before
};

struct ExchangeLayout {
  std::size_t out_offset[kNumSlots] = {};
  std::size_t out_bytes = 0;  // of one buffer
  std::size_t lse_offset[kNumSlots] = {};
  std::size_t lse_bytes = 0;  // of one buffer; 0: no log-sum-exp
  std::size_t bytes = 0;      // all of it
};

constexpr std::int64_t rows_per_rank(const AttentionShape& max, int num_ranks) noexcept {
  return max.max_rows_per_rank > 0 ? max.max_rows_per_rank
                                   : (max.max_rows + num_ranks - 1) / num_ranks;
}

constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment) noexcept {
  return (bytes + alignment - 1) / alignment * alignment;
}

constexpr ExchangeLayout exchange_layout(const AttentionShape& max, int num_ranks) noexcept {
  const auto vectors =
      static_cast<std::size_t>(max.num_batches * rows_per_rank(max, num_ranks) * max.num_heads);
  ExchangeLayout layout;
  layout.out_bytes =
      align_up(vectors * static_cast<std::size_t>(max.head_dim) * 2, kLayoutAlignment);
  layout.lse_bytes = max.lse ? align_up(vectors * sizeof(float), kLayoutAlignment) : 0;
  std::size_t at = align_up(sizeof(ExchangeHeader), kLayoutAlignment) + kGuardBytes;
  for (std::size_t& offset : layout.out_offset) {
    offset = at;
    at += layout.out_bytes + kGuardBytes;
  }
  for (std::size_t& offset : layout.lse_offset) {
    offset = at;
    if (max.lse) at += layout.lse_bytes + kGuardBytes;
  }
  layout.bytes = at;
  return layout;
}

// Where an operator's bytes begin on `rank`, as this rank's GPU sees them.
inline char* region_of(const PeerTable& table, int rank, std::size_t offset) noexcept {
  return static_cast<char*>(table.bases[rank]) + offset;
}

inline ExchangeHeader* header_of(const PeerTable& table, int rank, std::size_t offset) noexcept {
  return reinterpret_cast<ExchangeHeader*>(region_of(table, rank, offset));
}

}  // namespace xstage::attention
