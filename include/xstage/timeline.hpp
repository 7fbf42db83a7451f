// A timeline: what every role did when. The simulator writes one, and so does anything that
// measures; src/io/timeline.cpp turns it into a Chrome trace (chrome://tracing, ui.perfetto.dev).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace xstage {

enum class SpanKind : std::uint8_t {
  compute,  // main loop
  epilogue,
  wait_data,  // the next task's inputs are not there
  wait_send,  // the role is held by its own stores: a full outbox, a full stage, visibility
  wait_load,  // loads are late because the SM's stage is full
  issue,      // a chunk on its way from the outbox into the stage
  barrier,
};
inline constexpr int kNumSpanKinds = 7;

[[nodiscard]] constexpr std::string_view to_string(SpanKind kind) noexcept {
  constexpr std::string_view kNames[kNumSpanKinds] = {
      "compute", "epilogue", "wait for data", "wait for send", "late loads", "issue", "barrier"};
  return kNames[static_cast<int>(kind)];
}

struct Span {
  std::int32_t rank = 0;
  std::int32_t sm = 0;
  SpanKind kind = SpanKind::compute;
  std::int32_t task = -1;  // index in the order, -1: none
  double start_ns = 0;
  double end_ns = 0;
};

struct Timeline {
  std::string name;    // of the candidate or run
  std::string source;  // "simulated" or "measured"
  std::vector<Span> spans;
};

}  // namespace xstage
