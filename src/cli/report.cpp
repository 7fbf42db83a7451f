// xstage report: a link profile and its samples -> one HTML file with charts that opens offline.
#include "io/report.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/link_option.hpp"
#include "cli/provenance.hpp"
#include "cli/verb.hpp"
#include "io/tables_json.hpp"
#include "xstage/error.hpp"
#include "xstage/version.hpp"

namespace xstage::cli {
namespace {

namespace fs = std::filesystem;

struct ReportOptions {
  std::string link;
  std::string samples;
  std::string tables;
  std::string out = "report.html";
  bool force = false;
};

// The samples that belong to the profile, unless others are named. A profile whose samples are gone
// still has a report, of the model's lines alone.
std::vector<Sample> samples_of(const ReportOptions& options, const LinkFile& link,
                               Console& console) {
  fs::path path = options.samples;
  if (path.empty()) {
    if (link.profile.samples_file.empty()) return {};
    path = link.path.parent_path() / link.profile.samples_file;
    if (!fs::exists(path)) {
      console.warn(
          fmt::format("{}: not found; the report shows no measured points", path.string()));
      return {};
    }
  }
  const SampleFile file = read_samples(path);
  for (const auto& warning : file.warnings) console.warn(warning);
  return file.samples;
}

// Those beside the profile, unless others are named.
io::TablesFile tables_of(const ReportOptions& options, const LinkFile& link, Console& console) {
  const fs::path beside = io::tables_beside(link.path);
  if (options.tables.empty() && !fs::exists(beside)) return {};
  io::TablesFile file = io::read_tables(options.tables.empty() ? beside : fs::path(options.tables));
  for (const auto& complaint : file.complaints) console.warn(complaint);
  return file;
}

int run_report(const ReportOptions& options, Console& console) {
  const LinkFile link = load_link_option(options.link, console);
  io::Report report;
  report.profile = link.profile;
  report.samples = samples_of(options, link, console);
  io::TablesFile tables = tables_of(options, link, console);
  report.tables = std::move(tables.tables);
  report.warnings = std::move(tables.warnings);
  report.generated = fmt::format("{}, xstage {} ({}).", utc_now(), version(), source_commit());
  write_text_file(options.out, io::render_report(report),
                  options.force ? Overwrite::yes : Overwrite::no);
  console.print("{}   {}, {} samples, {} tables{}\n", options.out, link.profile.name,
                report.samples.size(), report.tables.size(),
                io::has_charts() ? "" : "; no charts: built without libjs-chart.js");
  console.result("report", options.out);
  console.result("link", link_identity(link.profile));
  console.result("num_samples", report.samples.size());
  console.result("num_tables", report.tables.size());
  console.result("has_charts", io::has_charts());
  console.next(fmt::format("open {} in a browser; it needs no network", options.out));
  return 0;
}

}  // namespace

Action setup_report(CLI::App& app) {
  auto options = std::make_shared<ReportOptions>();
  add_link_option(app, options->link);
  app.add_option("--samples", options->samples,
                 "CSV of samples to draw; left out: those that the profile names")
      ->type_name("FILE");
  app.add_option("--tables", options->tables,
                 "Tables of a probe to show; left out: NAME.tables.json beside the profile")
      ->type_name("FILE");
  app.add_option("--out", options->out, "The HTML file to write")
      ->type_name("FILE")
      ->capture_default_str();
  app.add_flag("--force", options->force, "Replace that file");
  app.footer("example: xstage report --link h200-nv18 --out h200.html");
  return [options](Console& console) { return run_report(*options, console); };
}

}  // namespace xstage::cli
