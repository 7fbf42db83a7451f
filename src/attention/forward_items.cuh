// Work items of the attention forward kernel: where a CTA gets them from, and the ring through
// which its loader hands them to the other roles.
#pragma once

#include <cstdint>

#include "attention/forward_params.cuh"
#include "attention/forward_traits.cuh"
#include "device/hopper.cuh"

namespace xstage::attention {

namespace dev = xstage::device;

inline constexpr std::int32_t kEndOfWork = -1;  // num_key_blocks of the item behind the last

// First query row of a consumer warpgroup's part of a tile.
__device__ __forceinline__ int first_row(const AttentionItem& item, int group) {
  return item.tile.query_block * kTileRows + group * kGroupRows;
}

// Where the loader gets this CTA's items from, in order. Full attention: the static assignment of
// the order. Causal: tiles are of different lengths, so the longest are handed out first, to
// whoever is ready; which CTA computes a tile does not change its bits.
template <class Traits>
class ItemSource {
 public:
  __device__ explicit ItemSource(const ForwardParams& params)
      : params_(params), position_(static_cast<int>(blockIdx.x)) {}

  __device__ AttentionItem next() { return Traits::kCausal ? next_tile() : next_item(); }

 private:
  __device__ AttentionItem next_item() {
    const AttentionOrder& order = params_.order;
    const int cta = static_cast<int>(blockIdx.x);
    if (item_idx_ == order.num_items(cta)) return end();
    return order.item(cta, item_idx_++);
  }

  __device__ AttentionItem next_tile() {
    const AttentionOrder& order = params_.order;
    if (position_ >= order.num_tiles()) {
      // The last CTA to see the end leaves the counters as it found them.
      if (atomicInc(params_.num_done, gridDim.x - 1) == gridDim.x - 1) *params_.num_taken = 0;
      return end();
    }
    AttentionItem item;
    item.tile = order.tile(position_);
    item.num_key_blocks = order.key_blocks(item.tile.query_block);
    position_ = static_cast<int>(gridDim.x + atomicAdd(params_.num_taken, 1));
    return item;
  }

  __device__ static AttentionItem end() {
    AttentionItem item;
    item.num_key_blocks = kEndOfWork;
    return item;
  }

  const ForwardParams& params_;
  int item_idx_ = 0;
  int position_;
};

// How long producers sleep between looks. The loader's bytes are wanted within a microsecond or
// two, a sender's buffer a whole tile later.
inline constexpr int kLoaderSleepNs = 32;
inline constexpr int kSenderSleepNs = 500;

// The loader computes an item once (divisions are slow) and hands it to the other roles through a
// ring in shared memory.
template <class Traits>
__device__ __forceinline__ void publish_item(ForwardShared<Traits>& shared, std::uint32_t item_idx,
                                             const AttentionItem& item) {
  const std::uint32_t slot = item_idx % kNumItemSlots;
  dev::mbarrier_wait_asleep<kLoaderSleepNs>(&shared.item_empty[slot],
                                            (item_idx / kNumItemSlots + 1) & 1);
  shared.items[slot] = item;
  dev::mbarrier_arrive(&shared.item_full[slot]);
}

// Item `item_idx`, until the reading warp gives it back. kSleepNs 0: wait without sleeping.
template <int kSleepNs, class Traits>
__device__ __forceinline__ const AttentionItem& take_item(ForwardShared<Traits>& shared,
                                                          std::uint32_t item_idx) {
  const std::uint32_t slot = item_idx % kNumItemSlots;
  const std::uint32_t parity = item_idx / kNumItemSlots & 1;
  if constexpr (kSleepNs > 0) {
    dev::mbarrier_wait_asleep<kSleepNs>(&shared.item_full[slot], parity);
  } else {
    dev::mbarrier_wait(&shared.item_full[slot], parity);
  }
  return shared.items[slot];
}

// One arrival a reading warp; its lanes have read what they need.
template <class Traits>
__device__ __forceinline__ void give_back_item(ForwardShared<Traits>& shared,
                                               std::uint32_t item_idx) {
  if (threadIdx.x % 32 == 0) dev::mbarrier_arrive(&shared.item_empty[item_idx % kNumItemSlots]);
}

}  // namespace xstage::attention
