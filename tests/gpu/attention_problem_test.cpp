// What attention_forward() accepts and refuses, and the order it plans. No GPU is needed: bad
// arguments are named before the device is looked at.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "attention/forward_shape.hpp"
#include "attention/problem.hpp"
#include "xstage/error.hpp"

namespace xstage::attention {
namespace {

constexpr int kSms = 132;

void* address(std::uintptr_t value) {
  return reinterpret_cast<void*>(value);  // NOLINT: never dereferenced
}

struct Arguments {
  TensorView q = TensorView::bshd(address(0x1000), DataType::bf16, 2, 300, 8, 128);
  TensorView k = TensorView::bshd(address(0x2000), DataType::bf16, 2, 500, 4, 128);
  TensorView v = TensorView::bshd(address(0x3000), DataType::bf16, 2, 500, 4, 128);
  TensorView out = TensorView::bshd(address(0x4000), DataType::bf16, 2, 300, 8, 128);
  AttentionOptions options;
};

struct Refusal {
  std::string name;
  std::function<void(Arguments&)> spoil;
  std::string words;  // has to be in the message
};

class Refused : public ::testing::TestWithParam<Refusal> {};

TEST_P(Refused, NamesTheValueBeforeTheDeviceIsLookedAt) {
  Arguments a;
  GetParam().spoil(a);
  try {
    attention_forward(a.q, a.k, a.v, a.out, a.options, {}, {});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::usage) << error.what();
    EXPECT_NE(std::string(error.what()).find(GetParam().words), std::string::npos) << error.what();
  }
}

const Refusal kRefusals[] = {
    {"head_dim", [](Arguments& a) { a.q.head_dim = 96; }, "q.head_dim is 96: legal 64, 128"},
    {"head_dims_differ", [](Arguments& a) { a.v.head_dim = 64; },
     "v.head_dim is 64, but k.head_dim is 128"},
    {"dtypes_differ", [](Arguments& a) { a.k.dtype = DataType::fp16; },
     "k.dtype is fp16, but q.dtype is bf16"},
    {"dtype", [](Arguments& a) { a.q.dtype = static_cast<DataType>(7); }, "q.dtype is 7"},
    {"batches", [](Arguments& a) { a.v.num_batches = 3; },
     "v.num_batches is 3, but k.num_batches is 2"},
    {"key_rows", [](Arguments& a) { a.v.num_rows = 499; },
     "v.num_rows is 499, but k.num_rows is 500"},
    {"kv_heads", [](Arguments& a) { a.v.num_heads = 2; }, "v.num_heads is 2, but k.num_heads is 4"},
    {"gqa", [](Arguments& a) { a.k.num_heads = a.v.num_heads = 3; },
     "k.num_heads is 3: legal are divisors of q.num_heads, 8"},
    {"no_kv_heads", [](Arguments& a) { a.k.num_heads = a.v.num_heads = 0; }, "k.num_heads is 0"},
    {"out_rows", [](Arguments& a) { a.out.num_rows = 299; },
     "out.num_rows is 299, but q.num_rows is 300"},
    {"out_heads", [](Arguments& a) { a.out.num_heads = 4; },
     "out.num_heads is 4, but q.num_heads is 8"},
    {"null", [](Arguments& a) { a.k.data = nullptr; }, "k.data is null"},
    {"alignment", [](Arguments& a) { a.v.data = address(0x3008); }, "v.data is at 12296"},
    {"row_stride", [](Arguments& a) { a.q.row_stride = 1028; }, "q.row_stride is 1028"},
    {"negative_stride", [](Arguments& a) { a.out.batch_stride = -1024; },
     "out.batch_stride is -1024"},
    {"zero_stride", [](Arguments& a) { a.k.head_stride = 0; }, "k.head_stride is 0"},
    {"huge_stride", [](Arguments& a) { a.k.batch_stride = std::int64_t{1} << 39; },
     "k.batch_stride"},
    {"element_stride", [](Arguments& a) { a.q.element_stride = 2; },
     "q.element_stride is 2: legal 1"},
    {"negative_size", [](Arguments& a) { a.q.num_rows = -5; }, "q.num_rows is -5"},
    {"huge_size", [](Arguments& a) { a.k.num_rows = std::int64_t{1} << 31; },
     "k.num_rows is 2147483648"},
    {"many_tiles",
     [](Arguments& a) {
       a.q.num_rows = a.out.num_rows = std::int64_t{1} << 30;
       a.q.num_heads = a.out.num_heads = 128;
     },
     "batches x heads x query blocks"},
    {"long_rows", [](Arguments& a) { a.k.num_rows = a.v.num_rows = (std::int64_t{1} << 30) + 1; },
     "rows of q and k"},
    {"scale", [](Arguments& a) { a.options.scale = -1.f; }, "scale is -1"},
    {"scale_nan", [](Arguments& a) { a.options.scale = std::numeric_limits<float>::quiet_NaN(); },
     "scale is nan"},
    {"kv_len", [](Arguments& a) { a.options.kv_len = 501; }, "kv_len is 501: legal 0..500"},
    {"threshold", [](Arguments& a) { a.options.rescale_threshold = 9.f; },
     "rescale_threshold is 9"},
    {"threshold_nan",
     [](Arguments& a) { a.options.rescale_threshold = std::numeric_limits<float>::quiet_NaN(); },
     "rescale_threshold is nan"},
};

INSTANTIATE_TEST_SUITE_P(Attention, Refused, ::testing::ValuesIn(kRefusals),
                         [](const auto& test) { return test.param.name; });

Problem problem(const Arguments& a) {
  return make_problem(a.q, a.k, a.v, a.options, kSms);
}

TEST(AttentionProblem, SmsBeyondTheDeviceAreRefused) {
  Arguments a;
  a.options.num_sms = kSms + 1;
  EXPECT_THROW((void)problem(a), Error);
  a.options.num_sms = kSms;
  EXPECT_GT(problem(a).num_ctas, 0);
}

TEST(AttentionProblem, NothingToDoNeedsNoPointers) {
  Arguments a;
  a.q.num_rows = a.out.num_rows = 0;
  a.q.data = a.out.data = nullptr;
  EXPECT_EQ(problem(a).num_ctas, 0);
  check_output(a.q, a.out);
  Arguments b;
  b.q.num_batches = b.k.num_batches = b.v.num_batches = 0;
  EXPECT_EQ(problem(b).num_ctas, 0);
}

TEST(AttentionProblem, NoKeysStillGiveATileOfZeros) {
  Arguments a;
  a.k.num_rows = a.v.num_rows = 0;
  a.k.data = a.v.data = nullptr;
  const Problem p = problem(a);
  EXPECT_EQ(p.num_keys, 0);
  EXPECT_GT(p.num_ctas, 0);
  EXPECT_EQ(workspace_layout(p).bytes, 0u);
}

TEST(AttentionProblem, ScaleDefaultsToTheRootOfTheHeadDimension) {
  EXPECT_FLOAT_EQ(problem(Arguments{}).scale, 0.08838834764831845f);
}

TEST(AttentionProblem, StridesOfSingleElementsAreFree) {
  Arguments a;
  a.q = TensorView::bshd(address(0x1000), DataType::bf16, 1, 300, 8, 128);
  a.k = a.v = TensorView::bshd(address(0x1000), DataType::bf16, 1, 500, 1, 128);
  a.q.batch_stride = a.k.batch_stride = a.k.head_stride = 7;
  EXPECT_GT(problem(a).num_ctas, 0);
}

TEST(AttentionProblem, APartialLastWaveIsSplitUnlessSwitchedOff) {
  Arguments a;
  a.q = a.k = a.v = TensorView::bshd(address(0x1000), DataType::bf16, 1, 4608, 12, 128);
  const Problem split = problem(a);
  EXPECT_GT(split.order.num_tail_ctas(), 0);
  const WorkspaceLayout layout = workspace_layout(split);
  EXPECT_GT(layout.bytes, 0u);
  EXPECT_THROW(check_workspace(layout, {}), Error);
  EXPECT_THROW(check_workspace(layout, {address(0x10000), layout.bytes - 1}), Error);
  EXPECT_THROW(check_workspace(layout, {address(0x10010), layout.bytes}), Error);
  check_workspace(layout, {address(0x10000), layout.bytes});
  a.options.split_last_wave = false;
  EXPECT_EQ(workspace_layout(problem(a)).bytes, 0u);
}

// Counters of all split tiles fit the part of the workspace that partial results never touch.
TEST(AttentionProblem, CountersFitTheirPlace) {
  for (int sms = 2; sms <= 512; ++sms) {
    Arguments a;
    a.q = a.k = a.v = TensorView::bshd(address(0x1000), DataType::bf16, 1, 4608, 12, 128);
    const Problem p = make_problem(a.q, a.k, a.v, a.options, sms);
    const auto counters = static_cast<std::size_t>(p.order.num_tail_tiles()) * kNumGroups;
    EXPECT_LE(WorkspaceLayout::kArrivalsOffset + counters * sizeof(std::uint32_t),
              WorkspaceLayout::kCounterBytes)
        << sms << " SMs";
  }
}

// The kernel's combining loop relies on it.
TEST(AttentionProblem, OnlyTheFirstPartOfASplitTileMayLieInAnOddSlot) {
  int num_split = 0;
  for (const std::int64_t rows : {300, 777, 1000, 2048, 4416, 4608, 8704}) {
    for (const std::int64_t keys : {1000, 2048, 4608, 8192}) {
      for (const int sms : {7, 66, 131, 132}) {
        Arguments a;
        a.q.num_rows = rows;
        a.k.num_rows = a.v.num_rows = keys;
        const Problem p = make_problem(a.q, a.k, a.v, a.options, sms);
        for (int cta = 0; cta < p.num_ctas; ++cta) {
          for (int i = 0; i < p.order.num_items(cta); ++i) {
            const AttentionItem item = p.order.item(cta, i);
            if (item.tail_idx < 0) continue;
            ++num_split;
            const int slot = p.order.part_slot(cta, item.tail_idx);
            ASSERT_EQ(cta, item.first_cta + item.part_idx);
            ASSERT_TRUE(item.part_idx == 0 || slot == 2 * cta);
            ASSERT_LT(slot, p.order.num_part_slots());
          }
        }
      }
    }
  }
  EXPECT_GT(num_split, 1000);
}

TEST(AttentionProblem, EveryRowHasATile) {
  for (const std::int64_t rows : {1, 127, 128, 129, 256, 4416, 4608}) {
    Arguments a;
    a.q.num_rows = rows;
    const Problem p = problem(a);
    EXPECT_GE(std::int64_t{p.order.num_query_blocks()} * kTileRows, rows);
    EXPECT_EQ(p.order.num_tiles(), p.order.num_query_blocks() * 16);
  }
}

}  // namespace
}  // namespace xstage::attention
