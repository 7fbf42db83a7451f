// An expert-parallel MoE layer as a program of the simulator: dispatch pulls, Linear1, Linear2 with
// its scatter, barrier, combine. Tasks come from the orders and the claim protocol of
// moe_order.hpp.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>

#include "xstage/error.hpp"
#include "xstage/simulate_kernels.hpp"

namespace xstage {
namespace {

// What one SM can load from the L2 cache, B/ns (measured on an H200: 85 to 89).
constexpr double kLoadRatePerSm = 85;
// Bytes of the output and of partial results: bf16.
constexpr double kOutputBytes = 2;

// SplitMix64: small, seeded, the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  std::uint64_t state_;
};

// Cumulative popularity of the experts; which of them are popular follows from the seed.
std::vector<double> cumulative_popularity(const MoeWorkload& w) {
  const auto n = static_cast<std::size_t>(w.num_experts);
  std::vector<std::size_t> place(n);
  std::iota(place.begin(), place.end(), 0);
  Random rng(w.seed);
  for (std::size_t i = n - 1; i > 0; --i) std::swap(place[i], place[rng.next() % (i + 1)]);
  std::vector<double> weight(n);
  for (std::size_t i = 0; i < n; ++i)
    weight[place[i]] = std::pow(static_cast<double>(i + 1), -w.skew);
  double sum = 0;
  for (double& value : weight) {
    sum += value;
    value = sum;
  }
  for (double& value : weight) value /= sum;
  return weight;
}

// An expert that is not in `taken` yet. Where few are popular, repeated draws give up in favour of
// the next free one, so that routing ends soon for any skew.
std::int32_t draw(const std::vector<double>& popularity, std::span<const std::int32_t> taken,
                  Random& rng) {
  const auto is_taken = [&](std::int32_t expert) {
    return std::find(taken.begin(), taken.end(), expert) != taken.end();
  };
  std::int32_t expert = 0;
  for (int attempt = 0; attempt < 64; ++attempt) {
    const auto found = std::upper_bound(popularity.begin(), popularity.end() - 1, rng.uniform());
    expert = static_cast<std::int32_t>(found - popularity.begin());
    if (!is_taken(expert)) return expert;
  }
  while (is_taken(expert)) expert = (expert + 1) % static_cast<std::int32_t>(popularity.size());
  return expert;
}

class MoeProgram : public SimProgram {
 public:
  MoeProgram(const MoeRun& run, const MoeRouting& routing)
      : run_(run),
        w_(run.workload),
        num_gpus_(run.computing_ranks.empty() ? run.num_ranks
                                              : static_cast<int>(run.computing_ranks.size())) {
    tiling_.num_experts = routing.experts_per_rank + w_.num_shared_experts;
    tiling_.block_m = run.cost.block_m;
    tiling_.num_columns1 = columns(2 * w_.intermediate);
    tiling_.num_columns2 = columns(w_.hidden);
    remote_share_ = run.local_only || run.num_ranks == 1 ? 0.0
                                                         : static_cast<double>(run.num_ranks - 1) /
                                                               static_cast<double>(run.num_ranks);
    if (run.unique_tokens) crossing_ = routing.unique_share;
    for (int gpu = 0; gpu < num_gpus_; ++gpu) ranks_.push_back(make_rank(routing, gpu));
    for (const auto& rank : ranks_)
      num_counters_ = std::max(num_counters_, 2 * rank->pool.num_blocks());
    const auto num_workers =
        static_cast<std::size_t>(num_gpus_) * static_cast<std::size_t>(run.num_sms);
    workers_.resize(num_workers);
    for (std::size_t i = 0; i < num_workers; ++i) {
      start_worker(workers_[i], *ranks_[i / static_cast<std::size_t>(run.num_sms)],
                   static_cast<int>(i % static_cast<std::size_t>(run.num_sms)));
    }
  }

  [[nodiscard]] int num_gpus() const { return num_gpus_; }
  [[nodiscard]] int num_counters() const override { return num_counters_; }

  SimNext next(int gpu, int sm, SimTask& task) override {
    Rank& rank = *ranks_[static_cast<std::size_t>(gpu)];
    Worker& worker =
        workers_[static_cast<std::size_t>(gpu) * static_cast<std::size_t>(run_.num_sms) +
                 static_cast<std::size_t>(sm)];
    if (worker.stage == 0) {
      const MoeTask moe = next_task(rank, worker);
      if (moe.phase != MoePhase::none) {
        describe(gpu, rank, moe, task);
        return SimNext::task;
      }
      worker.stage = 1;
      return SimNext::barrier;
    }
    if (worker.stage == 1) {  // every row has arrived: add up the partial results of the own tokens
      worker.stage = 2;
      const double copies = run_.unique_tokens ? w_.top_k * crossing_ : w_.top_k;
      const double bytes =
          static_cast<double>(w_.tokens_per_rank) * w_.hidden * kOutputBytes * (copies + 1.0);
      task.step_ns = bytes / run_.memory_rate;
      task.num_steps = 1;
      return SimNext::task;
    }
    return SimNext::end;
  }

