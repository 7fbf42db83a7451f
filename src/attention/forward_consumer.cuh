// The consumer's role in the attention forward kernel: one warpgroup, 64 query rows of every item.
#pragma once

#include <cstdint>

#include "attention/forward_items.cuh"
#include "attention/softmax.cuh"
#include "device/wgmma.cuh"

namespace xstage::attention {

// Named barriers; 0 is the CTA's.
enum Barrier : std::uint32_t { kTurn = 1, kGroupLocal = 1 + kNumGroups };

template <class Traits>
struct Consumer {
  using Element = typename Traits::Element;
  using Scores = float[Traits::kBlockKeys / 2];
  using Operand = std::uint32_t[Traits::kBlockKeys / 4];
  using Rows = float[Traits::kHeadDim / 2];

  const ForwardParams& params;
  ForwardShared<Traits>& shared;
  const int group;              // 0 or 1
  const int thread;             // 0..127
  std::uint32_t num_kv = 0;     // key blocks whose V is done
  std::uint32_t num_items = 0;  // items with key blocks, done

  __device__ Consumer(const ForwardParams& p, ForwardShared<Traits>& s, int group_idx,
                      int thread_idx)
      : params(p), shared(s), group(group_idx), thread(thread_idx) {}

  // The groups issue their products in turns.
  __device__ __forceinline__ void wait_turn() const {
    dev::named_barrier_sync(kTurn + group, kNumGroups * kWarpgroupThreads);
  }
  __device__ __forceinline__ void pass_turn() const {
    dev::named_barrier_arrive(kTurn + 1 - group, kNumGroups * kWarpgroupThreads);
  }

  __device__ __forceinline__ void release(std::uint64_t* barrier) const {
    if (thread % 32 == 0) dev::mbarrier_arrive(barrier);
  }
  __device__ __forceinline__ void issue_scores(Scores& s, std::uint32_t count) const {
    const std::uint64_t q = dev::k_major_descriptor(dev::shared_address(shared.q[group]));
    const std::uint64_t k =
        dev::k_major_descriptor(dev::shared_address(shared.k[count % kNumStages]));
    dev::pin_registers(s);
    dev::wgmma_fence();
#pragma unroll
    for (int step = 0; step < Traits::kHeadDim / 16; ++step) {
      const std::uint32_t panel = step / 4;
      const std::uint32_t inside = step % 4 * 32;
      const std::uint64_t a = dev::advance(q, panel * Traits::kGroupPanelBytes + inside);
      const std::uint64_t b = dev::advance(k, panel * Traits::kKeyPanelBytes + inside);
      if (step == 0) {
        dev::Wgmma<Element, Traits::kBlockKeys>::template ss<false>(s, a, b);
      } else {
        dev::Wgmma<Element, Traits::kBlockKeys>::template ss<true>(s, a, b);
      }
    }
    dev::wgmma_commit();
  }

  __device__ __forceinline__ void issue_output(Rows& o, const Operand& p,
                                               std::uint32_t count) const {
    const std::uint64_t v = dev::mn_major_descriptor<Traits::kKeyPanelBytes>(
        dev::shared_address(shared.v[count % kNumStages]));
    dev::pin_registers(o);
    dev::wgmma_fence();
#pragma unroll
    for (int step = 0; step < Traits::kBlockKeys / 16; ++step) {
      dev::Wgmma<Element, Traits::kHeadDim>::rs(o, p + 4 * step, dev::advance(v, step * 2048));
    }
    dev::wgmma_commit();
  }

  // First key that the thread's row h does not see.
  __device__ __forceinline__ int key_limit(int row) const {
    if constexpr (!Traits::kCausal) return params.num_keys;
    return min(params.num_keys, row + 1 + params.num_keys - params.num_query_rows);
  }

  __device__ __forceinline__ void mask_block(Scores& s, int group_row, int block) const {
    const int row = group_row + thread / 32 * 16 + thread % 32 / 4;
    const int first_key = block * Traits::kBlockKeys;
    const int num_visible[2] = {key_limit(row) - first_key, key_limit(row + 8) - first_key};
    mask(s, num_visible, thread % 4 * 2);
  }

