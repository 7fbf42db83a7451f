// Rows, shares, sizes and refusals of the expert-parallel layer, without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "moe/layout.hpp"
#include "moe/problem.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

MoeShape small_shape() {
  MoeShape shape;
  shape.max_tokens = 64;
  shape.hidden = 256;
  shape.intermediate = 128;
  shape.num_experts = 16;
  shape.top_k = 4;
  return shape;
}

TEST(MoePartition, EveryExpertHasOneOwnerAndSharesDifferByOneAtMost) {
  for (int num_ranks : {1, 2, 3, 5, 8, 37, kMaxRanks}) {
    for (int num_experts = num_ranks; num_experts <= kMaxExperts; num_experts += 7) {
      const Partition experts{num_experts, num_ranks};
      int next = 0;
      for (int rank = 0; rank < num_ranks; ++rank) {
        ASSERT_EQ(experts.first(rank), next);
        ASSERT_GE(experts.count(rank), num_experts / num_ranks);
        ASSERT_LE(experts.count(rank), experts.max_count());
        for (int i = 0; i < experts.count(rank); ++i, ++next) {
          ASSERT_EQ(experts.owner(next), rank) << num_experts << " over " << num_ranks;
        }
      }
      ASSERT_EQ(next, num_experts);
    }
  }
}

TEST(MoeEntry, PacksAndUnpacksItsLimits) {
  for (std::uint32_t expert : {0u, 1u, static_cast<std::uint32_t>(kMaxExperts - 1)}) {
    for (std::uint32_t ordinal : {0u, 77u, static_cast<std::uint32_t>(kMaxEntries - 1)}) {
      const std::uint32_t entry = pack_entry(expert, ordinal);
      EXPECT_NE(entry, kEmptyEntry);
      EXPECT_EQ(entry_expert(entry), static_cast<int>(expert));
      EXPECT_EQ(entry_ordinal(entry), static_cast<std::int32_t>(ordinal));
    }
  }
}

// Counts of a random routing: [rank][expert], tokens of each rank.
struct Routing {
  std::vector<std::uint32_t> counts;
  std::vector<int> num_tokens;
};

Routing random_routing(const MoeShape& shape, int num_ranks, std::mt19937& random) {
  Routing routing;
  routing.counts.resize(static_cast<std::size_t>(num_ranks) * shape.num_experts);
  const bool is_narrow = random() % 3 == 0;  // all on one expert
  const auto favourite = random() % static_cast<unsigned>(shape.num_experts);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const bool is_full = random() % 3 == 0;
    const int tokens =
        is_full ? shape.max_tokens : static_cast<int>(random() % (shape.max_tokens + 1u));
    routing.num_tokens.push_back(tokens);
    for (int entry = 0; entry < tokens * shape.top_k; ++entry) {
      const auto expert =
          is_narrow ? favourite : random() % static_cast<unsigned>(shape.num_experts);
      ++routing.counts[static_cast<std::size_t>(rank) * shape.num_experts + expert];
    }
  }
  return routing;
}

struct Tables {
  std::vector<std::int32_t> first_row, num_rows, my_row, rank_row;
  std::int32_t in_use = 0;
};

Tables place(const Geometry& g, const Routing& routing, int rank) {
  Tables tables;
  tables.first_row.resize(kMaxExperts + kMaxShared);
  tables.num_rows.resize(kMaxExperts + kMaxShared);
  tables.my_row.resize(kMaxExperts);
  tables.rank_row.resize(static_cast<std::size_t>(g.experts.num_ranks) * g.experts.max_count());
  tables.in_use =
      place_rows(g, routing.counts.data(), rank, routing.num_tokens[static_cast<std::size_t>(rank)],
                 tables.first_row.data(), tables.num_rows.data(), tables.my_row.data(),
                 tables.rank_row.data());
  return tables;
}

