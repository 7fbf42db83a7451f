#include "io/timeline.hpp"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <set>

#include "io/json_reader.hpp"

namespace xstage::io {
namespace {

// Row of a span within its rank; senders below the main role of the same SM.
int row_of(const Span& span) {
  return 2 * span.sm + (span.kind == SpanKind::issue ? 1 : 0);
}

std::string json_text(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string format_chrome_trace(const Timeline& timeline) {
  std::string text =
      "{\"displayTimeUnit\": \"ns\", \"otherData\": {\"name\": " + json_text(timeline.name) +
      ", \"source\": " + json_text(timeline.source) + "},\n\"traceEvents\": [\n";
  auto out = std::back_inserter(text);
  std::map<int, std::set<int>> rows;
  for (const Span& span : timeline.spans) rows[span.rank].insert(row_of(span));
  bool first = true;
  const auto separate = [&] {
    if (!first) text += ",\n";
    first = false;
  };
  for (const auto& [rank, of_rank] : rows) {
    separate();
    fmt::format_to(out,
                   R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"rank {}"}}}})",
                   rank, rank);
    for (const int row : of_rank) {
      separate();
      fmt::format_to(
          out, R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"SM {}{}"}}}})",
          rank, row, row / 2, row % 2 == 1 ? " sends" : "");
    }
  }
  for (const Span& span : timeline.spans) {
    separate();
    // The format's times are in us.
    fmt::format_to(
        out,
        R"({{"ph":"X","name":"{}","pid":{},"tid":{},"ts":{:.6f},"dur":{:.6f},"args":{{"task":{}}}}})",
        to_string(span.kind), span.rank, row_of(span), span.start_ns / 1e3,
        (span.end_ns - span.start_ns) / 1e3, span.task);
  }
  text += "\n]}\n";
  return text;
}

}  // namespace xstage::io
