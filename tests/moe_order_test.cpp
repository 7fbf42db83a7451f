// The MoE orders and the claim protocol: every task once; no Linear2 before its Linear1 is claimed;
// live blocks within the bound; no deadlock under a million random interleavings, while the same
// search finds the deadlock when the warm-up is one wave short or the ring too small.
#include "xstage/moe_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace xstage {
namespace {

// Small and fast; std::mt19937 would take most of a million runs' time.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  std::uint32_t operator()() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<std::uint32_t>(state_ >> 32);
  }
  int pick(int low, int high) {
    return low + static_cast<int>((static_cast<std::uint64_t>((*this)()) *
                                   static_cast<std::uint64_t>(high - low + 1)) >>
                                  32);
  }

 private:
  std::uint64_t state_;
};

Random seeded(const char* test) {
  const std::uint64_t seed = 20261130;
  std::cout << test << ": seed " << seed << "\n";
  return Random(seed);
}

// Owns the tables that MoePool views.
struct Pool {
  MoeTiling tiling;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> first_block;
  MoePool view;

  Pool(MoeTiling t, std::vector<std::int32_t> tokens_per_expert)
      : tiling(t), tokens(std::move(tokens_per_expert)) {
    tiling.num_experts = static_cast<std::int32_t>(tokens.size());
    first_block.resize(tokens.size() + 1);
    place_blocks(tiling, tokens.data(), first_block.data());
    view = {tiling, tokens.data(), first_block.data()};
  }
  Pool(const Pool&) = delete;
};

std::vector<std::int32_t> random_tokens(Random& rng, int max_experts, int max_tokens) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(rng.pick(1, max_experts)));
  switch (rng.pick(0, 3)) {
    case 0:  // one expert has everything
      tokens[static_cast<std::size_t>(rng.pick(0, static_cast<int>(tokens.size()) - 1))] =
          rng.pick(0, max_tokens);
      break;
    case 1:  // all alike
      std::fill(tokens.begin(), tokens.end(), rng.pick(0, max_tokens / 4));
      break;
    default:  // a third without tokens
      for (auto& t : tokens) t = rng.pick(0, 2) == 0 ? 0 : rng.pick(0, max_tokens / 2);
  }
  return tokens;
}

// Marks a task as seen; asserts that its coordinates agree with the pool.
class Tally {
 public:
  explicit Tally(const Pool& pool) : pool_(pool) {
    for (int p = 0; p < 2; ++p) {
      const auto tasks =
          static_cast<std::size_t>(pool.view.num_blocks()) *
          static_cast<std::size_t>(p == 0 ? pool.tiling.num_columns1 : pool.tiling.num_columns2);
      seen_[p].assign(tasks, 0);
    }
  }
  void add(const MoeTask& task) {
    ASSERT_NE(task.phase, MoePhase::none);
    const int p = task.phase == MoePhase::linear1 ? 0 : 1;
    const auto expert = static_cast<std::size_t>(task.expert);
    ASSERT_LT(expert, pool_.tokens.size());
    ASSERT_EQ(task.pool_block, pool_.first_block[expert] + task.expert_block);
    ASSERT_LT(task.pool_block, pool_.first_block[expert + 1]);
    ASSERT_EQ(task.valid_rows,
              std::min(pool_.tiling.block_m,
                       pool_.tokens[expert] - task.expert_block * pool_.tiling.block_m));
    ASSERT_GT(task.valid_rows, 0);
    const int columns = p == 0 ? pool_.tiling.num_columns1 : pool_.tiling.num_columns2;
    ASSERT_GE(task.column, 0);
    ASSERT_LT(task.column, columns);
    auto& count = seen_[p][static_cast<std::size_t>(task.pool_block * columns + task.column)];
    ASSERT_EQ(++count, 1) << "task twice";
    ++num_seen_;
  }
  void expect_complete() const {
    EXPECT_EQ(num_seen_, seen_[0].size() + seen_[1].size()) << "tasks missing";
  }

 private:
  const Pool& pool_;
  std::array<std::vector<char>, 2> seen_;
  std::size_t num_seen_ = 0;
};

// ---- static orders ----

