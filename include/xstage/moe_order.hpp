// The order of the tasks of an expert-parallel MoE in one kernel, and the protocol by which its
// schedulers claim them. One definition for the kernel, the simulator and the proofs: constexpr on
// host and device, no allocation; the only memory is a table of per-expert block counts that the
// caller provides.
//
// Words. The tokens that this rank received are pooled expert after expert and cut into M-blocks of
// `block_m` rows (pool blocks 0 .. M-1; an expert without tokens has none). Each block needs n1
// tasks of Linear1 and then n2 tasks of Linear2, one per output tile. Linear2 stores to peers. A
// scheduler is whatever takes tasks on its own: one per CTA, C in all, all of them resident.
//
// Three schedules:
//   wave         all Linear1 tasks of some experts, then all their Linear2 tasks; static
//   interleaved  W warm-up claims of Linear1, then Linear2 and Linear1 in turn; dynamic, two
//   counters lag          Linear2 of a unit of blocks follows its Linear1 by `lag` units; static,
//   or one ticket
// Proofs are in tests/moe_order_test.cpp, the arguments beside the functions.
#pragma once

#include <cstdint>

#include "xstage/send.hpp"

namespace xstage {

enum class MoeSchedule : std::uint8_t { wave, interleaved, lag };
enum class MoePhase : std::uint8_t { none, linear1, linear2 };

struct MoeTask {
  MoePhase phase = MoePhase::none;  // none: no work is left
  std::int32_t expert = 0;          // local
  std::int32_t expert_block = 0;    // M-block within the expert
  std::int32_t pool_block = 0;
  std::int32_t column = 0;      // 0 .. n1-1 or 0 .. n2-1
  std::int32_t valid_rows = 0;  // rows of the block that hold tokens
};

struct MoeTiling {
  std::int32_t num_experts = 1;  // local
  std::int32_t block_m = 128;
  std::int32_t num_columns1 = 1;  // n1 = 2I / N-tile
  std::int32_t num_columns2 = 1;  // n2 = H / N-tile
};

// first_block[e] = first pool block of expert e, first_block[num_experts] = M. Returns M.
XSTAGE_HOST_DEVICE constexpr std::int32_t place_blocks(const MoeTiling& tiling,
                                                       const std::int32_t* tokens_per_expert,
                                                       std::int32_t* first_block) noexcept {
  std::int32_t block = 0;
  for (std::int32_t e = 0; e < tiling.num_experts; ++e) {
    first_block[e] = block;
    block += (tokens_per_expert[e] + tiling.block_m - 1) / tiling.block_m;
  }
  first_block[tiling.num_experts] = block;
  return block;
}

// The pool of one call. Views the caller's tables, which must outlive it.
struct MoePool {
  MoeTiling tiling;
  const std::int32_t* tokens_per_expert = nullptr;
  const std::int32_t* first_block = nullptr;

  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t num_blocks() const noexcept {
    return first_block[tiling.num_experts];
  }
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t num_columns(
      MoePhase phase) const noexcept {
    return phase == MoePhase::linear1 ? tiling.num_columns1 : tiling.num_columns2;
  }
  // The expert that holds `pool_block`, found upwards from `hint` (an expert at or before it).
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t expert_of(
      std::int32_t pool_block, std::int32_t hint) const noexcept {
    while (pool_block >= first_block[hint + 1]) ++hint;
    return hint;
  }
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr MoeTask task(MoePhase phase, std::int32_t pool_block,
                                                          std::int32_t column,
                                                          std::int32_t expert_hint) const noexcept {
    const std::int32_t expert = expert_of(pool_block, expert_hint);
    const std::int32_t block = pool_block - first_block[expert];
    const std::int32_t rows = tokens_per_expert[expert] - block * tiling.block_m;
    return {phase,      expert, block,
            pool_block, column, rows < tiling.block_m ? rows : tiling.block_m};
  }
};

// ---- orders that are sequences of segments: wave and lag ----

// All tasks of one phase of pool blocks [first_block, end_block), block after block.
struct MoeSegment {
  MoePhase phase = MoePhase::none;
  std::int32_t first_block = 0;
  std::int32_t end_block = 0;
};

// Experts per wave: the smallest number whose expected Linear1 tasks fill the schedulers twice (one
// expert may do so alone), improved up to twice that number for the fullest last round, at most
// `max_blocks` pool blocks (0: no limit). All experts if less than one token per expert is
// expected.
XSTAGE_HOST_DEVICE constexpr std::int32_t experts_per_wave(const MoeTiling& tiling,
                                                           double tokens_per_expert,
                                                           std::int32_t num_schedulers,
                                                           std::int32_t max_blocks = 0) noexcept {
  const std::int32_t all = tiling.num_experts;
  if (tokens_per_expert < 1.0) return all;
  const auto whole = static_cast<std::int32_t>(tokens_per_expert);
  const std::int32_t tokens = whole + (tokens_per_expert - whole >= 0.5 ? 1 : 0);
  const std::int32_t blocks = (tokens + tiling.block_m - 1) / tiling.block_m;
  const std::int32_t tasks = blocks * tiling.num_columns1;
  const std::int32_t limit =
      max_blocks > 0 ? (max_blocks / blocks > 1 ? max_blocks / blocks : 1) : all;
  const std::int32_t wanted = (2 * num_schedulers + tasks - 1) / tasks;
  const std::int32_t least = wanted < 1 ? 1 : (wanted < all ? wanted : all);
  std::int32_t best = least;
  if (tasks < num_schedulers) {
    // Fill of the last round, compared as fractions of num_schedulers.
    std::int32_t best_fill = 0;
    for (std::int32_t n = least; n <= 2 * least && n <= all; ++n) {
      const std::int32_t rest = n * tasks % num_schedulers;
      const std::int32_t fill = rest == 0 ? num_schedulers : rest;
      if (fill > best_fill) {
        best_fill = fill;
        best = n;
      }
    }
  }
  return best < limit ? best : limit;
}

// Linear1 of a wave of experts, Linear2 of the same, next wave.
class WaveSegments {
 public:
  constexpr WaveSegments() = default;
  XSTAGE_HOST_DEVICE constexpr WaveSegments(const MoePool& pool,
                                            std::int32_t experts_per_wave) noexcept
      : pool_(pool), experts_(experts_per_wave) {}