TEST(MoeRows, AreUniqueAlignedWithinThePoolAndTheSameForBothSides) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    MoeShape shape = small_shape();
    const int num_ranks = 1 + static_cast<int>(random() % 8);
    shape.num_experts = num_ranks + static_cast<int>(random() % 60);
    shape.top_k = 1 + static_cast<int>(random() % 9);
    shape.max_tokens = 1 + static_cast<int>(random() % 100);
    shape.num_shared_experts = static_cast<int>(random() % 3);
    const Geometry g = make_geometry(shape, num_ranks);
    const Routing routing = random_routing(shape, num_ranks, random);
    std::vector<Tables> tables;
    for (int rank = 0; rank < num_ranks; ++rank) tables.push_back(place(g, routing, rank));
    for (int owner = 0; owner < num_ranks; ++owner) {
      const Tables& t = tables[static_cast<std::size_t>(owner)];
      ASSERT_LE(t.in_use, g.pool_rows);
      std::set<std::int32_t> taken;
      for (int local = 0; local < g.experts.count(owner); ++local) {
        const int expert = g.experts.first(owner) + local;
        ASSERT_EQ(t.first_row[local] % kRowAlign, 0);
        std::int32_t total = 0;
        for (int source = 0; source < num_ranks; ++source) {
          const auto count = static_cast<std::int32_t>(
              routing.counts[static_cast<std::size_t>(source) * shape.num_experts + expert]);
          const std::int32_t row = t.rank_row[source * g.experts.max_count() + local];
          ASSERT_EQ(row, tables[static_cast<std::size_t>(source)].my_row[expert]);
          ASSERT_EQ(row, t.first_row[local] + total);
          for (std::int32_t i = 0; i < count; ++i) {
            ASSERT_TRUE(taken.insert(row + i).second);
          }
          total += count;
        }
        ASSERT_EQ(t.num_rows[local], total);
        // Padding is nobody's.
        for (std::int32_t i = total; i < align_rows(total); ++i) {
          ASSERT_TRUE(taken.insert(t.first_row[local] + i).second);
        }
      }
      for (int shared = 0; shared < g.num_shared; ++shared) {
        const int local = g.experts.count(owner) + shared;
        ASSERT_EQ(t.first_row[local] % kRowAlign, 0);
        for (std::int32_t i = 0; i < align_rows(t.num_rows[local]); ++i) {
          ASSERT_TRUE(taken.insert(t.first_row[local] + i).second);
        }
      }
      ASSERT_EQ(static_cast<std::int32_t>(taken.size()), t.in_use);
    }
  }
}

// The worst case for each rank: all ranks send all slots there, spread so that padding is largest.
TEST(MoeRows, ThePoolHoldsTheWorstRouting) {
  for (int num_ranks : {1, 2, 5}) {
    for (int top_k : {1, 3, 8}) {
      for (int max_tokens : {1, 3, 70}) {
        MoeShape shape = small_shape();
        shape.num_experts = num_ranks * 37;
        shape.top_k = top_k;
        shape.max_tokens = max_tokens;
        shape.num_shared_experts = 1;
        const Geometry g = make_geometry(shape, num_ranks);
        Routing routing;
        routing.num_tokens.assign(static_cast<std::size_t>(num_ranks), max_tokens);
        routing.counts.resize(static_cast<std::size_t>(num_ranks) * shape.num_experts);
        for (int source = 0; source < num_ranks; ++source) {
          for (int entry = 0; entry < max_tokens * top_k; ++entry) {
            ++routing.counts[static_cast<std::size_t>(source) * shape.num_experts +
                             static_cast<std::size_t>(entry % 37)];
          }
        }
        const Tables tables = place(g, routing, 0);
        EXPECT_LE(tables.in_use, g.pool_rows);
        EXPECT_GE(tables.in_use, num_ranks * max_tokens * top_k);
      }
    }
  }
}

void expect_disjoint(std::vector<std::pair<std::size_t, std::size_t>> parts, std::size_t bytes) {
  std::sort(parts.begin(), parts.end());
  std::size_t end = 0;
  for (const auto& [offset, size] : parts) {
    EXPECT_EQ(offset % kLayoutAlign, 0u);
    EXPECT_GE(offset, end);
    end = offset + size;
  }
  EXPECT_LE(end, bytes);
}