// Walks a segment order as C static schedulers and as one list; checks each task, and that all
// Linear1 of a block come before its first Linear2.
template <class Segments>
void check_segments(const Pool& pool, const Segments& segments, int num_schedulers, int* max_live) {
  std::vector<MoeTask> list;
  Tally one(pool);
  MoeCursor<Segments> cursor(pool.view, segments);
  std::vector<int> done1(static_cast<std::size_t>(pool.view.num_blocks()) + 1);
  std::vector<int> done2(done1.size());
  int live = 0;
  for (int i = 0;; ++i) {
    const MoeTask task = cursor.at(i);
    if (task.phase == MoePhase::none) break;
    ASSERT_NO_FATAL_FAILURE(one.add(task));
    const auto block = static_cast<std::size_t>(task.pool_block);
    if (task.phase == MoePhase::linear1) {
      if (done1[block]++ == 0) ++live;
    } else {
      ASSERT_EQ(done1[block], pool.tiling.num_columns1) << "Linear2 before its Linear1";
      if (++done2[block] == pool.tiling.num_columns2) --live;
    }
    if (max_live != nullptr) *max_live = std::max(*max_live, live);
    list.push_back(task);
  }
  one.expect_complete();
  std::size_t num_tasks = 0;
  for (int c = 0; c < num_schedulers; ++c) {
    MoeCursor<Segments> own(pool.view, segments);
    for (std::size_t i = static_cast<std::size_t>(c);;
         i += static_cast<std::size_t>(num_schedulers)) {
      const MoeTask task = own.at(static_cast<std::int32_t>(i));
      if (task.phase == MoePhase::none) break;
      ASSERT_LT(i, list.size());
      ASSERT_EQ(task.pool_block, list[i].pool_block);
      ASSERT_EQ(task.column, list[i].column);
      ASSERT_EQ(task.phase, list[i].phase);
      ++num_tasks;
    }
  }
  ASSERT_EQ(num_tasks, list.size());
}

TEST(MoeOrder, WaveAndLagRunEveryTaskOnceAndInOrder) {
  Random rng = seeded("WaveAndLagRunEveryTaskOnceAndInOrder");
  for (int round = 0; round < 3000; ++round) {
    const int block_m = rng.pick(1, 4) * 16;
    const Pool pool({1, block_m, rng.pick(1, 9), rng.pick(1, 9)},
                    random_tokens(rng, 20, rng.pick(1, 40) * block_m));
    const int num_schedulers = rng.pick(1, 148);
    const WaveSegments waves(pool.view, rng.pick(1, pool.tiling.num_experts));
    ASSERT_NO_FATAL_FAILURE(check_segments(pool, waves, num_schedulers, nullptr)) << round;
    MoeLag lag;
    lag.unit_blocks = rng.pick(1, 8);
    lag.group_units = rng.pick(1, 4);
    lag.lag_units = rng.pick(0, 12);
    const LagSegments lagged(pool.view, lag);
    int live = 0;
    ASSERT_NO_FATAL_FAILURE(check_segments(pool, lagged, num_schedulers, &live)) << round;
    ASSERT_LE(live, lagged.max_live_blocks()) << round;
  }
}

// 4 experts, tokens [130, 60, 0, 200], blocks of 64: M-blocks [3,1,0,4]; n1 = 4, n2 = 3; 6 CTAs,
// 2 experts a wave: 16 Linear1, 12 Linear2, 16 Linear1, 12 Linear2.
TEST(MoeOrder, WaveByHand) {
  const Pool pool({4, 64, 4, 3}, {130, 60, 0, 200});
  EXPECT_EQ(pool.first_block, (std::vector<std::int32_t>{0, 3, 4, 4, 8}));
  MoeCursor<WaveSegments> cta0(pool.view, WaveSegments(pool.view, 2));
  const struct {
    MoePhase phase;
    int expert, block, column, rows;
  } expected[] = {{MoePhase::linear1, 0, 0, 0, 64}, {MoePhase::linear1, 0, 1, 2, 64},
                  {MoePhase::linear1, 1, 0, 0, 60}, {MoePhase::linear2, 0, 0, 2, 64},
                  {MoePhase::linear2, 0, 2, 2, 2},  {MoePhase::linear1, 3, 0, 2, 64},
                  {MoePhase::linear1, 3, 2, 0, 64}, {MoePhase::linear1, 3, 3, 2, 8},
                  {MoePhase::linear2, 3, 1, 1, 64}, {MoePhase::linear2, 3, 3, 1, 8}};
  for (int i = 0; i < 10; ++i) {
    const MoeTask task = cta0.at(6 * i);
    EXPECT_EQ(task.phase, expected[i].phase) << i;
    EXPECT_EQ(task.expert, expected[i].expert) << i;
    EXPECT_EQ(task.expert_block, expected[i].block) << i;
    EXPECT_EQ(task.column, expected[i].column) << i;
    EXPECT_EQ(task.valid_rows, expected[i].rows) << i;
  }
  EXPECT_EQ(cta0.at(60).phase, MoePhase::none);
  EXPECT_EQ(cta0.at(66).phase, MoePhase::none);
}

