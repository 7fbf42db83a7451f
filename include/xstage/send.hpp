// How a role of a kernel sends its finished tiles: the store kind, the pace, and the pacer that
// turns both into decisions. Kernels, the simulator and the planner read this one header, so a
// prediction and the run that it predicts cannot disagree about the order of sends.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define XSTAGE_HOST_DEVICE __host__ __device__
#else
#define XSTAGE_HOST_DEVICE
#endif

namespace xstage {

// How bytes leave an SM. The kinds after `tensor` exist in the probe alone.
enum class StoreKind : std::uint8_t {
  register16,   // 16-byte vector stores from registers, all threads of the owning role
  bulk,         // 1-D bulk copy (TMA) from shared memory, one thread
  tensor,       // tensor-map copy (TMA) of a box of rows from shared memory, one thread
  register8,    // 8-byte register stores
  register4,    // 4-byte register stores
  bulk_reduce,  // 1-D bulk copy that adds (32-bit integers) at the destination
  red,          // 4-byte remote atomic add without a result
  load,         // 16-byte remote loads: a contrast, a round trip instead of a posted write
};
inline constexpr int kNumStoreKinds = 8;

// What the owner of an outbox waits for after a chunk.
enum class Completion : std::uint8_t {
  accepted,  // nothing: the issue instruction is done
  read,      // until the source may be reused
  visible,   // until the bytes have arrived: the completion-coupled counterfactual
};

// How a role sends. A plain value: a kernel takes it as a run-time argument.
//   burst    chunk_bytes >= tile bytes, steps_per_chunk 0: everything at once
//   paced    smaller chunks, at most one every `steps_per_chunk` main-loop steps
//   coupled  completion == visible
struct Send {
  StoreKind kind = StoreKind::bulk;
  std::uint32_t chunk_bytes = 16 * 1024;
  std::uint32_t steps_per_chunk = 0;
  Completion completion = Completion::accepted;
};

// Decides when the next chunk may leave. Pure: no clock, no memory; it counts main-loop steps.
// Guarantee: with steps_per_chunk = n > 0, between two granted chunks lie at least n calls of
// step(); with n = 0 every request is granted.
class Pacer {
 public:
  XSTAGE_HOST_DEVICE constexpr explicit Pacer(const Send& send) noexcept
      : interval_(send.steps_per_chunk), credit_(send.steps_per_chunk) {}

  // The main loop has advanced by one step (one key block, one K block of a GEMM).
  XSTAGE_HOST_DEVICE constexpr void step() noexcept {
    if (credit_ < interval_) ++credit_;
  }

  // True if a chunk may be sent now; the permission is then used up.
  XSTAGE_HOST_DEVICE constexpr bool take() noexcept {
    if (credit_ < interval_) return false;
    credit_ = 0;
    return true;
  }

 private:
  std::uint32_t interval_;
  std::uint32_t credit_;
};

// Number of chunks that `bytes` are sent in. chunk_bytes 0 means one chunk.
XSTAGE_HOST_DEVICE constexpr std::uint32_t num_chunks(std::uint32_t bytes,
                                                      std::uint32_t chunk_bytes) noexcept {
  if (bytes == 0) return 0;
  if (chunk_bytes == 0 || chunk_bytes >= bytes) return 1;
  return (bytes - 1) / chunk_bytes + 1;
}

}  // namespace xstage
