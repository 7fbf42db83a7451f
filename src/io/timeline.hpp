// Timelines as Chrome traces: load the file in chrome://tracing or ui.perfetto.dev.
#pragma once

#include <string>

#include "xstage/timeline.hpp"

namespace xstage::io {

// One process per rank, two rows per SM: its main role, and its sender.
[[nodiscard]] std::string format_chrome_trace(const Timeline& timeline);

}  // namespace xstage::io