TEST(MoeOrder, WaveSizeRule) {
  const MoeTiling tiling{32, 128, 16, 16};
  EXPECT_EQ(experts_per_wave(tiling, 0.5, 132), 32);  // less than a token each: one wave
  // 1536 tokens = 12 blocks = 192 tasks fill 132 CTAs: the smallest wave with 264 tasks is 2
  // experts.
  EXPECT_EQ(experts_per_wave(tiling, 1536, 132), 2);
  EXPECT_EQ(experts_per_wave(tiling, 65536, 132), 1);
  // 192 tokens = 2 blocks = 32 tasks: at least 9 experts (288 tasks, last round 24 of 132). Up to
  // 18: 12 experts = 384 = 2 x 132 + 120 is the fullest last round but for 16 (512 = 3 x 132 +
  // 116).
  EXPECT_EQ(experts_per_wave(tiling, 192, 132), 12);
  EXPECT_EQ(experts_per_wave(tiling, 192, 132, 10), 5);  // a ring of 10 blocks
}

// ---- the claim protocol ----

struct Protocol {
  const MoePool* pool = nullptr;
  MoeInterleave order;
  int ring_blocks = 0;  // 0: the whole pool
};

struct Outcome {
  bool deadlock = false;
  bool early_linear2 = false;  // a Linear2 was published before all its Linear1 were claimed
  int num_done = 0;
  int max_live = 0;
  long num_steps = 0;
};

// One run: C schedulers with a queue of two tasks each, C consumers that take tasks in order and
// wait for data and ring slots. Who moves next is random, in one of three manners: uniform, in
// bursts (some agents sleep for long), by a fixed random priority. A deadlock is a state in which
// nobody can move.
class Interleaving {
 public:
  Interleaving(const Protocol& protocol, Random& rng, Tally* tally)
      : pool_(*protocol.pool), protocol_(protocol), rng_(rng), tally_(tally) {
    const int num = protocol.order.num_schedulers;
    agents_.reserve(static_cast<std::size_t>(num));
    for (int c = 0; c < num; ++c) agents_.emplace_back(protocol.order);
    const auto blocks = static_cast<std::size_t>(pool_.num_blocks());
    done1_.assign(blocks, 0);
    done2_.assign(blocks, 0);
  }

  Outcome run() {
    const int num_moves = 2 * static_cast<int>(agents_.size());
    const int manner = rng_.pick(0, 2);
    std::array<int, 320> priority{};
    for (int i = 0; i < num_moves; ++i) priority[static_cast<std::size_t>(i)] = i;
    for (int i = num_moves - 1; i > 0; --i) {
      std::swap(priority[static_cast<std::size_t>(i)],
                priority[static_cast<std::size_t>(rng_.pick(0, i))]);
    }
    int favourite = 0;
    int failures = 0;
    for (;;) {
      bool moved = false;
      if (manner == 2) {
        for (int i = 0; i < num_moves && !moved; ++i)
          moved = move(priority[static_cast<std::size_t>(i)]);
        if (!moved) break;
      } else {
        if (manner == 0 || rng_.pick(0, 7) == 0) favourite = rng_.pick(0, num_moves - 1);
        moved = move(favourite);
        if (!moved && manner == 1) favourite = rng_.pick(0, num_moves - 1);
        failures = moved ? 0 : failures + 1;
        if (failures > num_moves) {
          for (int i = 0; i < num_moves && !moved; ++i) moved = move(i);
          if (!moved) break;
          failures = 0;
        }
      }
      out_.num_steps += moved ? 1 : 0;
    }
    const int tasks = pool_.num_blocks() * (pool_.tiling.num_columns1 + pool_.tiling.num_columns2);
    out_.deadlock = out_.num_done != tasks;
    for (const Agent& agent : agents_) out_.deadlock |= !agent.ended;
    return out_;
  }

