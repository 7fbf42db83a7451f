// Attention as a program of the simulator: each SM takes its items from AttentionOrder.
#include <algorithm>
#include <map>

#include "xstage/error.hpp"
#include "xstage/simulate_kernels.hpp"

namespace xstage {
namespace {

class AttentionProgram : public SimProgram {
 public:
  AttentionProgram(const AttentionRun& run, int num_sms)
      : run_(run),
        num_sms_(num_sms),
        row_bytes_(run.workload.head_dim * element_bytes(run.workload.dtype)) {
    for (int rank = 0; rank < run.num_ranks; ++rank) {
      shards_.push_back(attention_shards(run, rank));
      orders_.push_back(attention_order(run, rank, num_sms));
      num_counters_ = std::max(num_counters_, orders_.back().num_tail_tiles());
    }
    at_.assign(static_cast<std::size_t>(run.num_ranks) * static_cast<std::size_t>(num_sms), 0);
    arrived_.resize(static_cast<std::size_t>(run.num_ranks));
    for (auto& parts : arrived_) parts.assign(static_cast<std::size_t>(num_counters_), 0);
  }

  SimNext next(int gpu, int sm, SimTask& task) override {
    const auto rank = static_cast<std::size_t>(gpu);
    const AttentionOrder& order = orders_[rank];
    int& at = at_[rank * static_cast<std::size_t>(num_sms_) + static_cast<std::size_t>(sm)];
    if (at >= order.num_items(sm)) return SimNext::end;
    const AttentionItem item = order.item(sm, at++);
    task.id = gpu + run_.num_ranks * item.tile.query_block;
    task.prologue_ns = 0;
    task.step_ns = run_.cost.step_ns;
    task.num_steps = item.num_key_blocks;
    task.epilogue_ns = run_.cost.tile_ns;
    if (item.tail_idx >= 0) {
      task.epilogue_ns += run_.cost.part_ns;
      // The last part to arrive sends. Which one that is depends on time: all take about as long,
      // so the one that was handed out last stands for it.
      int& parts = arrived_[rank][static_cast<std::size_t>(item.tail_idx)];
      if (++parts < item.num_parts) return SimNext::task;
    }
    RowRunCursor cursor(shards_[rank], order.first_row(item.tile), order.end_row(item.tile));
    RowRun row_run;
    while (cursor.next(row_run)) {
      task.stores.push_back(
          {row_run.owner, static_cast<std::int64_t>(row_run.num_rows) * row_bytes_});
    }
    return SimNext::task;
  }

 private:
  AttentionRun run_;
  int num_sms_;
  int row_bytes_;
  int num_counters_ = 0;
  std::vector<SequenceShards> shards_;
  std::vector<AttentionOrder> orders_;
  std::vector<int> at_;                    // [gpu][sm]: next item
  std::vector<std::vector<int>> arrived_;  // [gpu][tail tile]: parts handed out
};

}  // namespace

SequenceShards attention_shards(const AttentionRun& run, int rank) {
  const AttentionWorkload& w = run.workload;
  if (!run.local_only) {
    return SequenceShards::even(w.sequence, run.num_ranks, rank, w.replicated_prefix,
                                w.replicated_suffix);
  }
  // Everything belongs to this rank: one shard, which keeps the place in the table.
  SequenceShards shards;
  shards.num_ranks = run.num_ranks;
  shards.rank = rank;
  for (int p = rank + 1; p <= run.num_ranks; ++p) shards.first_row[p] = w.sequence;
  return shards;
}

AttentionOrder attention_order(const AttentionRun& run, int rank, int num_ctas) {
  const AttentionWorkload& w = run.workload;
  AttentionGrid grid;
  grid.num_batches = w.batch;
  grid.num_heads = even_split(w.num_heads, run.num_ranks, rank + 1) -
                   even_split(w.num_heads, run.num_ranks, rank);
  grid.num_query_rows = w.sequence;
  grid.num_key_rows = w.sequence;
  grid.block_rows = run.cost.block_rows;
  grid.block_keys = run.cost.block_keys;
  grid.causal = w.causal;
  AttentionOrderOptions options;
  options.order = run.order;
  options.num_ctas = num_ctas;
  options.split_tail = run.split_tail;
  return AttentionOrder(grid, attention_shards(run, rank), options);
}

SimReport simulate_attention(const SimMachine& machine, const SimSender& sender,
                             const AttentionRun& run, const SimOptions& options) {
  if (run.num_ranks < 1 || run.num_ranks > SimMachine::kMaxGpus) {
    throw Error(ErrorCategory::usage, "ranks " + std::to_string(run.num_ranks) + ": legal 1..72");
  }
  SimMachine all = machine;
  all.num_gpus = run.num_ranks;
  AttentionProgram program(run, machine.num_sms);
  return simulate(all, sender, program, options);
}

}  // namespace xstage
