// What the senders of the fused kernel write down, and the timeline it gives. Pure: no CUDA.
#pragma once

#include <cstdint>
#include <span>

#include "xstage/timeline.hpp"

namespace xstage::attention {

// One entry a (CTA, consumer group, item). Times by the GPU's global timer; 0: did not happen.
struct ExchangeEvent {
  std::int32_t tile = -1;         // query block + query blocks x (head + heads x batch)
  std::uint32_t num_chunks = 0;   // that the sender has sent in all up to here
  std::uint64_t taken_ns = 0;     // the sender has looked at the item
  std::uint64_t finished_ns = 0;  // its rows lie in shared memory
  std::uint64_t accepted_ns = 0;  // the last chunk has been issued
  std::uint64_t read_ns = 0;      // the buffer is free again
  std::uint64_t visible_ns = 0;   // the rows have arrived
};

// Of one call: events [CTA][group][max_items]. Times count from the first event. A group's spans:
// compute up to the finished tile, issue of its chunks, the wait until the buffer is read, the wait
// until the rows are visible. Groups of an SM overlap, as they do on it.
[[nodiscard]] Timeline exchange_timeline(std::span<const ExchangeEvent> events, int num_groups,
                                         int max_items, int rank);

}  // namespace xstage::attention