  std::vector<SimPull> pulls(int gpu) override {
    const Rank& rank = *ranks_[static_cast<std::size_t>(gpu)];
    std::vector<SimPull> list;
    for (int block = 0; block < rank.pool.num_blocks(); ++block) {
      const double bytes = rank.pull_bytes[static_cast<std::size_t>(block)];
      if (bytes <= 0) continue;
      const int peers = peers_of();
      for (int p = 0; p < peers; ++p) {
        list.push_back({(gpu + 1 + p) % num_gpus_,
                        std::max<std::int64_t>(1, std::llround(bytes / peers)), block});
      }
    }
    return list;
  }

 private:
  struct Rank {
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> first_block;
    std::vector<double> pull_bytes;  // per pool block, from peers
    MoePool pool;
    MoeInterleave interleave;
    std::int32_t counter[3] = {0, 0, 0};  // claims by phase; [0]: tickets of the lag order
  };
  struct Worker {
    int stage = 0;
    std::int32_t position = 0;  // in a static order
    std::unique_ptr<MoeScheduler> scheduler;
    std::unique_ptr<MoeCursor<WaveSegments>> wave;
    std::unique_ptr<MoeCursor<LagSegments>> lag;
  };

  [[nodiscard]] int columns(int width) const {
    return (width + run_.cost.block_n - 1) / run_.cost.block_n;
  }
  [[nodiscard]] int peers_of() const { return num_gpus_ - 1; }
  [[nodiscard]] int rank_of(int gpu) const {
    return run_.computing_ranks.empty() ? gpu : run_.computing_ranks[static_cast<std::size_t>(gpu)];
  }
  [[nodiscard]] bool is_shared(int expert) const { return expert < w_.num_shared_experts; }

  std::unique_ptr<Rank> make_rank(const MoeRouting& routing, int gpu) {
    auto rank = std::make_unique<Rank>();
    for (int s = 0; s < w_.num_shared_experts; ++s) rank->tokens.push_back(w_.tokens_per_rank);
    const auto first = routing.tokens.begin() +
                       static_cast<std::ptrdiff_t>(rank_of(gpu)) * routing.experts_per_rank;
    rank->tokens.insert(rank->tokens.end(), first, first + routing.experts_per_rank);
    rank->first_block.resize(rank->tokens.size() + 1);
    place_blocks(tiling_, rank->tokens.data(), rank->first_block.data());
    rank->pool = {tiling_, rank->tokens.data(), rank->first_block.data()};
    rank->interleave =
        make_interleave(tiling_, rank->pool.num_blocks(), run_.num_sms, run_.proportional_claims);
    // fp8 rows carry a 4-byte scale per 128 elements.
    const double row =
        w_.hidden * (element_bytes(w_.dtype) + (w_.dtype == DataType::fp8 ? 4.0 / 128 : 0.0));
    for (int block = 0, expert = 0; block < rank->pool.num_blocks(); ++block) {
      const MoeTask task = rank->pool.task(MoePhase::linear1, block, 0, expert);
      expert = task.expert;
      rank->pull_bytes.push_back(
          is_shared(expert) ? 0 : task.valid_rows * remote_share_ * crossing_ * row);
    }
    return rank;
  }

  void start_worker(Worker& worker, const Rank& rank, int sm) {
    worker.position = sm;
    switch (run_.schedule) {
      case MoeSchedule::wave: {
        const double expected =
            static_cast<double>(w_.tokens_per_rank) * run_.num_ranks * w_.top_k / w_.num_experts;
        worker.wave = std::make_unique<MoeCursor<WaveSegments>>(
            rank.pool, WaveSegments(rank.pool, experts_per_wave(tiling_, expected, run_.num_sms)));
        break;
      }
      case MoeSchedule::lag:
        worker.lag = std::make_unique<MoeCursor<LagSegments>>(
            rank.pool, LagSegments(rank.pool, default_lag(rank.pool.num_blocks())));
        break;
      case MoeSchedule::interleaved:
        worker.scheduler = std::make_unique<MoeScheduler>(rank.interleave);
        break;
    }
  }

  MoeTask next_task(Rank& rank, Worker& worker) {
    if (worker.wave) {
      const MoeTask task = worker.wave->at(worker.position);
      worker.position += run_.num_sms;
      return task;
    }
    if (worker.lag) return worker.lag->at(rank.counter[0]++);
    for (;;) {
      const MoePhase phase = worker.scheduler->wanted();
      if (phase == MoePhase::none) return {};
      const MoeTask task =
          worker.scheduler->claim(rank.pool, phase, rank.counter[static_cast<int>(phase)]++);
      if (task.phase != MoePhase::none) return task;
    }
  }

