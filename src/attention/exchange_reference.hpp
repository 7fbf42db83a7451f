// The exchange done slowly and obviously, element by element: what tests and benchmarks compare
// with. Shares no code with the plans.
#pragma once

#include <cstdint>

#include "xstage/attention_order.hpp"
#include "xstage/tensor.hpp"

namespace xstage::attention {

// Copies what `owner` gets of `source` (all rows of the heads of one rank) into `destination` (the
// same heads of the owner's buffer). Both as the current device sees them; one thread an element.
void reference_gather(const SequenceShards& shards, int owner, const TensorView& source,
                      const TensorView& destination, Stream stream);

// Adds to *num_different, a word that the current device sees, how many of `bytes` bytes differ.
void count_different_bytes(const void* a, const void* b, std::int64_t bytes,
                           std::uint64_t* num_different, Stream stream);

}  // namespace xstage::attention
