// What the exchange benchmark's ranks compute and own, and the flags of its exchanges in peer
// memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/push.hpp"
#include "xstage/attention_order.hpp"
#include "xstage/peers.hpp"
#include "xstage/workload.hpp"

namespace xstage::attention {

// What a rank computes, and who owns what of it.
struct TimedShape {
  AttentionWorkload workload;
  int num_ranks = 1;

  [[nodiscard]] std::int32_t num_kv_heads() const {
    return workload.num_kv_heads > 0 ? workload.num_kv_heads : workload.num_heads;
  }
  // As equal as possible; heads that share a KV head together where there are enough of those.
  [[nodiscard]] std::int32_t first_head(int rank) const {
    const std::int32_t kv = num_kv_heads();
    return kv >= num_ranks ? even_split(kv, num_ranks, rank) * (workload.num_heads / kv)
                           : even_split(workload.num_heads, num_ranks, rank);
  }
  [[nodiscard]] std::int32_t heads_of(int rank) const {
    return first_head(rank + 1) - first_head(rank);
  }
  // KV heads that a rank's heads use.
  [[nodiscard]] std::int32_t kv_heads_of(int rank) const {
    const std::int32_t per_kv = workload.num_heads / num_kv_heads();
    if (heads_of(rank) == 0) return 0;
    return (first_head(rank + 1) - 1) / per_kv - first_head(rank) / per_kv + 1;
  }
  [[nodiscard]] SequenceShards shards(int rank) const {
    return SequenceShards::even(workload.sequence, num_ranks, rank, workload.replicated_prefix,
                                workload.replicated_suffix);
  }
  [[nodiscard]] std::int32_t max_owner_rows() const {
    const SequenceShards s = shards(0);
    return s.owner_rows(0);  // the first ranks hold the larger shares
  }
  [[nodiscard]] std::size_t tensor_bytes(std::int64_t rows, std::int64_t heads) const {
    return static_cast<std::size_t>(workload.batch * rows * heads * workload.head_dim) * 2;
  }
};

// A page of flags at `offset` of every rank's peer memory. Nobody reads results between replays, so
// nothing has to be released.
inline constexpr std::size_t kTimedFlagBytes = 4096;
[[nodiscard]] PushSync flags_in(const PeerMemory& memory, std::size_t offset);
[[nodiscard]] const std::uint32_t* arrivals_in(const PeerMemory& memory, std::size_t offset);

}  // namespace xstage::attention
