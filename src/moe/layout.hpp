// Where the bytes of the expert-parallel layer lie, and how its rows are numbered: pure, on host
// and device alike.
//
// Entries. Slot k of token t of a rank is entry t * top_k + k. Its ordinal counts the entries of
// the same rank and expert before it, so that (expert, rank, ordinal) names a row of the expert's
// owner. Pool. Each rank keeps the rows of its experts one expert after the other, each from a
// multiple of kRowAlign on: rows of rank 0 by ordinal, rows of rank 1, ...; then one run of rows
// per shared expert: this rank's own tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moe/grouped_gemm.hpp"
#include "xstage/moe.hpp"
#include "xstage/peer_table.hpp"

namespace xstage::moe {

inline constexpr int kMaxExperts = 1024;
inline constexpr int kMaxSlots = 32;  // of a token, shared experts included: the lanes of a warp
inline constexpr int kMaxShared = 8;
inline constexpr int kMaxTokens = 65536;
inline constexpr std::int64_t kMaxEntries = 1 << 20;  // tokens x slots
inline constexpr int kMaxRowElements = 16384;
inline constexpr std::size_t kLayoutAlign = 256;

// An entry as peers see it: expert above, ordinal below.
inline constexpr std::uint32_t kOrdinalBits = 21;
inline constexpr std::uint32_t kEmptyEntry = 0xffffffffu;
XSTAGE_HOST_DEVICE constexpr std::uint32_t pack_entry(std::uint32_t expert,
                                                      std::uint32_t ordinal) noexcept {
  return expert << kOrdinalBits | ordinal;
}
XSTAGE_HOST_DEVICE constexpr int entry_expert(std::uint32_t entry) noexcept {
  return static_cast<int>(entry >> kOrdinalBits);
}
XSTAGE_HOST_DEVICE constexpr std::int32_t entry_ordinal(std::uint32_t entry) noexcept {
  return static_cast<std::int32_t>(entry & ((1u << kOrdinalBits) - 1));
}
static_assert(kMaxExperts < (1 << (32 - kOrdinalBits)) && kMaxEntries < (1 << kOrdinalBits));

// Whose slot a row of the pool is for, as the pushing combine needs it.
inline constexpr std::uint32_t kSlotBits = 24;
XSTAGE_HOST_DEVICE constexpr std::uint32_t pack_origin(int rank, std::uint32_t slot) noexcept {
  return static_cast<std::uint32_t>(rank) << kSlotBits | slot;
}
static_assert(kMaxRanks <= (1 << (32 - kSlotBits)) && kMaxEntries <= (1 << kSlotBits));

XSTAGE_HOST_DEVICE constexpr std::int32_t align_rows(std::int32_t rows) noexcept {
  return (rows + kRowAlign - 1) / kRowAlign * kRowAlign;
}

// Which rank owns which expert: shares that differ by one at most.
struct Partition {
  std::int32_t num_experts = 1;
  std::int32_t num_ranks = 1;

  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t first(int rank) const noexcept {
    return static_cast<std::int32_t>(static_cast<std::int64_t>(rank) * num_experts / num_ranks);
  }
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t count(int rank) const noexcept {
    return first(rank + 1) - first(rank);
  }
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t max_count() const noexcept {
    return (num_experts + num_ranks - 1) / num_ranks;
  }
  // The largest rank whose first expert is not behind `expert`.
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr int owner(std::int32_t expert) const noexcept {
    return ((expert + 1) * num_ranks - 1) / num_experts;
  }
};

// What a rank tells every other one of a call, besides its counts.
struct CallHeader {
  std::uint32_t num_tokens;
  std::uint32_t agreement;  // a hash of shape and options
  std::uint32_t reserved[2];
};
static_assert(sizeof(CallHeader) == 16);

// Sizes that kernels and host share.
struct Geometry {
  Partition experts;
  std::int32_t max_tokens = 0;
  std::int32_t top_k = 0;
  std::int32_t num_shared = 0;
  std::int32_t hidden = 0;
  std::int32_t intermediate = 0;
  std::int32_t row_bytes = 0;   // of a row of x
  std::int32_t num_scales = 0;  // of a row of x; 0: bf16
  std::int32_t x_pitch = 0;     // bytes between staged rows: elements, scales, padding
  std::int64_t pool_rows = 0;   // capacity

  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t num_slots() const noexcept {
    return top_k + num_shared;
  }
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t scale_bytes() const noexcept {
    return x_pitch - row_bytes;
  }
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::size_t output_row_bytes() const noexcept {
    return static_cast<std::size_t>(hidden) * 2;
  }
};

// Offsets in the peer memory of a rank, the same on all ranks.
struct PeerLayout {
  std::size_t headers = 0;      // CallHeader [kMaxRanks], [i] written by rank i
  std::size_t counts = 0;       // u32 [num_ranks][num_experts], row i written by rank i
  std::size_t entries = 0;      // u32 [max_tokens][top_k], read by peers
  std::size_t x = 0;            // [max_tokens][x_pitch], read by peers
  std::size_t pool = 0;         // [pool_rows][row_bytes], written by peers: dispatch by push
  std::size_t pool_scales = 0;  // [pool_rows][scale_bytes], the same
  std::size_t origins = 0;      // u32 [pool_rows], the same, combine by push
  std::size_t outputs = 0;      // bf16 [pool_rows][hidden], read by peers: combine by pull
  std::size_t slots = 0;        // bf16 [max_tokens][num_slots][hidden], written by peers: by push
  std::size_t bytes = 0;
};

// Offsets in the workspace.
struct LocalLayout {
  std::size_t tables = 0;  // RouteTables
  std::size_t gemm1 = 0;   // workspaces of the grouped GEMMs
  std::size_t gemm2 = 0;
  std::size_t pool = 0;         // as in PeerLayout where that has none
  std::size_t pool_scales = 0;  // f32 [num_scales][pool_rows]: as the GEMM reads them
  std::size_t origins = 0;
  std::size_t middle = 0;         // [pool_rows][intermediate], what Linear1 gives
  std::size_t middle_scales = 0;  // f32 [ceil(intermediate / 128)][pool_rows]
  std::size_t outputs = 0;
  std::size_t bytes = 0;
};

// What the route kernel leaves for the rest of the call, in the workspace.
struct RouteTables {
  std::int32_t num_tokens[kMaxRanks];  // of each rank in this call; 0 all if it failed
  std::int32_t first_row[kMaxExperts + kMaxShared];  // of my experts, then the shared ones
  std::int32_t num_rows[kMaxExperts + kMaxShared];
  std::int32_t my_row[kMaxExperts];  // of all experts: where my rows begin in the owner's pool
  std::uint32_t bad_claimed;         // non-zero: the note has a writer
  std::uint32_t reserved;
  // Row of ordinal 0 of rank r and my expert e: [r * max_count + e].
  std::int32_t rank_row[1];
};

// The first thing that was wrong with what a call was given, in pinned host memory.
enum class BadInput : std::uint32_t { none = 0, expert_id = 1, agreement = 2, num_tokens = 3 };
struct BadInputNote {
  std::int64_t value;
  std::int32_t peer;    // that differs
  std::uint32_t entry;  // of an expert id
  std::uint32_t what;   // BadInput, written last
};

[[nodiscard]] constexpr std::size_t align_bytes(std::size_t bytes) noexcept {
  return (bytes + kLayoutAlign - 1) / kLayoutAlign * kLayoutAlign;
}

// Rows that any routing can need: every slot of every token of every rank on one rank, the padding
// of its experts, its own tokens for each shared expert.
[[nodiscard]] constexpr std::int64_t max_pool_rows(const MoeShape& shape, int num_ranks) noexcept {
  const std::int64_t routed = static_cast<std::int64_t>(num_ranks) * shape.max_tokens * shape.top_k;
  const std::int64_t experts = Partition{shape.num_experts, num_ranks}.max_count();
  const std::int64_t padding = (kRowAlign - 1) * (experts < routed ? experts : routed);
  const std::int64_t shared =
      static_cast<std::int64_t>(shape.num_shared_experts) * align_rows(shape.max_tokens);
  return (routed + padding + kRowAlign - 1) / kRowAlign * kRowAlign + shared;
}

[[nodiscard]] constexpr Geometry make_geometry(const MoeShape& shape, int num_ranks) noexcept {
  Geometry g;
  g.experts = {shape.num_experts, num_ranks};
  g.max_tokens = shape.max_tokens;
  g.top_k = shape.top_k;
  g.num_shared = shape.num_shared_experts;
  g.hidden = shape.hidden;
  g.intermediate = shape.intermediate;
  g.row_bytes = shape.hidden * element_bytes(shape.dtype);
  g.num_scales = shape.dtype == DataType::fp8 ? (shape.hidden + kScaleBlock - 1) / kScaleBlock : 0;
  g.x_pitch = g.row_bytes + (g.num_scales * 4 + 15) / 16 * 16;
  g.pool_rows = max_pool_rows(shape, num_ranks);
  return g;
}

namespace detail {
// Lays parts one after the other.
struct Cursor {
  std::size_t at = 0;
  constexpr std::size_t take(std::size_t bytes) noexcept {
    const std::size_t offset = at;
    at += align_bytes(bytes);
    return offset;
  }
};
}  // namespace detail

[[nodiscard]] constexpr PeerLayout peer_layout(const Geometry& g,
                                               const MoeOptions& options) noexcept {
  const auto rows = static_cast<std::size_t>(g.pool_rows);
  const auto tokens = static_cast<std::size_t>(g.max_tokens);
  detail::Cursor cursor;
  PeerLayout layout;
  layout.headers = cursor.take(kMaxRanks * sizeof(CallHeader));
  layout.counts = cursor.take(4ull * g.experts.num_ranks * g.experts.num_experts);
  layout.entries = cursor.take(4ull * tokens * g.top_k);
  layout.x = cursor.take(tokens * g.x_pitch);
  if (options.dispatch == MoeTransfer::push) {
    layout.pool = cursor.take(rows * g.row_bytes);
    layout.pool_scales = cursor.take(rows * g.scale_bytes());
    if (options.combine == MoeTransfer::push) layout.origins = cursor.take(4 * rows);
  }
  if (options.combine == MoeTransfer::push) {
    layout.slots = cursor.take(tokens * g.num_slots() * g.output_row_bytes());
  } else {
    layout.outputs = cursor.take(rows * g.output_row_bytes());
  }
  layout.bytes = cursor.at;
  return layout;
}

[[nodiscard]] constexpr LocalLayout local_layout(const Geometry& g, const MoeOptions& options,
                                                 std::size_t gemm_workspace_bytes) noexcept {
  const auto rows = static_cast<std::size_t>(g.pool_rows);
  const bool is_fp8 = g.num_scales > 0;
  const auto middle_scales =
      static_cast<std::size_t>((g.intermediate + kScaleBlock - 1) / kScaleBlock);
  detail::Cursor cursor;
  LocalLayout layout;
  layout.tables =
      cursor.take(sizeof(RouteTables) + 4ull * g.experts.num_ranks * g.experts.max_count());
  layout.gemm1 = cursor.take(gemm_workspace_bytes);
  layout.gemm2 = cursor.take(gemm_workspace_bytes);
  if (options.dispatch == MoeTransfer::pull) {
    layout.pool = cursor.take(rows * g.row_bytes);
    if (options.combine == MoeTransfer::push) layout.origins = cursor.take(4 * rows);
  }
  layout.pool_scales = cursor.take(4 * rows * g.num_scales);
  layout.middle = cursor.take(rows * g.intermediate * (is_fp8 ? 1 : 2));
  layout.middle_scales = cursor.take(is_fp8 ? 4 * rows * middle_scales : 0);
  if (options.combine == MoeTransfer::push) {
    layout.outputs = cursor.take(rows * g.output_row_bytes());
  }
  layout.bytes = cursor.at;
  return layout;
}

// The numbering of rows, as the route kernel computes it: from counts[rank][expert], what `rank`
// finds in its tables. Arrays as in RouteTables; returns the rows of its pool in use.
constexpr std::int32_t place_rows(const Geometry& g, const std::uint32_t* counts, int rank,
                                  std::int32_t num_tokens, std::int32_t* first_row,
                                  std::int32_t* num_rows, std::int32_t* my_row,
                                  std::int32_t* rank_row) noexcept {
  const Partition& experts = g.experts;
  std::int32_t in_use = 0;
  for (int owner = 0; owner < experts.num_ranks; ++owner) {
    std::int32_t row = 0;
    for (std::int32_t local = 0; local < experts.count(owner); ++local) {
      const std::int32_t expert = experts.first(owner) + local;
      std::int32_t at = row;
      for (int source = 0; source < experts.num_ranks; ++source) {
        if (source == rank) my_row[expert] = at;
        if (owner == rank) rank_row[source * experts.max_count() + local] = at;
        at += static_cast<std::int32_t>(counts[source * experts.num_experts + expert]);
      }
      if (owner == rank) {
        first_row[local] = row;
        num_rows[local] = at - row;
      }
      row += align_rows(at - row);
    }
    if (owner == rank) in_use = row;
  }
  for (std::int32_t shared = 0; shared < g.num_shared; ++shared) {
    first_row[experts.count(rank) + shared] = in_use;
    num_rows[experts.count(rank) + shared] = num_tokens;
    in_use += align_rows(num_tokens);
  }
  return in_use;
}

}  // namespace xstage::moe
