// The roles that the fused kernel adds to those of the forward kernel, in the warps of the producer
// warpgroup: a sender for each consumer group, and a gatekeeper.
//
// A sender is one warp. It sends the rows of finished tiles to their owners while the next tile is
// computed, makes them visible in the time that is left, and counts them; whoever completes an
// owner's count tells the owner. The consumers never wait for visibility, only for their buffer to
// have been read.
#pragma once

#include <cstdint>

#include "attention/exchange_params.cuh"
#include "attention/exchange_store.cuh"
#include "attention/forward_items.cuh"
#include "attention/forward_producer.cuh"
#include "device/flags.cuh"
#include "device/outbox.cuh"
#include "device/wait.cuh"

namespace xstage::attention {

inline constexpr int kOutboxSlots = 2;
// How long senders sleep between looks: at a finished tile, at the progress of the main loop.
inline constexpr int kFinishedSleepNs = 200;
inline constexpr int kPaceSleepNs = 200;

// What a sender remembers in shared memory: producers have few registers.
template <class Traits>
struct SenderShared {
  typename device::Outbox<TileStore<Traits>, kOutboxSlots>::Storage parcels;
  TileRun runs[kOutboxSlots];               // where the parcels go
  AttentionTile tile;                       // that is being sent
  std::uint32_t num_steps;                  // key blocks of the items up to it
  std::uint32_t due;                        // of the loader's, when the tile has to leave
  RowRunCursor cursor;                      // behind the run that is being sent
  std::uint32_t num_sent[kMaxFusedOwners];  // rows of the tile for each owner; 0 between tiles
};

template <class Traits>
struct alignas(1024) ExchangeShared {
  ForwardShared<Traits> forward;
  SenderShared<Traits> senders[kNumGroups];
  std::uint64_t gate;       // every owner's buffer may be written
  std::uint32_t epoch;      // of this call; behind the gate
  std::uint32_t num_steps;  // key blocks that the loader has asked for; written by it alone
};

// What the loader does for the senders.
template <class Traits>
struct ExchangeHooks {
  const ExchangeParams& params;
  ExchangeShared<Traits>& shared;

  __device__ void on_keys(std::uint32_t count) const {
    *static_cast<volatile std::uint32_t*>(&shared.num_steps) = count;
  }
  // Completion-coupled: the next tile gets no further than its first scores before the rows of this
  // one have arrived.
  __device__ void before_values(std::uint32_t item_idx) const {
    if (params.send.completion != Completion::visible) return;
    for (int group = 0; group < kNumGroups; ++group) {
      dev::mbarrier_wait_asleep<kLoaderSleepNs>(&shared.forward.o_empty[group], (item_idx + 1) & 1);
    }
  }
};

// The same for all orders: query block + query blocks x (head + heads x batch).
__device__ __forceinline__ std::int32_t tile_idx(const ForwardParams& forward,
                                                 const AttentionTile& tile) {
  return (tile.batch * forward.num_heads + tile.head) * forward.order.num_query_blocks() +
         tile.query_block;
}

// One warp. Tells the peers that this rank has done with earlier results, and opens the gate when
// they have done with what lies in this call's buffers.
template <class Traits>
__device__ __forceinline__ void run_gatekeeper(const ExchangeParams& params,
                                               ExchangeShared<Traits>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t epoch = dev::load_relaxed_system(&params.header->epoch) + 1;
  const std::uint32_t last_use = dev::load_relaxed_system(&params.header->last_use[params.slot]);
  if (lane < params.shards.num_ranks) {
    const ExchangeOwner& owner = params.owners[lane];
    if (blockIdx.x == 0) {
      if (lane != params.shards.rank) dev::raise_flag(owner.released, epoch - 1);
      if (owner.expected == 0) dev::raise_flag(owner.arrived, epoch);
    }
    if (lane != params.shards.rank) {
      (void)dev::wait_flag(params.wait, &params.header->released[lane], last_use, lane,
                           static_cast<std::uint32_t>(ExchangeTag::released));
    }
  }
  __syncwarp();
  if (lane == 0) {
    shared.epoch = epoch;
    dev::mbarrier_arrive(&shared.gate);
  }
}

// The last act of every sender, by its warp (a lane a rank); the last of all ends the call.
template <class Traits>
__device__ __forceinline__ void end_sender(const ExchangeParams& params,
                                           const ExchangeShared<Traits>& shared, int rank) {
  bool is_last = false;
  if (rank == 0) {
    const std::uint32_t last = kNumGroups * gridDim.x - 1;
    is_last = atomicInc(params.num_done, last) == last;
    if (is_last) {
      params.header->last_use[params.slot] = shared.epoch;
      params.header->epoch = shared.epoch;
    }
  }
  if (!params.wait_for_rows || !__shfl_sync(0xffffffffu, is_last, 0)) return;
  if (rank >= params.shards.num_ranks) return;
  (void)dev::wait_flag(params.wait, &params.header->arrived[rank], shared.epoch, rank,
                       static_cast<std::uint32_t>(ExchangeTag::arrived));
}

template <class Traits>
class Sender {
 public:
  __device__ Sender(const ExchangeParams& params, ExchangeShared<Traits>& shared, int group)
      : params_(params),
        shared_(shared),
        mine_(shared.senders[group]),
        group_(group),
        role_{threadIdx.x % 32, 32, 0},
        outbox_(role_, params.send, mine_.parcels) {}

