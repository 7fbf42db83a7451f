// From what senders write down to a timeline. No GPU is needed.
#include "attention/exchange_trace.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace xstage::attention {
namespace {

constexpr int kGroups = 2;
constexpr int kItems = 3;

TEST(ExchangeTrace, GivesEachGroupItsSpans) {
  std::vector<ExchangeEvent> events(2 * kGroups * kItems);
  for (ExchangeEvent& e : events) e.tile = 0;
  // SM 1, group 0: two tiles, the second without pause; the third item was never taken.
  events[kGroups * kItems] = {7, 1, 1000, 5000, 5100, 5300, 6200};
  events[kGroups * kItems + 1] = {9, 2, 6300, 9000, 9050, 9050, 9900};
  // SM 1, group 1: a part that another SM has combined, then a tile.
  events[kGroups * kItems + kItems] = {7, 0, 1100, 0, 0, 0, 0};
  events[kGroups * kItems + kItems + 1] = {9, 1, 4000, 8000, 8100, 8200, 9000};
  const Timeline timeline = exchange_timeline(events, kGroups, kItems, 3);
  EXPECT_EQ(timeline.source, "measured");
  struct Expected {
    int task;
    SpanKind kind;
    double start, end;
  };
  const Expected expected[] = {
      {7, SpanKind::compute, 0, 4000},      {7, SpanKind::issue, 4000, 4100},
      {7, SpanKind::wait_send, 4100, 4300}, {7, SpanKind::barrier, 4300, 5200},
      {9, SpanKind::compute, 4000, 8000},   {9, SpanKind::issue, 8000, 8050},
      {9, SpanKind::barrier, 8050, 8900},   {9, SpanKind::compute, 100, 7000},
      {9, SpanKind::issue, 7000, 7100},     {9, SpanKind::wait_send, 7100, 7200},
      {9, SpanKind::barrier, 7200, 8000}};
  ASSERT_EQ(timeline.spans.size(), std::size(expected));
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    const Span& span = timeline.spans[i];
    EXPECT_EQ(span.rank, 3);
    EXPECT_EQ(span.sm, 1);
    EXPECT_EQ(span.task, expected[i].task) << i;
    EXPECT_EQ(span.kind, expected[i].kind) << i;
    EXPECT_EQ(span.start_ns, expected[i].start) << i;
    EXPECT_EQ(span.end_ns, expected[i].end) << i;
  }
}

TEST(ExchangeTrace, NothingWrittenIsNoSpan) {
  const std::vector<ExchangeEvent> events(4 * kGroups * kItems);
  EXPECT_TRUE(exchange_timeline(events, kGroups, kItems, 0).spans.empty());
  EXPECT_TRUE(exchange_timeline({}, kGroups, kItems, 0).spans.empty());
}

}  // namespace
}  // namespace xstage::attention
