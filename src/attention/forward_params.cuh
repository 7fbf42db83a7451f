// What one launch of the attention forward kernel is given.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "xstage/attention_order.hpp"

namespace xstage::attention {

struct ForwardParams {
  // 4-D: element, head, row, batch. Rows of K and V end at the number of valid keys.
  CUtensorMap q;
  CUtensorMap k;
  CUtensorMap v;
  CUtensorMap out;
  AttentionOrder order;
  std::int32_t num_heads;
  std::int32_t num_query_rows;
  std::int32_t num_keys;      // valid ones
  std::int32_t heads_per_kv;  // query heads that share a KV head
  float scale_log2;           // scale * log2(e)
  float scale;
  float keep_below;    // the running maximum moves when it grows by more than this (log2)
  float* lse;          // [batch, head, row], natural logarithm; null: not wanted
  float4* part_stats;  // partial results of split tiles, see store_part()
  float4* part_rows;
  // Counters, 0 before and after a launch.
  std::uint32_t* part_arrivals;  // one a (tail tile, group)
  std::uint32_t* num_taken;      // causal: tiles handed out beyond the first of every CTA
  std::uint32_t* num_done;       // causal: CTAs that have seen the end
};

}  // namespace xstage::attention