  __device__ __forceinline__ void run() {
    ForwardShared<Traits>& forward = shared_.forward;
    if (role_.is_leader()) mine_.num_steps = 0;
    if (role_.thread_idx < kMaxFusedOwners) mine_.num_sent[role_.thread_idx] = 0;
    for (std::uint32_t item_idx = 0;; ++item_idx) {
      const AttentionItem& item = take_item<kFinishedSleepNs>(forward, item_idx);
      if (item.num_key_blocks == kEndOfWork) break;
      if (role_.is_leader()) begin(item, item_idx);
      dev::mbarrier_wait_asleep<kFinishedSleepNs>(&forward.o_full[group_], item_idx & 1);
      const bool is_valid = forward.o_valid[group_] != 0;
      __syncwarp();
      give_back_item(forward, item_idx);
      if (is_valid) send(item_idx);
      __syncwarp();
      if (role_.is_leader()) dev::mbarrier_arrive(&forward.o_empty[group_]);
      if (is_valid) account(item_idx);
    }
    pass_gate();
    end_sender(params_, shared_, static_cast<int>(role_.thread_idx));
  }

 private:
  static constexpr std::uint32_t kRowBytes = TileStore<Traits>::kRowBytes;

  __device__ __forceinline__ int group_row() const {
    return mine_.tile.query_block * kTileRows + group_ * kGroupRows;
  }

  __device__ __forceinline__ void begin(const AttentionItem& item, std::uint32_t item_idx) {
    mine_.tile = item.tile;
    mine_.num_steps += static_cast<std::uint32_t>(item.num_key_blocks);
    const int row = group_row();
    mine_.cursor = {params_.shards, row, min(row + kGroupRows, params_.forward.num_query_rows)};
    if (!is_noted(item_idx)) return;
    event(item_idx)->tile = tile_idx(params_.forward, item.tile);
    event(item_idx)->taken_ns = dev::global_time_ns();
  }

  // Nothing is stored to an owner before its buffer is free.
  __device__ __forceinline__ void pass_gate() {
    dev::mbarrier_wait_asleep<kFinishedSleepNs>(&shared_.gate, 0);
    dev::fence_async_global();
  }

  // All rows of a finished tile's group; returns when the buffer has been read.
  __device__ __forceinline__ void send(std::uint32_t item_idx) {
    note(&ExchangeEvent::finished_ns, item_idx);
    pass_gate();
    set_due(item_idx);
    while (true) {
      // Every run leaves the same buffer, and has left before the next is posted: no slot has to be
      // acquired.
      TileRun& to = mine_.runs[outbox_.next_slot()];
      if (role_.is_leader()) take_run(to);
      __syncwarp();
      if (to.bytes == 0) break;
      send_lse(to);
      outbox_.post(shared_.forward.o[group_], to.bytes, {dev::shared_address(&to)});
      send_run();
    }
    note(&ExchangeEvent::accepted_ns, item_idx);
    outbox_.wait_read();
    note(&ExchangeEvent::read_ns, item_idx);
  }

  // The tile's next run. The leader alone.
  __device__ __forceinline__ void take_run(TileRun& to) {
    RowRun run;
    to.bytes = 0;
    if (!mine_.cursor.next(run)) return;
    const ExchangeOwner& owner = params_.owners[run.owner];
    const AttentionTile& tile = mine_.tile;
    to.batch = tile.batch;
    to.head = tile.head;
    to.owner_row = run.owner_row;
    to.first_row = static_cast<std::uint32_t>(run.first_row - group_row());
    to.num_rows = 0;
    if (owner.lse != nullptr) {
      const ForwardParams& forward = params_.forward;
      const std::int64_t column = std::int64_t{tile.batch} * forward.num_heads + tile.head;
      const std::int64_t there = std::int64_t{tile.batch} * params_.num_heads_all + tile.head;
      to.own_lse = forward.lse + column * forward.num_query_rows + run.first_row;
      to.lse = owner.lse + there * owner.num_rows + run.owner_row;
      to.num_rows = static_cast<std::uint32_t>(run.num_rows);
    }
    mine_.num_sent[run.owner] += static_cast<std::uint32_t>(run.num_rows);
    if (params_.send.kind == StoreKind::tensor && is_boxed(run, group_row(), owner.num_rows)) {
      to.map = &params_.out[run.owner];
      to.rows = nullptr;
      to.step = params_.box_bytes;
      to.bytes = Traits::kGroupBytes;
    } else {
      const std::int64_t row = std::int64_t{tile.batch} * owner.num_rows + run.owner_row;
      to.map = nullptr;
      to.rows = owner.rows + row * params_.pitch_bytes + tile.head * std::int64_t{kRowBytes};
      to.step = params_.pitch_bytes;
      to.bytes = static_cast<std::uint32_t>(run.num_rows) * kRowBytes;
    }
  }

