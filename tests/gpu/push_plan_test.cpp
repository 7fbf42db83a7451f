// Plans of the serial exchange, carried out on the CPU task by task as the kernel's movers do,
// against the obvious reference: every byte of every rank's buffer.
#include "attention/push_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "attention/push_tasks.hpp"
#include "gpu/exchange_cases.hpp"
#include "xstage/error.hpp"

namespace xstage::test {
namespace {

using attention::PushPlan;
using attention::PushTask;
using attention::PushTasks;

// Tasks in ascending order; counts how often each destination byte is written.
void carry_out(const PushPlan& plan) {
  PushTasks tasks(plan.parts.data(), static_cast<std::int32_t>(plan.parts.size()));
  for (std::int32_t i = 0; i < plan.num_tasks; ++i) {
    const PushTask task = tasks.at(i);
    ASSERT_GT(task.num_rows, 0);
    ASSERT_LE(task.num_rows * static_cast<std::int32_t>(task.unit_bytes),
              attention::kPushTaskBytes);
    for (std::int32_t row = 0; row < task.num_rows; ++row) {
      const char* from = nullptr;
      char* to = nullptr;
      task.locate(row, from, to);
      if (task.in_one_move) {
        ASSERT_EQ(from, task.source + (task.from + row) * task.part->source_row);
        ASSERT_EQ(to, task.destination + (task.to + row) * task.part->destination_row);
      }
      std::memcpy(to, from, task.unit_bytes);
    }
  }
}

using Bytes = std::vector<std::uint8_t>;

void* inside(Bytes& bytes) {
  return bytes.data() + kGuardBytes;
}

TEST(PushPlan, GathersAndScattersRandomCases) {
  const int given = ::testing::GTEST_FLAG(random_seed);
  const auto seed = given != 0 ? static_cast<std::uint32_t>(given) : std::random_device{}();
  std::cout << "seed " << seed << "\n";
  std::mt19937 random(seed);
  for (int i = 0; i < 400; ++i) {
    const ExchangeCase c = random_case(random, 60);
    SCOPED_TRACE(c.text());
    // Gather, then scatter what was gathered as two tensors; each rank in turn.
    std::vector<Bytes> local;
    std::vector<Bytes> owned;
    std::vector<Bytes> back[2];
    std::vector<void*> owned_at;
    std::vector<std::vector<void*>> back_at(2);
    for (int rank = 0; rank < c.num_ranks; ++rank) {
      local.push_back(local_bytes(c, rank, 0, 7));
      owned.push_back(poisoned(c.owned_view(nullptr, rank)));
      for (auto& b : back) b.push_back(poisoned(c.local_view(nullptr, rank)));
    }
    for (int rank = 0; rank < c.num_ranks; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      owned_at.push_back(inside(owned[at]));
      for (std::size_t t = 0; t < 2; ++t) back_at[t].push_back(inside(back[t][at]));
    }
    std::int64_t remote_bytes = 0;
    for (int rank = 0; rank < c.num_ranks; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      const PushPlan plan = plan_gather(c, rank, inside(local[at]), owned_at);
      // As a whole, or the rows in two goes.
      const auto middle = static_cast<std::int32_t>(c.num_rows() / 3);
      const auto end = static_cast<std::int32_t>(c.num_rows());
      const PushPlan first = attention::rows_of_plan(plan, 0, middle);
      const PushPlan second = attention::rows_of_plan(plan, middle, end);
      EXPECT_EQ(first.bytes + second.bytes, plan.bytes);
      EXPECT_EQ(first.remote_bytes + second.remote_bytes, plan.remote_bytes);
      if (i % 2 == 0) {
        carry_out(plan);
      } else {
        carry_out(first);
        carry_out(second);
      }
      remote_bytes += plan.remote_bytes;
      EXPECT_EQ(plan.num_owners, c.num_ranks);
    }
    std::int64_t expected_remote = 0;
    for (int rank = 0; rank < c.num_ranks; ++rank) {
      EXPECT_EQ(owned[static_cast<std::size_t>(rank)], owned_bytes(c, rank, 0, 7));
      expected_remote += c.num_batches * c.shards(rank).owner_rows(rank) * c.head_dim * 2 *
                         (c.num_heads() - c.heads_of_rank(rank));
    }
    EXPECT_EQ(remote_bytes, expected_remote);
    for (int rank = 0; rank < c.num_ranks; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      carry_out(plan_scatter(c, rank, {owned_at[at], owned_at[at]}, back_at));
    }
    for (int rank = 0; rank < c.num_ranks; ++rank) {
      for (const auto& b : back) {
        EXPECT_EQ(b[static_cast<std::size_t>(rank)], local_bytes(c, rank, 0, 7));
      }
    }
    if (HasFailure()) break;
  }
}

TEST(PushPlan, PeersComeFirstRotatedAndOwnRowsLast) {
  std::vector<TensorView> to;
  std::vector<std::uint16_t> memory(64 * 4 * 64 * 2);
  for (int p = 0; p < 4; ++p) {
    to.push_back(TensorView::bshd(memory.data(), DataType::bf16, 1, 16, 2, 64));
  }
  const auto source = TensorView::bshd(memory.data(), DataType::bf16, 1, 64, 2, 64);
  const PushPlan plan = attention::gather_plan(SequenceShards::even(64, 4, 1), source, to);
  ASSERT_EQ(plan.parts.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(plan.parts[static_cast<std::size_t>(i)].moves[1].from, (i + 2) % 4 * 16);
  }
  EXPECT_EQ(plan.bytes, 64 * 2 * 64 * 2);
  EXPECT_EQ(plan.remote_bytes, plan.bytes / 4 * 3);
}

struct Refusal {
  const char* name;
  void (*spoil)(TensorView& source, std::vector<TensorView>& to);
  const char* words;
};

class PushPlanRefuses : public ::testing::TestWithParam<Refusal> {};

TEST_P(PushPlanRefuses, BeforeAnythingRuns) {
  alignas(16) static std::uint16_t memory[1 << 16];
  auto source = TensorView::bshd(memory, DataType::bf16, 1, 32, 2, 64);
  std::vector<TensorView> to(2, TensorView::bshd(memory, DataType::bf16, 1, 16, 2, 64));
  GetParam().spoil(source, to);
  try {
    (void)attention::gather_plan(SequenceShards::even(32, 2, 0), source, to);
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::usage);
    EXPECT_THAT(error.what(), ::testing::HasSubstr(GetParam().words));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Refusals, PushPlanRefuses,
    ::testing::Values(
        Refusal{"owners", [](auto&, auto& to) { to.pop_back(); }, "the number of ranks is 2"},
        Refusal{"rows", [](auto& s, auto&) { s.num_rows = 31; }, "rows is 31"},
        Refusal{"destination_rows", [](auto&, auto& to) { to[1].num_rows = 15; }, "of 15"},
        Refusal{"heads", [](auto&, auto& to) { to[0].num_heads = 3; }, "num_heads is 3"},
        Refusal{"batches", [](auto&, auto& to) { to[0].num_batches = 2; }, "num_batches is 2"},
        Refusal{"dtype", [](auto&, auto& to) { to[0].dtype = DataType::fp16; }, "dtype"},
        Refusal{"stride", [](auto& s, auto&) { s.row_stride = 132; }, "row_stride is 132"},
        Refusal{"null", [](auto&, auto& to) { to[1].data = nullptr; }, "destination is null"},
        Refusal{"alignment", [](auto& s, auto&) { s.data = static_cast<char*>(s.data) + 2; },
                "multiple of 16"},
        Refusal{"head_dim",
                [](auto& s, auto& to) {
                  s.head_dim = 60;
                  for (auto& view : to) view.head_dim = 60;
                },
                "head_dim is 60"}),
    [](const auto& refusal) { return refusal.param.name; });

}  // namespace
}  // namespace xstage::test
