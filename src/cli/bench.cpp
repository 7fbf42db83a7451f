// xstage bench WHAT: our kernels beside what they have to beat, in one run.
//
// A new benchmark is a file of its own with `Action setup_bench_NAME(CLI::App&)` and a line in
// benches.def.
#include <memory>
#include <utility>
#include <vector>

#include "cli/verb.hpp"

namespace xstage::cli {

#define XSTAGE_BENCH(name, summary) Action setup_bench_##name(CLI::App& app);
#include "cli/benches.def"
#undef XSTAGE_BENCH

Action setup_bench(CLI::App& app) {
  struct BenchInfo {
    const char* name;
    const char* summary;
    Action (*setup)(CLI::App&);
  };
  constexpr BenchInfo kBenches[] = {
#define XSTAGE_BENCH(name, summary) {#name, summary, setup_bench_##name},
#include "cli/benches.def"
#undef XSTAGE_BENCH
  };
  app.require_subcommand(1);
  auto actions = std::make_shared<std::vector<std::pair<CLI::App*, Action>>>();
  for (const auto& info : kBenches) {
    CLI::App* bench = app.add_subcommand(info.name, info.summary);
    bench->fallthrough();  // --json and the like belong to the verb
    bench->group("Benchmarks");
    bench->footer("");
    Action action = info.setup(*bench);
    actions->emplace_back(bench, std::move(action));
  }
  return [actions](Console& console) {
    for (const auto& [bench, action] : *actions) {
      if (!bench->parsed()) continue;
      console.next("xstage bench " + bench->get_name() + " --help");  // unless it knows better
      return action(console);
    }
    return 0;
  };
}

}  // namespace xstage::cli
