// xstage demo: from measured samples to a fit, its errors and a report, on data that ships.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <system_error>

#include "cli/fit_view.hpp"
#include "cli/link_option.hpp"
#include "cli/provenance.hpp"
#include "cli/verb.hpp"
#include "io/report.hpp"
#include "io/text.hpp"
#include "xstage/error.hpp"
#include "xstage/plan.hpp"
#include "xstage/topology.hpp"
#include "xstage/version.hpp"

namespace xstage::cli {
namespace {

namespace fs = std::filesystem;
constexpr double kTileBytes = 32 * 1024;

struct DemoOptions {
  std::string samples = "h200-nv18";
  std::string out = "demo";
  bool force = false;
};

fs::path samples_path(const std::string& name) {
  if (name.find('/') != std::string::npos || name.ends_with(".csv") || name == "-") return name;
  for (const auto& folder : shipped_profile_directories()) {
    if (fs::exists(folder / (name + ".csv"))) return folder / (name + ".csv");
  }
  throw Error(ErrorCategory::usage,
              fmt::format("--samples {}: legal are a CSV file, h200-nv18, h200-host-pcie5", name));
}

// The path as short as it can be said from here.
std::string shown(const fs::path& path) {
  std::error_code error;
  const fs::path relative = fs::relative(path, fs::current_path(error), error);
  const bool shorter = !error && !relative.empty() && *relative.begin() != "..";
  return shorter ? relative.string() : path.string();
}

std::string value_with_half_width(double value, const std::optional<Interval>& interval,
                                  double unit) {
  std::string text = io::format_number(value / unit);
  if (interval) {
    // Two digits of an uncertainty are all that it is good for.
    const double half = (interval->high - interval->low) / 2 / unit;
    text += fmt::format(" ±{:.{}f}", half, half < 0.095 ? 2 : half < 9.95 ? 1 : 0);
  }
  return text;
}

std::string fit_line(const KindFit& kind) {
  const LinkParams& p = kind.params;
  const std::string capacity =
      p.capacity_mean_bytes
          ? value_with_half_width(*p.capacity_mean_bytes, kind.capacity_mean_interval, 1024) +
                " KiB/SM"
          : "unknown: no burst filled the stage";
  return fmt::format("{:<11} R {} GB/s   q {}   T0(32 KiB) {}", to_string(p.kind),
                     value_with_half_width(p.drain_rate, kind.drain_rate_interval, 1), capacity,
                     io::format_time(issue_time_empty(p, kTileBytes)));
}

std::string held_out_line(const KindFit& kind) {
  const HeldOut& h = *kind.held_out;
  return fmt::format("{:<11} {:>2} points   burst-gap {}   unbounded {}   coupled {}",
                     to_string(kind.params.kind), h.burst_gap.num_points,
                     median_and_p95(h.burst_gap), median_and_p95(h.unbounded),
                     median_and_p95(h.coupled));
}

std::string worst_line(const std::vector<KindFit>& kinds) {
  const KindFit* worst = nullptr;
  for (const auto& kind : kinds) {
    if (!kind.held_out || kind.held_out->burst_gap.num_points == 0) continue;
    if (worst == nullptr || kind.held_out->burst_gap.worst > worst->held_out->burst_gap.worst) {
      worst = &kind;
    }
  }
  if (worst == nullptr) return "no held-out points";
  return fmt::format("worst {}: {}, {}", io::format_percent(worst->held_out->burst_gap.worst),
                     to_string(worst->params.kind), worst->held_out->burst_gap.worst_point);
}

struct DemoPlan {
  const char* workload;
  int num_ranks;
};
constexpr DemoPlan kDemoPlans[] = {{"flux.1-dev-1024", 2}, {"hunyuanimage-3-moe-fp8", 8}};

// What the fitted link is worth: plans of two workloads that ship.
std::vector<Plan> make_plans(const LinkProfile& profile) {
  std::vector<Plan> plans;
  const TileCosts costs = read_costs(find_costs(""));
  for (const auto& [workload, num_ranks] : kDemoPlans) {
    plans.push_back(plan(read_workload(find_workload(workload)), profile, costs, num_ranks));
  }
  return plans;
}

// The first workload against the number of GPUs, and its choice on two of them as a timeline.
std::vector<io::Json> plan_charts(const LinkProfile& profile) {
  const TileCosts costs = read_costs(find_costs(""));
  const Workload workload = read_workload(find_workload(kDemoPlans[0].workload));
  PlanOptions options;
  options.keep_timelines = true;
  std::vector<Plan> plans;
  for (const int num_ranks : {2, 4, 8}) {
    plans.push_back(plan(workload, profile, costs, num_ranks, options));
  }
  std::vector<io::Json> charts = {io::plan_ranks_chart(plans)};
  const Timeline& timeline = plans.front().chosen().timeline;
  if (!timeline.spans.empty()) charts.push_back(io::timeline_chart(timeline, 6));
  return charts;
}

std::string plan_line(const Plan& plan) {
  const Candidate& chosen = plan.chosen();
  return fmt::format("{}, {} GPUs: {}, {:.1f}/{:.0f} us exposed", plan.workload, plan.num_ranks,
                     chosen.name, chosen.exposed_ns / 1e3, chosen.total_ns / 1e3);
}

io::ReportTable plan_table(const Plan& plan) {
  io::ReportTable table;
  table.title = fmt::format("Plan: {} on {} GPUs", plan.workload, plan.num_ranks);
  table.note = fmt::format("{}. Choice: {}.{}", plan.shape, plan.reason,
                           plan.estimated ? " Tile costs are an estimate, not measured." : "");
  table.columns = {"candidate", "us", "exposed us", "no faster than", "held by"};
  for (const auto& c : plan.candidates) {
    table.rows.push_back({c.name, fmt::format("{:.1f}", c.total_ns / 1e3),
                          fmt::format("{:.1f}", c.exposed_ns / 1e3),
                          fmt::format("{:.1f}", c.bound_ns / 1e3), c.held_by});
  }
  return table;
}

// Why shipped numbers are shown, and of which machine.
std::string origin_line(const Topology& topology, const SampleFile& samples) {
  const std::string date = samples.provenance.date.empty() ? "" : ", " + samples.provenance.date;
  return fmt::format("{}: shipped measurements{} (not this machine)",
                     topology.gpus.empty() ? "no GPU here" : "a demonstration, nothing is measured",
                     date);
}

void write_outputs(const DemoOptions& options, LinkProfile& profile, const SampleFile& samples,
                   const std::vector<Plan>& plans, const std::string& origin) {
  std::error_code error;
  fs::create_directories(options.out, error);
  if (error) {
    throw Error(ErrorCategory::runtime,
                fmt::format("{}: cannot create: {}", options.out, error.message()));
  }
  const Overwrite overwrite = options.force ? Overwrite::yes : Overwrite::no;
  const fs::path folder = options.out;
  const std::string text = format_link(profile);
  profile.hash = sha256_hex(text);
  write_text_file(folder / "link.json", text, overwrite);
  io::Report report;
  report.profile = profile;
  report.samples = samples.samples;
  report.plan_charts = plan_charts(profile);
  for (const auto& plan : plans) report.tables.push_back(plan_table(plan));
  report.origin = origin;
  report.generated = fmt::format("{}, xstage {} ({}).", utc_now(), version(), source_commit());
  write_text_file(folder / "report.html", io::render_report(report), overwrite);
}

int run_demo(const DemoOptions& options, Console& console) {
  const auto start = std::chrono::steady_clock::now();
  const fs::path path = samples_path(options.samples);
  const SampleFile samples = read_samples(path);
  for (const auto& warning : samples.warnings) console.warn(warning);
  LinkProfile profile = profile_from_samples(samples, Fit{});
  const std::string origin = origin_line(discover(), samples);
  console.print("{}   {}\n", console.tone(Tone::strong, fmt::format("xstage {}", version())),
                origin);
  console.print("              {}\n", describe_pair(profile));
  profile.kinds = fit(samples.samples).kinds;
  stamp(profile.provenance, console.command_line);
  profile.samples_file = shown(path);

  console.print("[1/4] samples   {}, {} rows, {} store kinds\n", shown(path),
                samples.samples.size(), profile.kinds.size());
  const char* label = "[2/4] fit    ";
  for (const auto& kind : profile.kinds) {
    console.print("{}   {}\n", label, fit_line(kind));
    label = "             ";
  }
  label = "[3/4] held out";
  for (const auto& kind : profile.kinds) {
    if (!kind.held_out) continue;
    console.print("{}  {}\n", label, held_out_line(kind));
    label = "              ";
  }
  console.print("                error in % of the period, median / p95;  {}\n",
                worst_line(profile.kinds));
  console.flush();
  const std::vector<Plan> plans = make_plans(profile);
  label = "[4/4] plans   ";
  for (const auto& plan : plans) {
    console.print("{}  {}\n", label, plan_line(plan));
    label = "              ";
  }

  write_outputs(options, profile, samples, plans, origin);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const fs::path folder = options.out;
  console.print("report          {}   opens offline, {:.1f} s{}\n",
                (folder / "report.html").string(), seconds.count(),
                io::has_charts() ? "" : "; no charts: built without libjs-chart.js");
  console.result("samples", shown(path));
  console.result("link", Json::parse(format_link(profile)));
  console.result("link_file", (folder / "link.json").string());
  console.result("report", (folder / "report.html").string());
  console.next(fmt::format("xstage predict --link {} --kind bulk --bytes 32K --gap 8us",
                           (folder / "link.json").string()));
  return 0;
}

}  // namespace

Action setup_demo(CLI::App& app) {
  auto options = std::make_shared<DemoOptions>();
  app.add_option("--samples", options->samples, "Samples that ship, or a CSV of yours")
      ->type_name("NAME|FILE")
      ->capture_default_str();
  app.add_option("--out", options->out, "Folder for link.json and report.html")
      ->type_name("FOLDER")
      ->capture_default_str();
  app.add_flag("--force", options->force, "Replace files that exist there");
  app.footer("example: xstage demo --out build/demo --force");
  return [options](Console& console) { return run_demo(*options, console); };
}

}  // namespace xstage::cli
