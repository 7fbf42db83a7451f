// For comparison: SMs that do nothing but send. The senders of the computing CTAs put finished rows
// into this rank's own memory; the last CTAs of the grid, the carriers, fetch them and send them to
// their owners. What piggybacking saves is the difference.
//
// In a carrier the loader's thread is a feeder, which fills the output buffers that elsewhere the
// consumers fill; its senders are those of the fused kernel; the consumer warps look on. Carriers
// wait for computing CTAs, so the grid has to be resident as a whole.
#pragma once

#include <cstdint>

#include "attention/exchange_sender.cuh"

namespace xstage::attention {

// A warp of a computing CTA, in the sender's place: finished rows of its group go into this rank's
// own memory.
template <class Traits>
__device__ __forceinline__ void run_stager(const ExchangeParams& params,
                                           ExchangeShared<Traits>& shared, int group) {
  ForwardShared<Traits>& forward = shared.forward;
  dev::mbarrier_wait_asleep<kFinishedSleepNs>(&shared.gate, 0);
  for (std::uint32_t item_idx = 0; threadIdx.x % 32 == 0; ++item_idx) {
    const AttentionItem& item = take_item<kFinishedSleepNs>(forward, item_idx);
    if (item.num_key_blocks == kEndOfWork) break;
    dev::mbarrier_wait_asleep<kFinishedSleepNs>(&forward.o_full[group], item_idx & 1);
    const bool is_valid = forward.o_valid[group] != 0;
    std::uint32_t* staged =
        &params.staged[tile_idx(params.forward, item.tile) * kNumGroups + group];
    if (is_valid) {
#pragma unroll 1
      for (int panel = 0; panel < Traits::kNumPanels; ++panel) {
        dev::tensor_store_4d(
            &params.forward.out, forward.o[group] + panel * Traits::kGroupPanelBytes,
            panel * kSwizzleColumns, item.tile.head, first_row(item, group), item.tile.batch);
      }
      dev::bulk_commit();
    }
    give_back_item(forward, item_idx);
    dev::bulk_wait_read<0>();
    dev::mbarrier_arrive(&forward.o_empty[group]);
    if (!is_valid) continue;
    dev::bulk_wait_complete<0>();
    dev::store_release_gpu(staged, shared.epoch);
  }
  __syncwarp();
  end_sender(params, shared, static_cast<int>(threadIdx.x) % 32);
}

// One thread. Tiles in the order in which they are computed, dealt out round robin.
template <class Traits>
__device__ __forceinline__ void run_feeder(const ExchangeParams& params,
                                           ExchangeShared<Traits>& shared, int carrier) {
  ForwardShared<Traits>& forward = shared.forward;
  const AttentionOrder& order = params.forward.order;
  const std::uint64_t once = dev::l2_policy_evict_first();
  dev::mbarrier_wait_asleep<kFinishedSleepNs>(&shared.gate, 0);
  std::uint32_t item_idx = 0;
  AttentionItem item;
  for (int position = carrier; position < order.num_tiles(); position += params.num_carriers) {
    item.tile = order.tile(position);
    item.num_key_blocks = 1;
    publish_item(forward, item_idx, item);
    const AttentionItem& published = forward.items[item_idx % kNumItemSlots];
#pragma unroll 1
    for (int group = 0; group < kNumGroups; ++group) {
      dev::mbarrier_wait_asleep<kLoaderSleepNs>(&forward.o_empty[group], (item_idx + 1) & 1);
      const AttentionTile& tile = published.tile;
      const std::uint32_t* staged =
          &params.staged[tile_idx(params.forward, tile) * kNumGroups + group];
      (void)dev::wait_flag(params.wait, staged, shared.epoch, -1,
                           static_cast<std::uint32_t>(ExchangeTag::staged));
      dev::fence_async_global();
      forward.o_valid[group] = 1;
      load_panels<Traits>(forward.o[group], Traits::kGroupPanelBytes, &params.forward.out,
                          &forward.o_full[group], tile.head, first_row(published, group),
                          tile.batch, once);
      // The barrier counts the warps of a consumer group.
#pragma unroll 1
      for (int i = 1; i < kWarpgroupThreads / 32; ++i) dev::mbarrier_arrive(&forward.o_full[group]);
    }
    ++item_idx;
  }
  item.num_key_blocks = kEndOfWork;
  publish_item(forward, item_idx, item);
}

// A warp of a carrier's consumer groups.
template <class Traits>
__device__ __forceinline__ void look_on(ExchangeShared<Traits>& shared) {
  for (std::uint32_t item_idx = 0;; ++item_idx) {
    if (take_item<kSenderSleepNs>(shared.forward, item_idx).num_key_blocks == kEndOfWork) return;
    __syncwarp();
    give_back_item(shared.forward, item_idx);
  }
}

}  // namespace xstage::attention