  __device__ __forceinline__ bool needs_mask(int group_row, int block) const {
    return (block + 1) * Traits::kBlockKeys > key_limit(group_row);
  }

  // Issues the first product of an item, and waits for nothing else. Without key
  // blocks the product is of whatever lies in shared memory, and nobody looks at it: a product that
  // is only sometimes in flight would make the compiler serialise all of them.
  __device__ __forceinline__ void begin(const AttentionItem& item, Scores& s) {
    if (item.num_key_blocks > 0) {
      dev::mbarrier_wait(&shared.q_full[group], num_items & 1);
      ++num_items;
      dev::mbarrier_wait(&shared.k_full[num_kv % kNumStages], num_kv / kNumStages & 1);
    }
    issue_scores(s, num_kv);
  }

  // From the first product, which begin() has issued, to the last, which is issued but not awaited:
  // unnormalised output rows and statistics.
  __device__ __forceinline__ void compute(const AttentionItem& item, int group_row, Scores& s,
                                          Rows& o, RowStats& stats) {
    const int first = item.first_key_block;
    const int last = first + item.num_key_blocks - 1;
    Operand p;
    float factor[2];
    dev::pin_registers(s);
    release(&shared.k_empty[num_kv % kNumStages]);
    if (first == last) release(&shared.q_empty[group]);
    if (needs_mask(group_row, last)) mask_block(s, group_row, last);
    online_softmax<true, Traits::kCausal, Traits::kMaxPolicy>(s, stats, factor, params.scale_log2,
                                                              params.keep_below);
    to_operand<Element>(p, s);
#pragma unroll
    for (int i = 0; i < Traits::kHeadDim / 2; ++i) o[i] = 0.f;

    for (int block = last - 1; block >= first; --block) {
      const std::uint32_t num_k = num_kv + 1;
      dev::mbarrier_wait(&shared.k_full[num_k % kNumStages], num_k / kNumStages & 1);
      wait_turn();
      issue_scores(s, num_k);
      dev::mbarrier_wait(&shared.v_full[num_kv % kNumStages], num_kv / kNumStages & 1);
      issue_output(o, p, num_kv);
      pass_turn();
      dev::wgmma_wait<1>();
      dev::pin_registers(s);
      release(&shared.k_empty[num_k % kNumStages]);
      if (block == first) release(&shared.q_empty[group]);
      if constexpr (Traits::kCausal) {
        if (needs_mask(group_row, block)) mask_block(s, group_row, block);
      }
      const bool moved = online_softmax<false, Traits::kCausal, Traits::kMaxPolicy>(
          s, stats, factor, params.scale_log2, params.keep_below);
      dev::wgmma_wait<0>();
      dev::pin_registers(o);
      release(&shared.v_empty[num_kv % kNumStages]);
      to_operand<Element>(p, s);
      if (moved) rescale(o, factor);
      ++num_kv;
    }
    dev::mbarrier_wait(&shared.v_full[num_kv % kNumStages], num_kv / kNumStages & 1);
    issue_output(o, p, num_kv);
    ++num_kv;
    stats.sum[0] = row_sum(stats.sum[0]);
    stats.sum[1] = row_sum(stats.sum[1]);
  }

  // --- split tiles ---

  // A part is stored as the threads hold it: [slot][group][i][thread] of float4, so that reads and
  // writes are contiguous over a warp.
  __device__ __forceinline__ float4* part_rows(int slot) const {
    constexpr int kVectors = Traits::kHeadDim / 8;
    return params.part_rows + (slot * kNumGroups + group) * kVectors * kWarpgroupThreads + thread;
  }
  __device__ __forceinline__ float4* part_stats(int slot) const {
    return params.part_stats + (slot * kNumGroups + group) * kWarpgroupThreads + thread;
  }

