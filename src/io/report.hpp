// The HTML report: one file that opens offline. Pure: data in, text out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/json_reader.hpp"
#include "xstage/link_profile.hpp"
#include "xstage/plan.hpp"
#include "xstage/samples.hpp"

namespace xstage::io {

// A table of any content, shown after the charts.
struct ReportTable {
  std::string title;
  std::string note;  // under the title; may be empty
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  bool folded = false;  // shown when the reader opens it
};

struct Report {
  LinkProfile profile;
  std::vector<Sample> samples;    // may be empty: then predictions alone are drawn
  std::vector<Json> plan_charts;  // of plan_ranks_chart() and timeline_chart()
  std::vector<ReportTable> tables;
  std::vector<std::string> warnings;  // of the probe
  std::string generated;              // date and tool, one line
  std::string origin;                 // "not this machine", ...; may be empty
};

[[nodiscard]] std::string render_report(const Report& report);

// False if the build found no charting library: the report then has its tables alone.
[[nodiscard]] bool has_charts() noexcept;

// ---- inside the report ----

// One chart as the page's script draws it: {title, subtitle, x, y, series: [...]}.
[[nodiscard]] Json steady_state_chart(const KindFit& kind, const std::vector<Sample>& samples,
                                      int num_sms);
[[nodiscard]] Json isolated_chart(const KindFit& kind, const std::vector<Sample>& samples,
                                  int num_sms);
[[nodiscard]] Json capacity_chart(const KindFit& kind);
[[nodiscard]] Json error_chart(const std::vector<KindFit>& kinds);

// What exchange adds, by candidate, against the number of ranks; plans of one workload, at least
// one.
[[nodiscard]] Json plan_ranks_chart(const std::vector<Plan>& plans);
// What the first SMs of rank 0 did when.
[[nodiscard]] Json timeline_chart(const Timeline& timeline, int num_sms);

[[nodiscard]] std::string escape_html(std::string_view text);

}  // namespace xstage::io
