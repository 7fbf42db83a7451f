// Tensor maps without linking the driver: the encoder is looked up at run time.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace xstage::probing {

// A row-major matrix of bf16: `row_bytes` wide, `num_rows` rows `pitch_bytes` apart; the box is
// `box_bytes` wide (at most 512) and `box_rows` high (at most 256). No swizzle: shared memory holds
// the box row by row. Throws Error(runtime) if the driver refuses, Error(not_possible) if it is too
// old.
[[nodiscard]] CUtensorMap make_row_box_map(void* base, std::uint64_t row_bytes,
                                           std::uint64_t num_rows, std::uint64_t pitch_bytes,
                                           std::uint32_t box_bytes, std::uint32_t box_rows);

}  // namespace xstage::probing