  __device__ __forceinline__ void store_part(int slot, const Rows& o, const RowStats& stats) const {
    __stcg(part_stats(slot), make_float4(stats.max[0], stats.max[1], stats.sum[0], stats.sum[1]));
#pragma unroll
    for (int i = 0; i < Traits::kHeadDim / 8; ++i) {
      __stcg(part_rows(slot) + i * kWarpgroupThreads,
             make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
    }
  }

  // True for the group whose part is the last of its tile to be stored; it then sees all parts.
  __device__ __forceinline__ bool is_last_part(const AttentionItem& item) const {
    __threadfence();
    dev::named_barrier_sync(kGroupLocal + group, kWarpgroupThreads);
    if (thread == 0) {
      std::uint32_t* arrivals = params.part_arrivals + item.tail_idx * kNumGroups + group;
      const std::uint32_t last = static_cast<std::uint32_t>(item.num_parts) - 1;
      // The counter wraps to 0: the next launch finds it as this one did.
      shared.is_last_part[group] = atomicInc(arrivals, last) == last ? 1 : 0;
      __threadfence();
    }
    dev::named_barrier_sync(kGroupLocal + group, kWarpgroupThreads);
    return shared.is_last_part[group] != 0;
  }

  // o += weight_a * a + weight_b * b for two parts, whose loads overlap.
  __device__ __forceinline__ void add_parts(Rows& o, int slot_a, const float (&weight_a)[2],
                                            int slot_b, const float (&weight_b)[2]) const {
    constexpr int kVectors = Traits::kHeadDim / 8;
    constexpr int kBatch = 4;  // as much as fits beside the scores in flight
#pragma unroll
    for (int begin = 0; begin < kVectors; begin += kBatch) {
      float4 a[kBatch];
      float4 b[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        a[i] = __ldcg(part_rows(slot_a) + (begin + i) * kWarpgroupThreads);
        b[i] = __ldcg(part_rows(slot_b) + (begin + i) * kWarpgroupThreads);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        float* x = o + 4 * (begin + i);
        x[0] = fmaf(weight_b[0], b[i].x, fmaf(weight_a[0], a[i].x, x[0]));
        x[1] = fmaf(weight_b[0], b[i].y, fmaf(weight_a[0], a[i].y, x[1]));
        x[2] = fmaf(weight_b[1], b[i].z, fmaf(weight_a[1], a[i].z, x[2]));
        x[3] = fmaf(weight_b[1], b[i].w, fmaf(weight_a[1], a[i].w, x[3]));
      }
    }
  }

  // Stores this part; the group that arrives last adds all parts up, in their order, whoever it is:
  // the bits of the result do not depend on timing. False: somebody else will.
  __device__ __forceinline__ bool combine(const AttentionItem& item, Rows& o, RowStats& stats) {
    const AttentionOrder& order = params.order;
    store_part(order.part_slot(static_cast<int>(blockIdx.x), item.tail_idx), o, stats);
    if (!is_last_part(item)) return false;
    __threadfence();

    // Only the first part's CTA can have begun with another tile.
    const int num_parts = item.num_parts;
    const int first_cta = item.first_cta;
    const int first_slot = order.part_slot(first_cta, item.tail_idx);
    const auto slot_of = [&](int part) { return part == 0 ? first_slot : 2 * (first_cta + part); };
    stats.max[0] = stats.max[1] = -INFINITY;
#pragma unroll 4
    for (int part = 0; part < num_parts; ++part) {
      const float4 other = __ldcg(part_stats(slot_of(part)));
      stats.max[0] = fmaxf(stats.max[0], other.x);
      stats.max[1] = fmaxf(stats.max[1], other.y);
    }
    stats.sum[0] = stats.sum[1] = 0.f;
#pragma unroll
    for (int i = 0; i < Traits::kHeadDim / 2; ++i) o[i] = 0.f;
    for (int part = 0; part < num_parts; part += 2) {
      const bool is_pair = part + 1 < num_parts;
      const int slots[2] = {slot_of(part), slot_of(is_pair ? part + 1 : part)};
      float weight[2][2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 other = __ldcg(part_stats(slots[i]));
        const float use = i == 0 || is_pair ? 1.f : 0.f;
        weight[i][0] = use * dev::exp2_approx((other.x - stats.max[0]) * params.scale_log2);
        weight[i][1] = use * dev::exp2_approx((other.y - stats.max[1]) * params.scale_log2);
        stats.sum[0] = fmaf(weight[i][0], other.z, stats.sum[0]);
        stats.sum[1] = fmaf(weight[i][1], other.w, stats.sum[1]);
      }
      add_parts(o, slots[0], weight[0], slots[1], weight[1]);
    }
    return true;
  }

  // --- epilogue ---

  __device__ __forceinline__ void write_lse(const AttentionItem& item, int group_row,
                                            const RowStats& stats) const {
    if (params.lse == nullptr || thread % 4 != 0) return;
    const std::int64_t column =
        static_cast<std::int64_t>(item.tile.batch) * params.num_heads + item.tile.head;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = group_row + thread / 32 * 16 + thread % 32 / 4 + 8 * h;
      const float lse =
          stats.sum[h] > 0.f ? fmaf(stats.max[h], params.scale, logf(stats.sum[h])) : -INFINITY;
      if (row < params.num_query_rows) params.lse[column * params.num_query_rows + row] = lse;
    }
  }