  void describe(int gpu, const Rank& rank, const MoeTask& moe, SimTask& task) {
    const MoeCost& cost = run_.cost;
    const bool first = moe.phase == MoePhase::linear1;
    const int depth = first ? w_.hidden : w_.intermediate;
    const int width = first ? 2 * w_.intermediate : w_.hidden;
    const int tile_columns = std::min(cost.block_n, width - moe.column * cost.block_n);
    task.id = moe.pool_block;
    task.num_steps = (depth + cost.block_k - 1) / cost.block_k;
    task.step_ns = 2 * moe.valid_rows > cost.block_m ? cost.step_ns : 0.5 * cost.step_ns;
    task.epilogue_ns = cost.tile_ns;
    // The first block of an expert brings its weights into the L2 cache; the others find them
    // there.
    const int blocks = rank.first_block[static_cast<std::size_t>(moe.expert) + 1] -
                       rank.first_block[static_cast<std::size_t>(moe.expert)];
    if (moe.expert_block == 0) {
      const double rate = std::min(kLoadRatePerSm, run_.memory_rate * blocks / run_.num_sms);
      const double weights =
          static_cast<double>(cost.block_k) * tile_columns * element_bytes(w_.dtype);
      task.step_ns = std::max(task.step_ns, weights / rate);
    }
    const int num_blocks = rank.pool.num_blocks();
    if (first) {
      task.done_counter = num_blocks + moe.pool_block;
      if (rank.pull_bytes[static_cast<std::size_t>(moe.pool_block)] > 0) {
        task.wait_counter = moe.pool_block;
        task.wait_value = peers_of();
      }
      return;
    }
    task.wait_counter = num_blocks + moe.pool_block;
    task.wait_value = tiling_.num_columns1;
    if (is_shared(moe.expert) || remote_share_ <= 0) return;
    const double bytes = moe.valid_rows * remote_share_ * crossing_ * tile_columns * kOutputBytes;
    const int peers = peers_of();
    for (int p = 0; p < peers; ++p) {
      const auto part = std::llround(bytes / peers);
      // Rotated by column, so that the SMs of a GPU do not all start with the same peer.
      if (part > 0) task.stores.push_back({(gpu + 1 + (p + moe.column) % peers) % num_gpus_, part});
    }
  }

  MoeRun run_;
  MoeWorkload w_;
  int num_gpus_;
  int num_counters_ = 0;
  double remote_share_ = 0;
  double crossing_ = 1;
  MoeTiling tiling_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<Worker> workers_;
};

}  // namespace

MoeRouting route(const MoeWorkload& w, int num_ranks) {
  MoeRouting routing;
  routing.num_ranks = num_ranks;
  routing.experts_per_rank = w.num_experts / num_ranks;
  routing.tokens.assign(static_cast<std::size_t>(w.num_experts), 0);
  const std::vector<double> popularity = cumulative_popularity(w);
  Random rng(w.seed ^ 0xA5A5A5A5u);
  // Enough tokens for stable shares, scaled to all; a large call need not be drawn one by one.
  const std::int64_t num_tokens = static_cast<std::int64_t>(w.tokens_per_rank) * num_ranks;
  const std::int64_t num_drawn = std::min<std::int64_t>(num_tokens, 65536);
  std::vector<std::int32_t> chosen(static_cast<std::size_t>(w.top_k));
  std::vector<std::int64_t> drawn(routing.tokens.size());
  std::int64_t pairs = 0;
  std::int64_t unique = 0;
  for (std::int64_t t = 0; t < num_drawn; ++t) {
    std::uint64_t ranks_low = 0;
    std::uint64_t ranks_high = 0;
    for (int k = 0; k < w.top_k; ++k) {
      chosen[static_cast<std::size_t>(k)] =
          draw(popularity, {chosen.data(), static_cast<std::size_t>(k)}, rng);
      const int expert = chosen[static_cast<std::size_t>(k)];
      ++drawn[static_cast<std::size_t>(expert)];
      const int rank = expert / routing.experts_per_rank;
      (rank < 64 ? ranks_low : ranks_high) |= std::uint64_t{1} << (rank % 64);
    }
    pairs += w.top_k;
    for (std::uint64_t bits : {ranks_low, ranks_high}) {
      for (; bits != 0; bits &= bits - 1) ++unique;
    }
  }
  for (std::size_t e = 0; e < drawn.size(); ++e) {
    routing.tokens[e] = static_cast<std::int32_t>(
        std::llround(static_cast<double>(drawn[e]) * static_cast<double>(num_tokens) /
                     static_cast<double>(std::max<std::int64_t>(1, num_drawn))));
  }
  routing.unique_share = pairs > 0 ? static_cast<double>(unique) / static_cast<double>(pairs) : 1.0;
  return routing;
}

SimReport simulate_moe(const SimMachine& machine, const SimSender& sender, const MoeRun& run,
                       const MoeRouting& routing, const SimOptions& options) {
  MoeRun checked = run;
  checked.num_sms = machine.num_sms;
  if (!(run.memory_rate > 0))
    throw Error(ErrorCategory::usage, "the memory rate must be above 0 B/ns");
  MoeProgram program(checked, routing);
  SimMachine all = machine;
  all.num_gpus = program.num_gpus();
  if (run.num_ranks > 1 && all.num_gpus < 2 && !run.local_only) {
    throw Error(ErrorCategory::usage, "one computing GPU has no peer to send to");
  }
  return simulate(all, sender, program, options);
}

}  // namespace xstage