TEST(MoeLayout, PartsDoNotOverlap) {
  for (const auto dispatch : {MoeTransfer::pull, MoeTransfer::push}) {
    for (const auto combine : {MoeTransfer::pull, MoeTransfer::push}) {
      for (const auto dtype : {DataType::bf16, DataType::fp8}) {
        MoeShape shape = small_shape();
        shape.dtype = dtype;
        shape.num_shared_experts = 1;
        MoeOptions options;
        options.dispatch = dispatch;
        options.combine = combine;
        const Geometry g = make_geometry(shape, 3);
        const auto rows = static_cast<std::size_t>(g.pool_rows);
        const auto tokens = static_cast<std::size_t>(shape.max_tokens);
        const std::size_t element = dtype == DataType::fp8 ? 1 : 2;
        const PeerLayout peer = peer_layout(g, options);
        const bool pushes_rows = dispatch == MoeTransfer::push;
        const bool pushes_sums = combine == MoeTransfer::push;
        std::vector<std::pair<std::size_t, std::size_t>> parts = {
            {peer.headers, kMaxRanks * sizeof(CallHeader)},
            {peer.counts, 4 * 3 * 16},
            {peer.entries, 4 * tokens * 4},
            {peer.x, tokens * static_cast<std::size_t>(g.x_pitch)}};
        if (pushes_rows) {
          parts.emplace_back(peer.pool, rows * 256 * element);
          if (dtype == DataType::fp8) parts.emplace_back(peer.pool_scales, rows * 16);
          if (pushes_sums) parts.emplace_back(peer.origins, rows * 4);
        }
        if (pushes_sums) {
          parts.emplace_back(peer.slots, tokens * 5 * 512);
        } else {
          parts.emplace_back(peer.outputs, rows * 512);
        }
        expect_disjoint(parts, peer.bytes);

        const LocalLayout local = local_layout(g, options, 1000);
        parts = {{local.tables, sizeof(RouteTables) + 4 * 3 * 6},
                 {local.gemm1, 1000},
                 {local.gemm2, 1000},
                 {local.middle, rows * 128 * element}};
        if (dtype == DataType::fp8) {
          parts.emplace_back(local.pool_scales, rows * 2 * 4);
          parts.emplace_back(local.middle_scales, rows * 4);
        }
        if (!pushes_rows) {
          parts.emplace_back(local.pool, rows * 256 * element);
          if (pushes_sums) parts.emplace_back(local.origins, rows * 4);
        }
        if (pushes_sums) parts.emplace_back(local.outputs, rows * 512);
        expect_disjoint(parts, local.bytes);
      }
    }
  }
}

// The text of the error that a change of the shape brings, "" if none.
template <typename Change>
std::string refusal(Change change) {
  MoeShape shape = small_shape();
  MoeOptions options;
  int num_ranks = 2;
  change(shape, options, num_ranks);
  try {
    check_shape(shape, num_ranks, options);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::usage);
    return error.what();
  }
}

