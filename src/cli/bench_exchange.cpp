// xstage bench exchange: attention with its output exchange, serial and fused, beside attention
// alone.
#include "cli/verb.hpp"
#include "xstage/error.hpp"

namespace xstage::cli {

Action setup_bench_exchange(CLI::App& /*app*/) {
  return [](Console& /*console*/) -> int {
    throw Error(ErrorCategory::not_possible, "the exchange benchmark is not in this build");
  };
}

}  // namespace xstage::cli
