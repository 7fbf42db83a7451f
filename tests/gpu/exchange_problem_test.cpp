// What an exchange call accepts and refuses, and where its bytes go. No GPU is needed.
#include "attention/exchange_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "xstage/error.hpp"

namespace xstage::attention {
namespace {

void* address(std::uintptr_t value) {
  return reinterpret_cast<void*>(value);  // NOLINT: never dereferenced
}

struct Arguments {
  int num_ranks = 4;
  AttentionShape max;
  UlyssesOptions options;
  AttentionCall call;
  std::vector<std::int64_t> seq_splits, head_splits;
  std::int64_t num_batches = 2, num_rows = 1000, num_keys = 1000;
  std::optional<std::int64_t> q_heads, k_heads;

  Arguments() {
    max.num_batches = 2;
    max.max_rows = 1000;
    max.num_heads = 12;
    max.num_kv_heads = 6;
  }

  [[nodiscard]] ExchangeProblem problem(int rank) const {
    check_shape(max, num_ranks);
    check_options(options, 132);
    AttentionCall given = call;
    given.seq_splits = seq_splits;
    given.head_splits = head_splits;
    const std::int64_t heads = q_heads.value_or(heads_of(rank));
    const std::int64_t group =
        max.num_heads / (max.num_kv_heads > 0 ? max.num_kv_heads : max.num_heads);
    std::int64_t first = 0;
    for (int r = 0; r < rank; ++r) first += heads_of(r);
    const std::int64_t kv_heads =
        k_heads.value_or(heads == 0 ? 0 : (first + heads - 1) / group - first / group + 1);
    const auto view = [&](std::int64_t rows, std::int64_t n) {
      return TensorView::bshd(address(0x10000), max.dtype, num_batches, rows, n, max.head_dim);
    };
    return make_exchange_problem({rank, num_ranks, 132}, max, options, view(num_rows, heads),
                                 view(num_keys, kv_heads), view(num_keys, kv_heads), given);
  }
  [[nodiscard]] std::int64_t heads_of(int rank) const {
    if (head_splits.size() == static_cast<std::size_t>(num_ranks)) {
      return head_splits[static_cast<std::size_t>(rank)];
    }
    const std::int64_t kv = max.num_kv_heads > 0 ? max.num_kv_heads : max.num_heads;
    const std::int64_t unit = kv >= num_ranks ? max.num_heads / kv : 1;
    const std::int64_t total = max.num_heads / unit;
    return (total / num_ranks + (rank < total % num_ranks ? 1 : 0)) * unit;
  }
};

struct Refusal {
  std::string name;
  std::function<void(Arguments&)> spoil;
  std::string words;
};

void PrintTo(const Refusal& r, std::ostream* out) {
  *out << r.name;
}

class ExchangeRefused : public ::testing::TestWithParam<Refusal> {};

TEST_P(ExchangeRefused, OnEveryRankWithTheSameWords) {
  Arguments a;
  GetParam().spoil(a);
  std::set<std::string> messages;
  for (int rank = 0; rank < std::clamp(a.num_ranks, 1, 8); ++rank) {
    try {
      (void)a.problem(rank);
      FAIL() << "rank " << rank << " accepts";
    } catch (const Error& error) {
      EXPECT_EQ(error.category(), ErrorCategory::usage) << error.what();
      messages.insert(error.what());
    }
  }
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_NE(messages.begin()->find(GetParam().words), std::string::npos) << *messages.begin();
}

const Refusal kRefusals[] = {
    {"no_ranks", [](Arguments& a) { a.num_ranks = 0; }, "ranks is 0: legal 1..72"},
    {"ranks", [](Arguments& a) { a.num_ranks = 73; }, "ranks is 73: legal 1..72"},
    {"head_dim", [](Arguments& a) { a.max.head_dim = 96; }, "head_dim is 96: legal 64, 128"},
    {"no_heads", [](Arguments& a) { a.max.num_heads = 0; }, "num_heads is 0: legal 1.."},
    {"kv_heads", [](Arguments& a) { a.max.num_kv_heads = 5; },
     "num_kv_heads is 5: legal are divisors of num_heads, 12"},
    {"too_large", [](Arguments& a) { a.max.max_rows = 1 << 28; }, "num_batches x max_rows x"},
    {"rows", [](Arguments& a) { a.num_rows = 1001; }, "q.num_rows is 1001: legal 0..1000"},
    {"batches", [](Arguments& a) { a.num_batches = 3; }, "q.num_batches is 3: legal 0..2"},
    {"prefix", [](Arguments& a) { a.call.prefix_rows = -1; }, "prefix_rows is -1: legal 0..1000"},
    {"suffix",
     [](Arguments& a) {
       a.call.prefix_rows = 600;
       a.call.suffix_rows = 401;
     },
     "suffix_rows is 401: legal 0..400"},
    {"seq_count",
     [](Arguments& a) {
       a.seq_splits = {500, 500};
     },
     "seq_splits has 2 entries for 4 ranks: legal is for example [250, 250, 250, 250]"},
    {"seq_sum",
     [](Arguments& a) {
       a.seq_splits = {250, 250, 250, 249};
     },
     "add up to 999, but there are 1000 rows between prefix and suffix"},
    {"seq_negative",
     [](Arguments& a) {
       a.seq_splits = {-1, 501, 250, 250};
     },
     "seq_splits[0] is -1: legal 0..1000"},
    {"seq_room",
     [](Arguments& a) {
       a.seq_splits = {250, 250, 249, 251};
     },
     "rank 3 would own 251 rows of 2 batches, but its buffer is for 250 rows of 2: legal from "
     "max_rows_per_rank 251 on"},
    {"prefix_room", [](Arguments& a) { a.call.prefix_rows = 100; },
     "rank 0 would own 325 rows of 2 batches"},
    {"head_count", [](Arguments& a) { a.head_splits = {12}; },
     "head_splits has 1 entries for 4 ranks: legal is for example [4, 4, 2, 2]"},
    {"head_sum",
     [](Arguments& a) {
       a.head_splits = {4, 4, 4, 4};
     },
     "add up to 16"},
    {"head_inside_kv",
     [](Arguments& a) {
       a.head_splits = {3, 3, 3, 3};
     },
     "rank 0 would get heads 0..2, which split a KV head of 2 heads: legal head_splits are whole "
     "KV heads or parts of one, for example [4, 4, 2, 2]"},
    {"few_kv_heads", [](Arguments& a) { a.max.num_kv_heads = 3; }, "for example [4, 4, 4, 0]"},
    {"lse", [](Arguments& a) { a.call.lse = true; }, "log-sum-exp is asked for"},
    {"kind", [](Arguments& a) { a.options.send.kind = StoreKind::red; },
     "legal tensor, bulk, register16"},
    {"chunk", [](Arguments& a) { a.options.send.chunk_bytes = 1000; },
     "send.chunk_bytes is 1000: legal from 1024 (8 rows of a box) on"},
    {"num_sms", [](Arguments& a) { a.options.num_sms = 133; }, "num_sms is 133: legal 0..132"},
    {"causal_fused",
     [](Arguments& a) {
       a.call.causal = true;
       a.options.path = ExchangePath::fused;
     },
     "path is fused: not possible for causal"},
    {"kv_len", [](Arguments& a) { a.call.kv_len = 1001; }, "kv_len is 1001: legal 0..1000"},
};

INSTANTIATE_TEST_SUITE_P(Calls, ExchangeRefused, ::testing::ValuesIn(kRefusals),
                         [](const auto& test) { return test.param.name; });

TEST(ExchangeProblem, RefusesTensorsThatAreNotThisRanks) {
  Arguments a;
  a.q_heads = 3;
  a.k_heads = 1;
  try {
    (void)a.problem(1);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("q.num_heads is 3: rank 1 computes 4"),
              std::string::npos)
        << error.what();
  }
}

TEST(ExchangeProblem, SaysWhyItIsNotFused) {
  Arguments a;
  EXPECT_EQ(a.problem(0).path, ExchangePath::fused);
  EXPECT_EQ(a.problem(0).reason, "");
  Arguments causal = a;
  causal.call.causal = true;
  EXPECT_EQ(causal.problem(0).path, ExchangePath::serial);
  EXPECT_NE(causal.problem(0).reason.find("causal"), std::string::npos);
  Arguments small = a;
  small.max.head_dim = 64;
  EXPECT_NE(small.problem(2).reason.find("head_dim 64"), std::string::npos);
  Arguments many = a;
  many.num_ranks = 9;
  many.max.num_kv_heads = 0;
  EXPECT_NE(many.problem(8).reason.find("9 ranks"), std::string::npos);
  Arguments asked = a;
  asked.options.path = ExchangePath::serial;
  EXPECT_NE(asked.problem(0).reason.find("asked for"), std::string::npos);
}

TEST(ExchangeProblem, CutsChunksIntoBoxes) {
  const auto cut = [](std::uint32_t chunk, StoreKind kind = StoreKind::tensor) {
    return box_send({kind, chunk, 3, Completion::read}, 128);
  };
  EXPECT_EQ(cut(0).send.chunk_bytes, 16384u);
  EXPECT_EQ(cut(1 << 20).send.chunk_bytes, 16384u);
  EXPECT_EQ(cut(1 << 20).box_rows, 64);
  EXPECT_EQ(cut(12000).send.chunk_bytes, 8192u);
  EXPECT_EQ(cut(12000).box_rows, 64);
  EXPECT_EQ(cut(8191).box_rows, 32);
  EXPECT_EQ(cut(8191).send.chunk_bytes, 4096u);
  EXPECT_EQ(cut(1024).box_rows, 8);
  EXPECT_EQ(cut(4096, StoreKind::bulk).send.kind, StoreKind::tensor);
  EXPECT_EQ(cut(1000, StoreKind::register16).send.chunk_bytes, 768u);
  EXPECT_EQ(cut(4096).send.steps_per_chunk, 3u);
}

TEST(ExchangeLayout, PartsAreApartAndAligned) {
  AttentionShape max;
  max.num_batches = 3;
  max.max_rows = 1001;
  max.num_heads = 5;
  max.lse = true;
  const ExchangeLayout layout = exchange_layout(max, 4);
  EXPECT_GE(layout.out_bytes, 3u * 251 * 5 * 128 * 2);
  EXPECT_GE(layout.lse_bytes, 3u * 251 * 5 * 4);
  const std::pair<std::size_t, std::size_t> parts[] = {{0, sizeof(ExchangeHeader)},
                                                       {layout.out_offset[0], layout.out_bytes},
                                                       {layout.out_offset[1], layout.out_bytes},
                                                       {layout.lse_offset[0], layout.lse_bytes},
                                                       {layout.lse_offset[1], layout.lse_bytes},
                                                       {layout.bytes, 0}};
  for (std::size_t i = 0; i + 1 < std::size(parts); ++i) {
    EXPECT_EQ(parts[i].first % kLayoutAlignment, 0u);
    EXPECT_LE(parts[i].first + parts[i].second + kGuardBytes, parts[i + 1].first);
  }
  max.lse = false;
  EXPECT_EQ(exchange_layout(max, 4).lse_bytes, 0u);
  EXPECT_LT(exchange_layout(max, 4).bytes, layout.bytes);
}

// Every element of every owner's buffer is written once, by the rank that computes it.
TEST(ExchangeProblem, FillsEveryBufferOnce) {
  const int given = ::testing::GTEST_FLAG(random_seed);
  const std::uint32_t seed =
      given != 0 ? static_cast<std::uint32_t>(given) : std::random_device{}() % 99999 + 1;
  std::cout << "seed " << seed << "\n";
  std::mt19937 random(seed);
  const auto draw = [&](std::int64_t first, std::int64_t last) {
    return std::uniform_int_distribution<std::int64_t>(first, last)(random);
  };
  for (int round = 0; round < 300; ++round) {
    Arguments a;
    a.num_ranks = static_cast<int>(draw(1, 8));
    a.max = {};
    a.max.num_batches = a.num_batches = draw(1, 2);
    a.max.max_rows = 400;
    a.max.max_rows_per_rank = 400;
    const std::int64_t group = draw(1, 2);
    a.max.num_kv_heads = draw(1, 5) * (group == 2 ? a.num_ranks : 1);
    a.max.num_heads = a.max.num_kv_heads * group;
    a.max.lse = a.call.lse = true;
    a.num_rows = draw(0, 400);
    a.call.prefix_rows = draw(0, 1) * draw(0, a.num_rows);
    a.call.suffix_rows = draw(0, 1) * draw(0, a.num_rows - a.call.prefix_rows);
    if (draw(0, 1) == 1) {
      std::int64_t left = a.num_rows - a.call.prefix_rows - a.call.suffix_rows;
      for (int p = 0; p < a.num_ranks; ++p) {
        a.seq_splits.push_back(p + 1 == a.num_ranks ? left : draw(0, left));
        left -= a.seq_splits.back();
      }
    }
    std::vector<std::vector<int>> out, lse;
    const ExchangeProblem first = a.problem(0);
    for (int p = 0; p < a.num_ranks; ++p) {
      const TensorView all = owner_view(first, p, nullptr);
      out.emplace_back(static_cast<std::size_t>(all.num_batches * all.batch_stride), 0);
      lse.emplace_back(out.back().size() / 128, 0);
    }
    for (int rank = 0; rank < a.num_ranks; ++rank) {
      const ExchangeProblem problem = a.problem(rank);
      std::vector<std::int64_t> sent(static_cast<std::size_t>(a.num_ranks), 0);
      RowRunCursor cursor(problem.shards, 0, static_cast<std::int32_t>(a.num_rows));
      RowRun run;
      while (cursor.next(run)) {
        auto& elements = out[static_cast<std::size_t>(run.owner)];
        auto& values = lse[static_cast<std::size_t>(run.owner)];
        const TensorView view = destination(problem, run.owner, nullptr);
        const auto start = reinterpret_cast<std::intptr_t>(view.data) / 2;
        const LseDestination column = lse_destination(problem, run.owner);
        for (std::int64_t b = 0; b < view.num_batches; ++b) {
          for (std::int64_t h = 0; h < view.num_heads; ++h) {
            for (std::int64_t i = 0; i < run.num_rows; ++i) {
              const std::int64_t row = run.owner_row + i;
              ++elements.at(static_cast<std::size_t>(start + b * view.batch_stride +
                                                     row * view.row_stride + h * view.head_stride));
              ++values.at(static_cast<std::size_t>(column.first + b * column.batch_stride +
                                                   h * column.head_stride + row));
              ++sent[static_cast<std::size_t>(run.owner)];
            }
          }
        }
      }
      for (int p = 0; p < a.num_ranks; ++p) {
        EXPECT_EQ(sent[static_cast<std::size_t>(p)], expected_rows(problem, p));
      }
    }
    for (const auto& elements : out) {
      for (std::size_t i = 0; i < elements.size(); i += 128) ASSERT_EQ(elements[i], 1);
    }
    for (const auto& values : lse) {
      for (const int count : values) ASSERT_EQ(count, 1);
    }
  }
}

TEST(ExchangeProblem, OperatorsThatDifferAreDescribedDifferently) {
  AttentionShape max;
  max.max_rows = 100;
  max.num_heads = 4;
  const std::string text = describe_operator(max, {}, 0);
  EXPECT_EQ(text, describe_operator(max, {}, 0));
  AttentionShape other = max;
  other.num_heads = 5;
  EXPECT_NE(text, describe_operator(other, {}, 0));
  EXPECT_NE(text, describe_operator(max, {}, 1024));
}

}  // namespace
}  // namespace xstage::attention