  // False at the end. Segments may be empty.
  XSTAGE_HOST_DEVICE constexpr bool next(MoeSegment& segment) noexcept {
    if (expert_ >= pool_.tiling.num_experts) return false;
    std::int32_t end = expert_ + experts_;
    if (end > pool_.tiling.num_experts) end = pool_.tiling.num_experts;
    segment = {second_ ? MoePhase::linear2 : MoePhase::linear1, pool_.first_block[expert_],
               pool_.first_block[end]};
    if (second_) expert_ = end;
    second_ = !second_;
    return true;
  }

 private:
  MoePool pool_;
  std::int32_t experts_ = 1;
  std::int32_t expert_ = 0;
  bool second_ = false;
};

// Units of `unit_blocks` blocks; Linear2 of a group of units follows the Linear1 that comes `lag`
// units later. A larger lag delays the stores, so that they do not slow the dispatch down.
struct MoeLag {
  std::int32_t unit_blocks = 8;
  std::int32_t group_units = 4;
  std::int32_t lag_units = 8;
};

// lag = 0.45 of all units, rounded, within [8, 64].
XSTAGE_HOST_DEVICE constexpr MoeLag default_lag(std::int32_t num_blocks) noexcept {
  MoeLag lag;
  const std::int32_t units = (num_blocks + lag.unit_blocks - 1) / lag.unit_blocks;
  const std::int32_t wanted = (45 * units + 50) / 100;
  lag.lag_units = wanted < 8 ? 8 : (wanted > 64 ? 64 : wanted);
  return lag;
}

class LagSegments {
 public:
  constexpr LagSegments() = default;
  XSTAGE_HOST_DEVICE constexpr LagSegments(const MoePool& pool, const MoeLag& lag) noexcept
      : num_blocks_(pool.num_blocks()),
        group_(lag.unit_blocks * lag.group_units),
        lag_((lag.lag_units + lag.group_units - 1) / lag.group_units * group_) {}

  XSTAGE_HOST_DEVICE constexpr bool next(MoeSegment& segment) noexcept {
    if (block2_ >= num_blocks_) return false;
    if (!second_ && block1_ < num_blocks_) {
      segment = {MoePhase::linear1, block1_, end(block1_)};
      block1_ = segment.end_block;
      second_ = block1_ - block2_ > lag_ || block1_ >= num_blocks_;
      return true;
    }
    segment = {MoePhase::linear2, block2_, end(block2_)};
    block2_ = segment.end_block;
    second_ = block1_ >= num_blocks_;
    return true;
  }

  // Blocks whose Linear1 has begun and whose Linear2 has not ended, at most, in the order itself.
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t max_live_blocks() const noexcept {
    const std::int32_t live = lag_ + group_;
    return live < num_blocks_ ? live : num_blocks_;
  }