 private:
  struct Agent {
    explicit Agent(const MoeInterleave& order) : scheduler(order) {}
    MoeScheduler scheduler;
    MoeTask claimed;  // waits for may_publish
    std::array<MoeTask, 2> queue;
    int queued = 0;
    bool ended = false;
  };

  bool move(int i) {
    Agent& agent = agents_[static_cast<std::size_t>(i / 2)];
    return i % 2 == 0 ? schedule(agent) : consume(agent);
  }

  bool schedule(Agent& agent) {
    if (agent.ended) return false;
    if (agent.claimed.phase != MoePhase::none) {
      if (!MoeScheduler::may_publish(pool_, agent.claimed, counter1_)) return false;
      if (agent.claimed.phase == MoePhase::linear2 &&
          counter1_ < (agent.claimed.pool_block + 1) * pool_.tiling.num_columns1) {
        out_.early_linear2 = true;
      }
      agent.queue[static_cast<std::size_t>(agent.queued++)] = agent.claimed;
      agent.claimed = {};
      return true;
    }
    if (agent.queued == 2) return false;  // a claim must not precede the free slot
    const MoePhase phase = agent.scheduler.wanted();
    if (phase == MoePhase::none) {
      agent.ended = true;
      return true;
    }
    int& counter = phase == MoePhase::linear1 ? counter1_ : counter2_;
    agent.claimed = agent.scheduler.claim(pool_, phase, counter++);
    if (agent.claimed.phase == MoePhase::linear1) {
      const int live = agent.claimed.pool_block - counter2_ / pool_.tiling.num_columns2 + 1;
      out_.max_live = std::max(out_.max_live, live);
    }
    if (tally_ != nullptr && agent.claimed.phase != MoePhase::none) tally_->add(agent.claimed);
    return true;
  }

  bool consume(Agent& agent) {
    if (agent.queued == 0) return false;
    const MoeTask task = agent.queue[0];
    const auto block = static_cast<std::size_t>(task.pool_block);
    if (task.phase == MoePhase::linear2) {
      if (done1_[block] < pool_.tiling.num_columns1) return false;
      ++done2_[block];
    } else {
      if (protocol_.ring_blocks > 0 && task.pool_block >= protocol_.ring_blocks &&
          done2_[block - static_cast<std::size_t>(protocol_.ring_blocks)] <
              pool_.tiling.num_columns2) {
        return false;
      }
      ++done1_[block];
    }
    agent.queue[0] = agent.queue[1];
    --agent.queued;
    ++out_.num_done;
    return true;
  }

  const MoePool& pool_;
  const Protocol& protocol_;
  Random& rng_;
  Tally* tally_;
  std::vector<Agent> agents_;
  std::vector<int> done1_;
  std::vector<int> done2_;
  int counter1_ = 0;
  int counter2_ = 0;
  Outcome out_;
};

Pool random_small_pool(Random& rng) {
  return Pool({1, 16, rng.pick(1, 6), rng.pick(1, 6)}, random_tokens(rng, 6, 16 * rng.pick(1, 14)));
}