  // The posted run: at once, or at the pace of the main loop that runs beside it. When the loader
  // has asked for the last key block of that loop, its end is near and the buffer will be wanted.
  __device__ __forceinline__ void send_run() {
#pragma unroll 1
    while (!outbox_.is_empty()) {
      const std::uint32_t seen = progress();
      const std::uint32_t new_steps = min(seen - seen_steps_, params_.send.steps_per_chunk);
      seen_steps_ = seen;
#pragma unroll 1
      for (std::uint32_t i = 0; i < new_steps; ++i) outbox_.step();
      if (seen >= mine_.due) {
        outbox_.drain();
      } else if (!outbox_.pump()) {
        __nanosleep(kPaceSleepNs);
      }
    }
  }

  // The step of the loader's by which the tile has to leave: without pace, or without a main loop
  // beside it, at once.
  __device__ __forceinline__ void set_due(std::uint32_t item_idx) {
    std::uint32_t due = 0;
    if (params_.send.steps_per_chunk > 0) {
      const int next = take_item<kFinishedSleepNs>(shared_.forward, item_idx + 1).num_key_blocks;
      due = mine_.num_steps + static_cast<std::uint32_t>(max(next, 0));
    }
    __syncwarp();
    mine_.due = due;
  }

  // Key blocks that the loader has asked for; the same on all lanes.
  __device__ __forceinline__ std::uint32_t progress() const {
    const auto* count = static_cast<const volatile std::uint32_t*>(&shared_.num_steps);
    return __shfl_sync(0xffffffffu, *count, 0);
  }

  // The run's log-sum-exp, which the group has written to this rank's own array before it handed
  // the rows over.
  __device__ __forceinline__ void send_lse(const TileRun& run) const {
#pragma unroll 1
    for (std::uint32_t i = role_.thread_idx; i < run.num_rows; i += 32) {
      run.lse[i] = __ldcg(run.own_lse + i);
    }
  }

  // Makes the rows visible and counts them; tells an owner that has got all of this rank's rows.
  // One lane an owner: the barrier behind the leader's fence orders the rows before the counts.
  __device__ __forceinline__ void account(std::uint32_t item_idx) {
    outbox_.make_visible();
    note(&ExchangeEvent::visible_ns, item_idx);
    if (is_noted(item_idx)) event(item_idx)->num_chunks = outbox_.num_chunks_sent();
    const std::uint32_t lane = role_.thread_idx;
    if (lane < kMaxFusedOwners && mine_.num_sent[lane] != 0) {
      const std::uint32_t rows = mine_.num_sent[lane];
      mine_.num_sent[lane] = 0;
      const ExchangeOwner& owner = params_.owners[lane];
      if (dev::add_acq_rel_gpu(&params_.sent[lane], rows) + rows == owner.expected) {
        params_.sent[lane] = 0;
        dev::raise_flag(owner.arrived, shared_.epoch);
      }
    }
    __syncwarp();
  }

  // --- for a timeline ---

  __device__ __forceinline__ ExchangeEvent* event(std::uint32_t item_idx) const {
    return params_.events +
           (blockIdx.x * kNumGroups + static_cast<unsigned>(group_)) * params_.max_events +
           item_idx;
  }
  __device__ __forceinline__ bool is_noted(std::uint32_t item_idx) const {
    return params_.events != nullptr && role_.is_leader() &&
           item_idx < static_cast<std::uint32_t>(params_.max_events);
  }
  __device__ __forceinline__ void note(std::uint64_t ExchangeEvent::*time,
                                       std::uint32_t item_idx) const {
    if (is_noted(item_idx)) event(item_idx)->*time = dev::global_time_ns();
  }

  const ExchangeParams& params_;
  ExchangeShared<Traits>& shared_;
  SenderShared<Traits>& mine_;
  const int group_;
  const device::Role role_;
  device::Outbox<TileStore<Traits>, kOutboxSlots> outbox_;
  std::uint32_t seen_steps_ = 0;  // of the loader's that the pacer knows of
};

}  // namespace xstage::attention
