// How finished rows of one consumer group leave the SM: the store of the outbox.
//
// A parcel is a run of rows of one head for one owner, out of the group's swizzled output buffer.
// If it begins with the buffer and is clipped by nothing but the end of the owner's buffer, it goes
// as boxes of a tensor map; else its rows are stored by the lanes of the sender's warp, 16 bytes
// each.
#pragma once

#include <cstdint>

#include "attention/exchange_params.cuh"
#include "attention/forward_traits.cuh"
#include "device/hopper.cuh"
#include "device/store.cuh"

namespace xstage::attention {

// Lies in shared memory, written by the sender's leader: a parcel on its way then costs the sender
// one register.
struct TileRun {
  const CUtensorMap* map;  // null: rows
  char* rows;              // of the run's first row; null: boxes
  std::int32_t batch;
  std::int32_t head;
  std::int32_t owner_row;   // of the run's first row
  std::uint32_t first_row;  // of the run within the buffer
  std::uint32_t step;       // boxes: bytes of one; rows: bytes from row to row of the destination
  std::uint32_t bytes;      // of the parcel; 0: there is no further run
  std::uint32_t num_rows;   // whose log-sum-exp goes with it
  const float* own_lse;
  float* lse;
};

struct TileDestination {
  std::uint32_t run;  // shared address of a TileRun
};

// Whether the tensor map of an owner with `owner_rows` rows expresses the run: what a box stores
// beyond the run must lie beyond the end.
XSTAGE_HOST_DEVICE constexpr bool is_boxed(const RowRun& run, std::int32_t first_row,
                                           std::int32_t owner_rows) noexcept {
  return run.first_row == first_row &&
         (run.num_rows == kGroupRows || run.owner_row + run.num_rows == owner_rows);
}

template <class Traits>
struct TileStore : device::CopyEngineStore {
  using Destination = TileDestination;
  static constexpr std::uint32_t kRowBytes = Traits::kHeadDim * 2;
  static constexpr std::uint32_t kUnitBytes = 16;
  static constexpr std::uint32_t kPanelRowBytes = kSwizzleColumns * 2;

  static __device__ __forceinline__ void issue(const device::Role& role, const Destination& dst,
                                               const char* source, std::uint32_t offset,
                                               std::uint32_t bytes) {
    const auto& run = *static_cast<const TileRun*>(__cvta_shared_to_generic(dst.run));
    if (run.map != nullptr) {
      if (role.is_leader()) store_boxes(run, source, offset, bytes);
    } else {
      store_rows(role, run, source, offset, bytes);
    }
  }

  static __device__ __forceinline__ void make_visible(const device::Role& role) {
    role.sync();
    CopyEngineStore::make_visible(role);
    role.sync();
  }

 private:
  // Offsets run over the buffer as it lies: panel after panel.
  static __device__ __forceinline__ void store_boxes(const TileRun& dst, const char* source,
                                                     std::uint32_t offset, std::uint32_t bytes) {
#pragma unroll 1
    for (const std::uint32_t end = offset + bytes; offset < end; offset += dst.step) {
      const std::uint32_t panel = offset / Traits::kGroupPanelBytes;
      const std::uint32_t row = offset % Traits::kGroupPanelBytes / kPanelRowBytes;
      device::tensor_store_4d(dst.map, source + offset, static_cast<int>(panel * kSwizzleColumns),
                              dst.head, dst.owner_row + static_cast<int>(row), dst.batch);
    }
  }

  // Offsets run over the rows as they are stored, one after the other.
  static __device__ __forceinline__ void store_rows(const device::Role& role, const TileRun& dst,
                                                    const char* source, std::uint32_t offset,
                                                    std::uint32_t bytes) {
    const std::uint32_t from = device::shared_address(source);
    const std::uint32_t stride = role.num_threads * kUnitBytes;
#pragma unroll 1
    for (std::uint32_t at = offset + role.thread_idx * kUnitBytes; at < offset + bytes;
         at += stride) {
      const std::uint32_t row = at / kRowBytes;
      const std::uint32_t inside = at % kRowBytes;
      const std::uint32_t buffer_row = dst.first_row + row;
      const std::uint32_t unit =
          inside % kPanelRowBytes / kUnitBytes ^ buffer_row % (kPanelRowBytes / kUnitBytes);
      uint4 word;
      device::load_shared(from + inside / kPanelRowBytes * Traits::kGroupPanelBytes +
                              buffer_row * kPanelRowBytes + unit * kUnitBytes,
                          word);
      device::store_global(dst.rows + static_cast<std::uint64_t>(row) * dst.step + inside, word);
    }
    role.sync();
  }
};

}  // namespace xstage::attention