  // Normalises the rows into the group's output buffer.
  __device__ __forceinline__ void stage_output(const Rows& o, const RowStats& stats) const {
    const float inverse[2] = {stats.sum[0] > 0.f ? 1.f / stats.sum[0] : 0.f,
                              stats.sum[1] > 0.f ? 1.f / stats.sum[1] : 0.f};
    const int lane = thread % 32;
    const int row = thread / 32 * 16 + lane % 16;
    const std::uint32_t row_address = dev::shared_address(shared.o[group]) + row * 128;
#pragma unroll
    for (int chunk = 0; chunk < Traits::kHeadDim / 16; ++chunk) {
      const float* x = o + 8 * chunk;
      const std::uint32_t unit = (chunk % 4 * 2 + lane / 16) ^ (row % 8);
      dev::store_matrix_x4(row_address + chunk / 4 * Traits::kGroupPanelBytes + unit * 16,
                           pack_pair(x[0] * inverse[0], x[1] * inverse[0], Element{}),
                           pack_pair(x[2] * inverse[1], x[3] * inverse[1], Element{}),
                           pack_pair(x[4] * inverse[0], x[5] * inverse[0], Element{}),
                           pack_pair(x[6] * inverse[1], x[7] * inverse[1], Element{}));
    }
  }

  // Normalised rows and statistics of an item into the group's output buffer.
  __device__ __forceinline__ void finish(const AttentionItem& item, std::uint32_t item_idx, int row,
                                         Rows& o, RowStats& stats) {
    bool is_valid = true;
    if constexpr (!Traits::kCausal) {
      if (item.tail_idx >= 0) is_valid = combine(item, o, stats);
    }
    dev::mbarrier_wait(&shared.o_empty[group], (item_idx + 1) & 1);
    if (is_valid) {
      write_lse(item, row, stats);
      stage_output(o, stats);
      dev::fence_async_shared();
    }
    if (thread == 0) shared.o_valid[group] = is_valid ? 1 : 0;
    __syncwarp();
    give_back_item(shared, item_idx);
    release(&shared.o_full[group]);
  }

  __device__ __forceinline__ void run() {
    if (group == 1) pass_turn();  // group 0 has the first turn
    Scores s;
    begin(take_item<0>(shared, 0), s);
    dev::wgmma_wait<0>();
    dev::pin_registers(s);
    for (std::uint32_t item_idx = 0;; ++item_idx) {
      const AttentionItem& item = take_item<0>(shared, item_idx);
      if (item.num_key_blocks == kEndOfWork) break;
      const int row = first_row(item, group);
      Rows o;
      RowStats stats;
      if (item.num_key_blocks > 0) {
        compute(item, row, s, o, stats);
        // The next item's first product runs beside this one's last and its epilogue.
        begin(take_item<0>(shared, item_idx + 1), s);
        dev::wgmma_wait<1>();
        dev::pin_registers(o);
        release(&shared.v_empty[(num_kv - 1) % kNumStages]);
      } else {
#pragma unroll
        for (int i = 0; i < Traits::kHeadDim / 2; ++i) o[i] = 0.f;
        stats = {{-INFINITY, -INFINITY}, {0.f, 0.f}};
        begin(take_item<0>(shared, item_idx + 1), s);
      }
      finish(item, item_idx, row, o, stats);
      dev::wgmma_wait<0>();
      dev::pin_registers(s);
    }
  }
};

}  // namespace xstage::attention
