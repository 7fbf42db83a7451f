// Before a run the destination is poisoned; after it every word that was to be written, and every
// guard zone, is compared with the payload. Host memory is checked by the CPU, GPU memory by the
// GPU that owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "probe/burst.hpp"
#include "probe/cuda.hpp"

namespace xstage::probing {

struct PayloadLayout {
  std::uint64_t block_stride_bytes;
  std::uint32_t num_columns;
  std::uint32_t row_shift;
  std::uint32_t pitch_bytes;
  std::uint32_t num_slices;
  // Producers that send here: those with idx mod num_shares == share_idx. The others' blocks must
  // keep the poison.
  std::uint32_t num_shares = 1;
  std::uint32_t share_idx = 0;
};

struct VerifyResult {
  std::uint64_t num_checked = 0;
  std::uint64_t num_wrong = 0;
};

void prepare_destination(const Buffer& destination, std::uint64_t total_bytes,
                         const BurstSpec& spec, const Stream& stream, const PayloadLayout& layout);

[[nodiscard]] VerifyResult verify_destination(const Buffer& destination, std::uint64_t total_bytes,
                                              const BurstSpec& spec, const Stream& stream,
                                              const PayloadLayout& layout,
                                              const std::vector<std::uint32_t>& row_order,
                                              char* counter);

// Calls count(i) for i in 0..num_items-1 on a few threads; the sum of what they return.
[[nodiscard]] std::uint64_t sum_in_parallel(int num_items,
                                            const std::function<std::uint64_t(int)>& count);

// Random bf16-safe words (no NaN, no infinity) for operands.
void fill_random(char* data, std::size_t bytes, std::uint32_t seed, const Stream& stream);

}  // namespace xstage::probing
