// The producer's roles in the attention forward kernel, one thread each: a loader of Q, K and V,
// and a sender of finished output rows for each consumer warpgroup.
#pragma once

#include <cstdint>

#include "attention/forward_items.cuh"

namespace xstage::attention {

// All panels of one box of rows.
template <class Traits>
__device__ __forceinline__ void load_panels(char* destination, std::uint32_t panel_bytes,
                                            const CUtensorMap* map, std::uint64_t* full, int head,
                                            int row, int batch, std::uint64_t policy) {
  dev::mbarrier_arrive_expect_bytes(full, Traits::kNumPanels * panel_bytes);
#pragma unroll
  for (int panel = 0; panel < Traits::kNumPanels; ++panel) {
    dev::tensor_load_4d(destination + panel * panel_bytes, map, full, panel * kSwizzleColumns, head,
                        row, batch, policy);
  }
}

// What a kernel adds to the loader's work; nothing here.
struct LoaderHooks {
  // `count` key blocks have been asked for so far, those of this item included.
  __device__ void on_keys(std::uint32_t) const {}
  // Before an item's first values are loaded.
  __device__ void before_values(std::uint32_t) const {}
};

template <class Traits, class Hooks = LoaderHooks>
__device__ __forceinline__ void run_loader(const ForwardParams& params,
                                           ForwardShared<Traits>& shared, const Hooks& hooks = {}) {
  const std::uint64_t once = dev::l2_policy_evict_first();
  const std::uint64_t often = dev::l2_policy_evict_last();
  ItemSource<Traits> source(params);
  std::uint32_t num_q = 0;   // items with key blocks
  std::uint32_t num_kv = 0;  // key blocks
  AttentionItem item = source.next();
  std::uint32_t item_idx = 0;
  for (; item.num_key_blocks != kEndOfWork; ++item_idx) {
    publish_item(shared, item_idx, item);
    if (item.num_key_blocks == 0) {
      item = source.next();
      continue;
    }
    const int batch = item.tile.batch;
    const int kv_head = item.tile.head / params.heads_per_kv;
    const auto load_kv = [&](char(&ring)[kNumStages][Traits::kKeyBlockBytes], std::uint64_t* full,
                             std::uint64_t* empty, const CUtensorMap* map, std::uint32_t count,
                             int block) {
      const std::uint32_t stage = count % kNumStages;
      dev::mbarrier_wait_asleep<kLoaderSleepNs>(&empty[stage], (count / kNumStages + 1) & 1);
      load_panels<Traits>(ring[stage], Traits::kKeyPanelBytes, map, &full[stage], kv_head,
                          block * Traits::kBlockKeys, batch, often);
    };
    const int last = item.first_key_block + item.num_key_blocks - 1;
    load_kv(shared.k, shared.k_full, shared.k_empty, &params.k, num_kv, last);
    hooks.on_keys(num_kv + 1);
    for (int group = 0; group < kNumGroups; ++group) {
      dev::mbarrier_wait_asleep<kLoaderSleepNs>(&shared.q_empty[group], (num_q + 1) & 1);
      load_panels<Traits>(shared.q[group], Traits::kGroupPanelBytes, &params.q,
                          &shared.q_full[group], item.tile.head, first_row(item, group), batch,
                          once);
    }
    ++num_q;
    const AttentionItem next = source.next();
    // The queries of the next item, needed at once when this one's are done with.
    if (next.num_key_blocks > 0) {
      for (int group = 0; group < kNumGroups; ++group) {
        for (int panel = 0; panel < Traits::kNumPanels; ++panel) {
          dev::tensor_prefetch_4d(&params.q, panel * kSwizzleColumns, next.tile.head,
                                  first_row(next, group), next.tile.batch);
        }
      }
    }
    hooks.before_values(item_idx);
    for (int block = last; block >= item.first_key_block; --block) {
      if (block > item.first_key_block) {
        load_kv(shared.k, shared.k_full, shared.k_empty, &params.k, num_kv + 1, block - 1);
        hooks.on_keys(num_kv + 2);
      }
      load_kv(shared.v, shared.v_full, shared.v_empty, &params.v, num_kv, block);
      ++num_kv;
    }
    item = next;
  }
  publish_item(shared, item_idx, item);
}

// One thread. Consumers hand over a buffer, the copy engine reads it, the consumers get it back.
template <class Traits>
__device__ __forceinline__ void run_sender(const ForwardParams& params,
                                           ForwardShared<Traits>& shared, int group) {
  for (std::uint32_t item_idx = 0;; ++item_idx) {
    const AttentionItem& item = take_item<kSenderSleepNs>(shared, item_idx);
    if (item.num_key_blocks == kEndOfWork) break;
    dev::mbarrier_wait_asleep<kSenderSleepNs>(&shared.o_full[group], item_idx & 1);
    const bool is_valid = shared.o_valid[group] != 0;
    if (is_valid) {
      const int row = first_row(item, group);
#pragma unroll
      for (int panel = 0; panel < Traits::kNumPanels; ++panel) {
        dev::tensor_store_4d(&params.out, shared.o[group] + panel * Traits::kGroupPanelBytes,
                             panel * kSwizzleColumns, item.tile.head, row, item.tile.batch);
      }
      dev::bulk_commit();
    }
    give_back_item(shared, item_idx);
    if (is_valid) dev::bulk_wait_read<0>();
    dev::mbarrier_arrive(&shared.o_empty[group]);
  }
  dev::bulk_wait_complete<0>();
}

}  // namespace xstage::attention
