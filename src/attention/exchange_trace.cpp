#include "attention/exchange_trace.hpp"

#include <algorithm>
#include <limits>

namespace xstage::attention {
namespace {

std::uint64_t first_time(std::span<const ExchangeEvent> events) {
  std::uint64_t first = std::numeric_limits<std::uint64_t>::max();
  for (const ExchangeEvent& e : events) {
    if (e.taken_ns != 0) first = std::min(first, e.taken_ns);
  }
  return first;
}

}  // namespace

Timeline exchange_timeline(std::span<const ExchangeEvent> events, int num_groups, int max_items,
                           int rank) {
  Timeline timeline;
  timeline.name = "fused attention and exchange";
  timeline.source = "measured";
  const std::uint64_t origin = first_time(events);
  Span span;
  span.rank = rank;
  const auto add = [&](SpanKind kind, std::uint64_t start, std::uint64_t end) {
    if (start == 0 || end <= start) return;
    span.kind = kind;
    span.start_ns = static_cast<double>(start - origin);
    span.end_ns = static_cast<double>(end - origin);
    timeline.spans.push_back(span);
  };
  const auto per_sm = static_cast<std::size_t>(num_groups) * static_cast<std::size_t>(max_items);
  for (std::size_t first = 0; first + per_sm <= events.size(); first += per_sm) {
    span.sm = static_cast<std::int32_t>(first / per_sm);
    for (int group = 0; group < num_groups; ++group) {
      std::uint64_t begin = 0;  // of the tile under way
      for (int item = 0; item < max_items; ++item) {
        const std::size_t at = first + static_cast<std::size_t>(group * max_items + item);
        const ExchangeEvent& e = events[at];
        if (e.taken_ns == 0) break;
        span.task = e.tile;
        if (begin == 0) begin = e.taken_ns;
        if (e.finished_ns == 0) continue;  // a part that another CTA has combined
        add(SpanKind::compute, begin, e.finished_ns);
        add(SpanKind::issue, e.finished_ns, e.accepted_ns);
        add(SpanKind::wait_send, e.accepted_ns, e.read_ns);
        add(SpanKind::barrier, e.read_ns, e.visible_ns);
        begin = e.finished_ns;
      }
    }
  }
  return timeline;
}

}  // namespace xstage::attention