 private:
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr std::int32_t end(std::int32_t block) const noexcept {
    return block + group_ < num_blocks_ ? block + group_ : num_blocks_;
  }
  std::int32_t num_blocks_ = 0;
  std::int32_t group_ = 1;
  std::int32_t lag_ = 0;
  std::int32_t block1_ = 0;
  std::int32_t block2_ = 0;
  bool second_ = false;
};

// Finds the task at a position of a segment order. Positions given to one cursor must not decrease.
// Two ways to use it:
//   static   scheduler c asks for c, c + C, c + 2C, ...
//   ticket   positions come from one shared counter
// No deadlock in either: Linear1 of a block precedes its Linear2 in the order; every scheduler
// works through rising positions; so the unfinished task with the lowest position never waits.
template <class Segments>
class MoeCursor {
 public:
  XSTAGE_HOST_DEVICE constexpr MoeCursor(const MoePool& pool, const Segments& segments) noexcept
      : pool_(pool), segments_(segments) {}

  // phase none: behind the last task.
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr MoeTask at(std::int32_t position) noexcept {
    while (position >= base_ + tasks_) {
      base_ += tasks_;
      if (!segments_.next(segment_)) {
        tasks_ = 0;
        return {};
      }
      columns_ = pool_.num_columns(segment_.phase);
      tasks_ = (segment_.end_block - segment_.first_block) * columns_;
    }
    const std::int32_t offset = position - base_;
    const std::int32_t block = segment_.first_block + offset / columns_;
    const std::int32_t column = offset % columns_;
    std::int32_t& hint = segment_.phase == MoePhase::linear1 ? expert1_ : expert2_;
    const MoeTask task = pool_.task(segment_.phase, block, column, hint);
    hint = task.expert;
    return task;
  }

 private:
  MoePool pool_;
  Segments segments_;
  MoeSegment segment_;
  std::int32_t base_ = 0;
  std::int32_t tasks_ = 0;
  std::int32_t columns_ = 1;
  std::int32_t expert1_ = 0;
  std::int32_t expert2_ = 0;
};

// ---- interleaved: the claim protocol ----

// What all schedulers of a call agree on.
struct MoeInterleave {
  std::int32_t num_schedulers = 1;  // C
  std::int32_t warmup = 1;          // W: claims of Linear1 before the first of Linear2
  // After the warm-up a scheduler makes claims of Linear1 and Linear2 in the ratio ratio1 : ratio2.
  // {1, 1} takes turns. {n1, n2} keeps both counters at the same block, so that neither the warm-up
  // nor the live blocks grow with M.
  std::int32_t ratio1 = 1;
  std::int32_t ratio2 = 1;
};

// The smallest safe W. Argument: let all C schedulers wait with a claimed Linear2 task, Linear1 not
// exhausted. One that has made b claims of Linear2 has made at least W + (b-1) * ratio1/ratio2 of
// Linear1, so the counters obey i1 >= C*W + (i2 - C) * ratio1/ratio2. The lowest waiting claim t
// obeys t <= i2 - C. It needs i1 >= n1 * (t/n2 + 1), with t/n2 <= M-1 rounded down; hence
// C*W >= n1 + max over q of q * (n1 - n2*ratio1/ratio2) suffices. For {1,1} that is
// n1 + (M-1) * max(0, n1-n2), for {n1,n2} just n1.
XSTAGE_HOST_DEVICE constexpr std::int32_t least_warmup(const MoeTiling& tiling,
                                                       std::int32_t num_blocks,
                                                       std::int32_t num_schedulers,
                                                       std::int32_t ratio1,
                                                       std::int32_t ratio2) noexcept {
  if (num_blocks == 0) return 0;
  const std::int64_t n1 = tiling.num_columns1;
  const std::int64_t n2 = tiling.num_columns2;
  const std::int64_t excess = n1 * ratio2 - n2 * ratio1;  // times ratio2
  std::int64_t needed = n1;
  if (excess > 0) needed += ((num_blocks - 1) * excess + ratio2 - 1) / ratio2;
  const std::int64_t all = num_blocks * n1;
  if (needed > all) needed = all;
  return static_cast<std::int32_t>((needed + num_schedulers - 1) / num_schedulers);
}

// One claim more than is safe, so that the first Linear2 tasks find their data; no more than there
// is work. Depends on exchanged counts only, so all schedulers agree.
XSTAGE_HOST_DEVICE constexpr MoeInterleave make_interleave(const MoeTiling& tiling,
                                                           std::int32_t num_blocks,
                                                           std::int32_t num_schedulers,
                                                           bool proportional = true) noexcept {
  MoeInterleave order;
  order.num_schedulers = num_schedulers;
  if (proportional) {
    order.ratio1 = tiling.num_columns1;
    order.ratio2 = tiling.num_columns2;
  }
  const std::int32_t least =
      least_warmup(tiling, num_blocks, num_schedulers, order.ratio1, order.ratio2) + 1;
  // The first round of Linear2 claims reaches this many blocks; have them under way.
  const std::int32_t reach =
      (num_schedulers + tiling.num_columns2 - 1) / tiling.num_columns2 * tiling.num_columns1;
  const std::int32_t ahead = (reach + num_schedulers - 1) / num_schedulers;
  const std::int64_t tasks = static_cast<std::int64_t>(num_blocks) * tiling.num_columns1;
  const auto all = static_cast<std::int32_t>((tasks + num_schedulers - 1) / num_schedulers);
  const std::int32_t wanted = least > ahead ? least : ahead;
  order.warmup = wanted < all ? wanted : all;
  return order;
}

// Bound on p - i2/n2 + 1 when Linear1 of block p is claimed, i2 being the counter of Linear2 at
// that moment: the number of blocks that a ring needs so that the slot of block p was held by a
// block whose Linear2 tasks are all claimed. Then a wait for the slot is a wait for earlier claims,
// and claim time orders all waits. A scheduler with b claims of Linear2 has made at most W + 1 +
// b*ratio1/ratio2 of Linear1, so i1 <= C*(W+1) + i2*ratio1/ratio2.
XSTAGE_HOST_DEVICE constexpr std::int32_t max_live_blocks(const MoeTiling& tiling,
                                                          const MoeInterleave& order,
                                                          std::int32_t num_blocks) noexcept {
  const std::int64_t n1 = tiling.num_columns1;
  const std::int64_t n2 = tiling.num_columns2;
  const std::int64_t ahead = static_cast<std::int64_t>(order.num_schedulers) * (order.warmup + 1);
  std::int64_t live = ahead / n1 + 2;
  // Linear1 gains (n2*ratio1/ratio2 - n1) tasks on Linear2 per block, while it lasts.
  const std::int64_t gain = n2 * order.ratio1 - n1 * order.ratio2;
  if (gain > 0) live += num_blocks * gain / (n2 * order.ratio1) + 1;
  return static_cast<std::int32_t>(live < num_blocks ? live : num_blocks);
}

// One scheduler of the protocol: a pure state machine. The caller performs the atomics:
//
//   loop:  wait for a free task slot
//          phase = scheduler.wanted(); if none: publish the end, stop
//          t = fetch_add(counter[phase], 1)
//          task = scheduler.claim(pool, phase, t); if its phase is none: again
//          until scheduler.may_publish(pool, task, load(counter[linear1])): wait
//          publish task
//
// A claim must not precede the free slot. Data waits (Linear2 for its Linear1, ring slots) are the
// consumer's. Each counter is added to at most tasks + C times.
class MoeScheduler {
 public:
  XSTAGE_HOST_DEVICE constexpr explicit MoeScheduler(const MoeInterleave& order) noexcept
      : warmup_left_(order.warmup), ratio1_(order.ratio1), ratio2_(order.ratio2) {}

