// xstage plan: a workload -> candidates with predicted times, what holds each, and a choice.
#include "xstage/plan.hpp"

#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "cli/link_option.hpp"
#include "cli/values.hpp"
#include "cli/verb.hpp"
#include "io/result_json.hpp"
#include "io/text.hpp"
#include "io/timeline.hpp"
#include "xstage/error.hpp"

namespace xstage::cli {
namespace {

struct PlanVerbOptions {
  std::string workload;
  std::string link;
  std::string costs;
  std::string ranks = "2";
  std::string kind;
  std::string link_rate;
  std::string capacity;
  std::string timeline;
  bool list = false;
  bool force = false;
};

double parse_rate(std::string_view option, const std::string& text) {
  std::size_t end = 0;
  double value = 0;
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  std::string_view unit = std::string_view(text).substr(end);
  if (end == 0 || (!unit.empty() && unit != "GB/s") || !(value >= 0.001 && value <= 100'000)) {
    fail_value(option, text, "0.001..100000 (GB/s = B/ns)");
  }
  return value;
}

PlanOptions plan_options(const PlanVerbOptions& options) {
  PlanOptions result;
  if (!options.kind.empty()) result.kind = parse_store_kind(options.kind);
  if (!options.link_rate.empty()) result.drain_rate = parse_rate("--link-rate", options.link_rate);
  if (!options.capacity.empty()) {
    result.capacity_bytes = parse_size("--capacity", options.capacity, {64, 1e12, ""});
  }
  result.keep_timelines = !options.timeline.empty();
  return result;
}

// ---- text ----

std::string in_us(double ns) {
  const double us = ns / 1e3;
  return us < 100 ? fmt::format("{:.1f}", us) : fmt::format("{:.0f}", us);
}

std::string describe_send(const Send& send) {
  std::string pace =
      send.steps_per_chunk == 0 ? "" : fmt::format(", one per {} steps", send.steps_per_chunk);
  return fmt::format("{} in chunks of {}{}", to_string(send.kind),
                     io::format_bytes(send.chunk_bytes), pace);
}

void print_candidates(const Plan& plan, Console& console) {
  using enum io::TextTable::Align;
  io::TextTable table({"  candidate", "us", "exposed", "bound", "held by"},
                      {left, right, right, right, left});
  for (std::size_t i = 0; i < plan.candidates.size(); ++i) {
    const Candidate& c = plan.candidates[i];
    table.add({fmt::format("{} {}", i == plan.choice ? '*' : ' ', c.name), in_us(c.total_ns),
               in_us(c.exposed_ns), in_us(c.bound_ns), c.held_by});
  }
  console.print("{}", table.str());
}

void print_plan(const Plan& plan, const TileCosts& costs, const LinkProfile& link,
                Console& console) {
  console.print("{}\n", console.tone(Tone::strong,
                                     fmt::format("{} on {} rank{}", plan.workload, plan.num_ranks,
                                                 plan.num_ranks == 1 ? "" : "s")));
  console.print("{}\n", plan.shape);
  print_candidates(plan, console);
  console.print("choice: {}\n", plan.reason);
  if (!plan.comparison.empty()) console.print("        {}\n", plan.comparison);
  if (plan.num_ranks > 1) console.print("send:   {}\n", describe_send(plan.chosen().send));
  console.print("without exchange {} us.   link {}, tile costs {}{}\n", in_us(plan.compute_ns),
                link.name, costs.name,
                plan.estimated ? console.tone(Tone::bad, " (estimated, not measured)") : "");
  for (const auto& note : plan.notes) console.print("note: {}\n", note);
}

void put_result(const Plan& plan, const TileCosts& costs, const LinkProfile& link,
                Console& console) {
  const Json result = io::plan_json(plan, costs, link);
  for (const auto& [key, value] : result.items()) console.result(key, value);
}

int list_workloads(Console& console) {
  Json names = Json::array();
  io::TextTable table({"workload", "what"},
                      {io::TextTable::Align::left, io::TextTable::Align::left});
  for (const auto& name : shipped_workloads()) {
    const Workload workload = read_workload(find_workload(name));
    table.add({name, workload.description});
    names.push_back(
        {{"name", name}, {"description", workload.description}, {"source", workload.source}});
  }
  console.print("{}", table.str());
  console.result("workloads", std::move(names));
  console.next("xstage plan flux.1-dev-1024 --link h200-nv18 --ranks 2");
  return 0;
}

int run_plan(const PlanVerbOptions& options, Console& console) {
  if (options.list) return list_workloads(console);
  if (options.workload.empty()) {
    throw Error(ErrorCategory::usage,
                "NAME or FILE of a workload is missing; --list shows those that ship");
  }
  const int ranks = parse_count("--ranks", options.ranks, {1, Workload::kMaxRanks, ""});
  std::vector<std::string> warnings;
  const Workload workload = read_workload(find_workload(options.workload), &warnings);
  const TileCosts costs = read_costs(find_costs(options.costs), &warnings);
  for (const auto& warning : warnings) console.warn(warning);
  const LinkProfile link = load_link_option(options.link, console).profile;
  const Plan plan = xstage::plan(workload, link, costs, ranks, plan_options(options));
  if (!options.timeline.empty()) {
    const Candidate& chosen = plan.chosen();
    if (chosen.timeline.spans.empty()) {
      console.warn(fmt::format("no timeline: '{}' was not simulated", chosen.name));
    } else {
      write_text_file(options.timeline, io::format_chrome_trace(chosen.timeline),
                      options.force ? Overwrite::yes : Overwrite::no);
    }
  }
  print_plan(plan, costs, link, console);
  put_result(plan, costs, link, console);
  if (!options.timeline.empty()) {
    console.next(fmt::format("open {} in ui.perfetto.dev", options.timeline));
  } else {
    console.next(fmt::format("xstage plan {} --link {} --ranks {} --timeline plan.trace.json",
                             options.workload, link.name, ranks));
  }
  return 0;
}

}  // namespace

Action setup_plan(CLI::App& app) {
  auto options = std::make_shared<PlanVerbOptions>();
  app.add_option("workload", options->workload, "Name of a workload that ships, or a file")
      ->type_name("NAME|FILE");
  add_link_option(app, options->link);
  app.add_option("--ranks", options->ranks, "GPUs that share the work")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--costs", options->costs, "Tile costs, by name or file; left out: h200")
      ->type_name("NAME|FILE");
  app.add_option("--kind", options->kind,
                 "Store kind; left out: tensor, bulk or register16, as measured")
      ->type_name("KIND");
  app.add_option("--link-rate", options->link_rate, "What if the link drained so much, in GB/s")
      ->type_name("RATE");
  app.add_option("--capacity", options->capacity, "What if an SM's stage took so much")
      ->type_name("SIZE");
  app.add_option("--timeline", options->timeline, "Write the choice's timeline as a Chrome trace")
      ->type_name("FILE");
  app.add_flag("--force", options->force, "Replace that file");
  app.add_flag("--list", options->list, "Show the workloads that ship");
  return [options](Console& console) { return run_plan(*options, console); };
}

}  // namespace xstage::cli
