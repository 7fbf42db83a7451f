// xstage compare: two link profiles -> same, faster, slower or ambiguous, quantity by quantity.
#include "xstage/compare.hpp"

#include <fmt/format.h>

#include <memory>

#include "cli/link_option.hpp"
#include "cli/values.hpp"
#include "cli/verb.hpp"
#include "io/text.hpp"
#include "xstage/error.hpp"

namespace xstage::cli {
namespace {

struct CompareOptions {
  std::string before;
  std::string after;
  double tolerance_percent = 2;
};

Tone tone_of(Change change) {
  if (change == Change::slower) return Tone::bad;
  return change == Change::faster ? Tone::good : Tone::plain;
}

int run_compare(const CompareOptions& options, Console& console) {
  const LinkFile before = load_link_option(options.before, console);
  const LinkFile after = load_link_option(options.after, console);
  if (!(options.tolerance_percent > 0 && options.tolerance_percent < 100)) {
    throw Error(ErrorCategory::usage, fmt::format("--tolerance {}: legal are percentages between 0 "
                                                  "and 100",
                                                  options.tolerance_percent));
  }
  const auto rows = compare(before.profile, after.profile, options.tolerance_percent / 100);
  const Change verdict = overall(rows);
  io::TextTable table(
      {"kind", "quantity", "before", "after", "unit", "change", "verdict"},
      {io::TextTable::Align::left, io::TextTable::Align::left, io::TextTable::Align::right,
       io::TextTable::Align::right, io::TextTable::Align::left, io::TextTable::Align::right,
       io::TextTable::Align::left});
  Json json = Json::array();
  for (const Comparison& row : rows) {
    const double change = row.after / row.before - 1;
    table.add({row.kind, row.quantity, io::format_number(row.before), io::format_number(row.after),
               row.unit, fmt::format("{:+.1f} %", 100 * change),
               std::string(to_string(row.change))});
    json.push_back({{"kind", row.kind},
                    {"quantity", row.quantity},
                    {"unit", row.unit},
                    {"before", row.before},
                    {"after", row.after},
                    {"verdict", to_string(row.change)}});
  }
  console.print("{} -> {}: {}\n{}", before.profile.name, after.profile.name,
                console.tone(tone_of(verdict), to_string(verdict)), table.str());
  console.result("before", link_identity(before.profile));
  console.result("after", link_identity(after.profile));
  console.result("verdict", to_string(verdict));
  console.result("comparisons", json);
  console.next(verdict == Change::slower
                   ? "xstage doctor, then xstage probe again on an idle machine"
               : verdict == Change::ambiguous ? "xstage probe again: the intervals overlap"
                                              : "nothing to do");
  return verdict == Change::slower ? 1 : 0;
}

}  // namespace

Action setup_compare(CLI::App& app) {
  auto options = std::make_shared<CompareOptions>();
  app.add_option("before", options->before, "Link profile: path or shipped name")->required();
  app.add_option("after", options->after, "Link profile to judge: path or name")->required();
  app.add_option("--tolerance", options->tolerance_percent,
                 "Difference that does not matter, in percent")
      ->type_name("PERCENT")
      ->capture_default_str();
  app.footer(
      "example: xstage compare h200-nv18 link.json\n"
      "exit code 1 if anything is slower by more than the tolerance and beyond its interval");
  return [options](Console& console) { return run_compare(*options, console); };
}

}  // namespace xstage::cli