  // The counter to claim from next.
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr MoePhase wanted() const noexcept {
    if (done1_) return done2_ ? MoePhase::none : MoePhase::linear2;
    if (warmup_left_ > 0) return MoePhase::linear1;
    if (done2_) return MoePhase::linear1;
    // credit_ >= 0: as many claims of Linear1 as the ratio asks for.
    return credit_ >= 0 ? MoePhase::linear2 : MoePhase::linear1;
  }

  // The task of claim number `t` of `phase`; phase none if that counter is exhausted.
  [[nodiscard]] XSTAGE_HOST_DEVICE constexpr MoeTask claim(const MoePool& pool, MoePhase phase,
                                                           std::int32_t t) noexcept {
    const std::int32_t columns = pool.num_columns(phase);
    if (phase == MoePhase::linear1) {
      if (warmup_left_ > 0) {
        --warmup_left_;
      } else {
        credit_ += ratio2_;
      }
    } else {
      credit_ -= ratio1_;
    }
    const std::int32_t block = t / columns;
    if (block >= pool.num_blocks()) {
      (phase == MoePhase::linear1 ? done1_ : done2_) = true;
      return {};
    }
    std::int32_t& hint = phase == MoePhase::linear1 ? expert1_ : expert2_;
    const MoeTask task = pool.task(phase, block, t % columns, hint);
    hint = task.expert;
    return task;
  }

  // Linear2 of a block may be handed on when all Linear1 tasks of the block have been claimed.
  [[nodiscard]] XSTAGE_HOST_DEVICE static constexpr bool may_publish(
      const MoePool& pool, const MoeTask& task, std::int32_t linear1_counter) noexcept {
    return task.phase != MoePhase::linear2 ||
           linear1_counter >= (task.pool_block + 1) * pool.tiling.num_columns1;
  }

 private:
  std::int32_t warmup_left_;
  std::int32_t ratio1_;
  std::int32_t ratio2_;
  std::int32_t credit_ = 0;
  std::int32_t expert1_ = 0;
  std::int32_t expert2_ = 0;
  bool done1_ = false;
  bool done2_ = false;
};

}  // namespace xstage