// A million interleavings of random small cases with both ratios, rings of exactly the bound.
TEST(MoeClaims, NoDeadlockInAMillionInterleavings) {
  Random rng = seeded("NoDeadlockInAMillionInterleavings");
  long num_runs = 0;
  long num_steps = 0;
  long num_ring_waits = 0;
  while (num_runs < 1'000'000) {
    const Pool pool = random_small_pool(rng);
    Protocol protocol;
    protocol.pool = &pool.view;
    const int num_schedulers = rng.pick(1, 8);
    const bool proportional = rng.pick(0, 1) == 1;
    protocol.order =
        make_interleave(pool.tiling, pool.view.num_blocks(), num_schedulers, proportional);
    if (rng.pick(0, 1) == 1) {  // the least safe warm-up as well
      protocol.order.warmup = least_warmup(pool.tiling, pool.view.num_blocks(), num_schedulers,
                                           protocol.order.ratio1, protocol.order.ratio2);
    }
    const int bound = max_live_blocks(pool.tiling, protocol.order, pool.view.num_blocks());
    protocol.ring_blocks = rng.pick(0, 1) == 1 ? bound : 0;
    num_ring_waits += protocol.ring_blocks > 0 && bound < pool.view.num_blocks();
    for (int repeat = 0; repeat < 20; ++repeat, ++num_runs) {
      const Outcome out = Interleaving(protocol, rng, nullptr).run();
      ASSERT_FALSE(out.deadlock) << "run " << num_runs << ": C " << num_schedulers << " M "
                                 << pool.view.num_blocks() << " n1 " << pool.tiling.num_columns1
                                 << " n2 " << pool.tiling.num_columns2 << " W "
                                 << protocol.order.warmup;
      ASSERT_FALSE(out.early_linear2);
      ASSERT_LE(out.max_live, bound) << "run " << num_runs;
      num_steps += out.num_steps;
    }
  }
  std::cout << num_runs << " interleavings, " << num_steps << " steps, " << num_ring_waits * 20
            << " of them with a ring smaller than the pool\n";
  EXPECT_GT(num_ring_waits, 1000);
}

// The same search with the warm-up one wave short of the least safe one.
TEST(MoeClaims, FindsTheDeadlockWhenWarmupIsOneShort) {
  Random rng = seeded("FindsTheDeadlockWhenWarmupIsOneShort");
  int found_turns = 0;
  int found_proportional = 0;
  for (int round = 0; round < 20'000; ++round) {
    const Pool pool = random_small_pool(rng);
    Protocol protocol;
    protocol.pool = &pool.view;
    const int num_schedulers = rng.pick(1, 8);
    const bool proportional = round % 2 == 0;
    protocol.order =
        make_interleave(pool.tiling, pool.view.num_blocks(), num_schedulers, proportional);
    const int least = least_warmup(pool.tiling, pool.view.num_blocks(), num_schedulers,
                                   protocol.order.ratio1, protocol.order.ratio2);
    if (least < 2) continue;  // without any warm-up the deadlock is plain
    protocol.order.warmup = least - 1;
    if (Interleaving(protocol, rng, nullptr).run().deadlock) {
      ++(proportional ? found_proportional : found_turns);
    }
  }
  std::cout << "deadlocks found: " << found_turns << " taking turns, " << found_proportional
            << " proportional\n";
  EXPECT_GT(found_turns, 100);
  EXPECT_GT(found_proportional, 100);
}

TEST(MoeClaims, FindsTheDeadlockWhenTheRingIsTooSmall) {
  Random rng = seeded("FindsTheDeadlockWhenTheRingIsTooSmall");
  int found = 0;
  for (int round = 0; round < 20'000; ++round) {
    const Pool pool = random_small_pool(rng);
    Protocol protocol;
    protocol.pool = &pool.view;
    protocol.order = make_interleave(pool.tiling, pool.view.num_blocks(), rng.pick(2, 8), true);
    protocol.ring_blocks = 1;
    found += Interleaving(protocol, rng, nullptr).run().deadlock ? 1 : 0;
  }
  EXPECT_GT(found, 100);
}

// Real sizes: 1 to 148 schedulers, Flash-, Pro- and HunyuanImage-like columns (n1 =, <, > n2).
TEST(MoeClaims, LargeCasesRunEveryTaskOnce) {
  Random rng = seeded("LargeCasesRunEveryTaskOnce");
  const std::array<std::pair<int, int>, 4> columns = {{{16, 16}, {24, 28}, {24, 16}, {1, 40}}};
  for (int round = 0; round < 120; ++round) {
    const auto [n1, n2] = columns[static_cast<std::size_t>(round) % columns.size()];
    const Pool pool({1, 128, n1, n2}, random_tokens(rng, 48, 6000));
    Protocol protocol;
    protocol.pool = &pool.view;
    const int num_schedulers = round < 8 ? 1 + 147 * (round % 2) : rng.pick(1, 148);
    protocol.order =
        make_interleave(pool.tiling, pool.view.num_blocks(), num_schedulers, round % 3 != 0);
    const int bound = max_live_blocks(pool.tiling, protocol.order, pool.view.num_blocks());
    protocol.ring_blocks = bound;
    Tally tally(pool);
    const Outcome out = Interleaving(protocol, rng, &tally).run();
    ASSERT_FALSE(out.deadlock) << round;
    ASSERT_FALSE(out.early_linear2) << round;
    ASSERT_LE(out.max_live, bound) << round;
    tally.expect_complete();
  }
}