TEST(MoeChecks, NameTheValueAndTheLegalOnes) {
  using testing::PrintToString;
  const auto expect_has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' lacks '" << part << "'";
  };
  EXPECT_EQ(refusal([](auto&, auto&, auto&) {}), "");
  expect_has(refusal([](auto& s, auto&, auto&) { s.max_tokens = 0; }),
             "max_tokens is 0: legal 1..65536");
  expect_has(refusal([](auto& s, auto&, auto&) { s.hidden = 100; }),
             "hidden is 100: legal are multiples of 64 up to 16384");
  expect_has(refusal([](auto& s, auto&, auto&) { s.intermediate = 16448; }),
             "intermediate is 16448");
  expect_has(refusal([](auto& s, auto&, auto&) { s.num_experts = 1; }),
             "num_experts is 1: legal 2..1024");
  expect_has(refusal([](auto& s, auto&, auto&) { s.top_k = 33; }), "top_k is 33: legal 1..32");
  expect_has(refusal([](auto& s, auto&, auto&) { s.num_shared_experts = 9; }),
             "num_shared_experts is 9: legal 0..8");
  expect_has(refusal([](auto& s, auto&, auto&) {
               s.top_k = 30;
               s.num_shared_experts = 3;
             }),
             "top_k + num_shared_experts is 33: legal 1..32");
  expect_has(refusal([](auto& s, auto&, auto&) {
               s.max_tokens = 65536;
               s.top_k = 17;
             }),
             "is 1114112: legal 1..1048576");
  expect_has(refusal([](auto& s, auto&, auto&) { s.dtype = DataType::fp16; }),
             "dtype is 1: legal bf16, fp8");
  expect_has(refusal([](auto&, auto&, auto& n) { n = 73; }), "num_ranks is 73: legal 1..72");
  expect_has(refusal([](auto&, auto& o, auto&) { o.clamp = -1; }), "clamp is -1");
  expect_has(refusal([](auto&, auto& o, auto&) { o.send.chunk_bytes = 100; }),
             "send.chunk_bytes is 100");
  expect_has(refusal([](auto&, auto& o, auto&) { o.send.kind = StoreKind::register16; }),
             "send.kind");
}

TEST(MoeChecks, OfACall) {
  const MoeShape shape = small_shape();
  const auto refused = [&](const MoeCall& call) -> std::string {
    try {
      check_call(shape, call);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(refused({}), "");  // no token: nothing is looked at
  MoeCall call;
  call.num_tokens = 65;
  EXPECT_NE(refused(call).find("num_tokens is 65: legal 0..64"), std::string::npos);
  alignas(16) static char memory[64];
  call.num_tokens = 1;
  call.x = memory;
  EXPECT_NE(refused(call).find("x_scales is null"), std::string::npos);
  call.x_scales = reinterpret_cast<float*>(memory);
  EXPECT_NE(refused(call).find("topk_ids is null"), std::string::npos);
  call.topk_ids = memory + 4;
  call.topk_weights = call.x_scales;
  call.y = memory;
  EXPECT_EQ(refused(call), "");
  call.ids_are_64_bit = true;
  EXPECT_NE(refused(call).find("topk_ids is at"), std::string::npos);
}

TEST(MoeChecks, AgreementTellsEverythingThatLayoutOrProtocolDependOn) {
  const MoeShape shape = small_shape();
  const std::uint32_t mine = agreement(shape, 2, {});
  EXPECT_EQ(agreement(shape, 2, {}), mine);
  std::set<std::uint32_t> others = {mine};
  for (const auto change :
       {&MoeShape::max_tokens, &MoeShape::hidden, &MoeShape::intermediate, &MoeShape::num_experts,
        &MoeShape::top_k, &MoeShape::num_shared_experts}) {
    MoeShape other = shape;
    other.*change += 64;
    EXPECT_TRUE(others.insert(agreement(other, 2, {})).second);
  }
  MoeShape other = shape;
  other.dtype = DataType::bf16;
  EXPECT_TRUE(others.insert(agreement(other, 2, {})).second);
  EXPECT_TRUE(others.insert(agreement(shape, 3, {})).second);
  MoeOptions options;
  options.dispatch = MoeTransfer::push;
  EXPECT_TRUE(others.insert(agreement(shape, 2, options)).second);
  options.combine = MoeTransfer::push;
  EXPECT_TRUE(others.insert(agreement(shape, 2, options)).second);
}

TEST(MoeChecks, ANoteSaysWhatWasWrong) {
  BadInputNote note{};
  EXPECT_EQ(describe(note, small_shape()), "");
  note.what = static_cast<std::uint32_t>(BadInput::expert_id);
  note.value = 99;
  note.entry = 4 * 7 + 2;
  EXPECT_EQ(describe(note, small_shape()),
            "moe: topk_ids[7, 2] is 99: legal -1..15; the slot was left empty");
}

}  // namespace
}  // namespace xstage::moe