// n1 > n2 taking turns needs a warm-up that grows with M, and n2 > n1 a ring that does; in
// proportion neither does. HunyuanImage-like 24 : 16 and Pro-like 24 : 28 on 132 schedulers, 400
// blocks.
TEST(MoeClaims, ProportionalClaimsNeedNoLongWarmup) {
  const MoeTiling hunyuan{8, 128, 24, 16};
  EXPECT_EQ(least_warmup(hunyuan, 400, 132, 1, 1), 25);   // (24 + 399 * 8) / 132
  EXPECT_EQ(least_warmup(hunyuan, 400, 132, 24, 16), 1);  // 24 / 132
  EXPECT_EQ(make_interleave(hunyuan, 400, 132).warmup, 2);
  const MoeTiling pro{24, 128, 24, 28};
  const MoeInterleave turns = make_interleave(pro, 400, 132, false);
  EXPECT_EQ(turns.warmup, 2);
  EXPECT_EQ(max_live_blocks(pro, turns, 400), 132 * 3 / 24 + 2 + 400 * 4 / 28 + 1);
  EXPECT_EQ(max_live_blocks(pro, make_interleave(pro, 400, 132), 400), 132 * 3 / 24 + 2);
}

// The example of WaveByHand, claimed in turns by 6 schedulers in lock-step. W = ceil((4 + 7*1) / 6)
// + 1 = 3. Round by round, pool block.column of the first and the last scheduler:
TEST(MoeClaims, InterleavedByHand) {
  const Pool pool({4, 64, 4, 3}, {130, 60, 0, 200});
  const MoeInterleave order = make_interleave(pool.tiling, 8, 6, false);
  EXPECT_EQ(order.warmup, 3);
  std::vector<MoeScheduler> schedulers(6, MoeScheduler(order));
  std::array<int, 2> counters{};
  const auto claim = [&](MoeScheduler& scheduler) {
    for (;;) {
      const MoePhase phase = scheduler.wanted();
      if (phase == MoePhase::none) return std::string("end");
      const MoeTask task =
          scheduler.claim(pool.view, phase, counters[phase == MoePhase::linear1 ? 0 : 1]++);
      if (task.phase == MoePhase::none) continue;
      EXPECT_TRUE(MoeScheduler::may_publish(pool.view, task, counters[0]));
      std::ostringstream name;
      name << (phase == MoePhase::linear1 ? 'A' : 'B') << task.pool_block << '.' << task.column;
      return name.str();
    }
  };
  const std::pair<const char*, const char*> rounds[] = {
      {"A0.0", "A1.1"}, {"A1.2", "A2.3"}, {"A3.0", "A4.1"}, {"B0.0", "B1.2"}, {"A4.2", "A5.3"},
      {"B2.0", "B3.2"}, {"A6.0", "A7.1"}, {"B4.0", "B5.2"}, {"A7.2", "B7.0"}, {"B7.1", "end"}};
  for (const auto& [first, last] : rounds) {
    EXPECT_EQ(claim(schedulers[0]), first);
    for (int c = 1; c < 5; ++c) claim(schedulers[static_cast<std::size_t>(c)]);
    EXPECT_EQ(claim(schedulers[5]), last);
  }
}

TEST(MoeClaims, NoTokensEndsAtOnce) {
  const Pool pool({3, 64, 4, 3}, {0, 0, 0});
  Random rng(1);
  Protocol protocol;
  protocol.pool = &pool.view;
  protocol.order = make_interleave(pool.tiling, 0, 5);
  EXPECT_EQ(protocol.order.warmup, 0);
  const Outcome out = Interleaving(protocol, rng, nullptr).run();
  EXPECT_FALSE(out.deadlock);
  EXPECT_EQ(out.num_done, 0);
  MoeCursor<LagSegments> lag(pool.view, LagSegments(pool.view, default_lag(0)));
  EXPECT_EQ(lag.at(0).phase, MoePhase::none);
}

static_assert(sizeof(MoeScheduler) <= 32);

}  // namespace
}  // namespace xstage
