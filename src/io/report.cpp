#include "io/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/metadata.hpp"
#include "io/text.hpp"
#include "xstage/model.hpp"

namespace xstage::io {

// Written at build time from src/io/report/ and the charting library.
extern const std::string_view kReportCss;
extern const std::string_view kReportScript;
extern const std::string_view kChartLibrary;

namespace {

constexpr double kKibi = 1024;
constexpr double kTileBytes = 32 * kKibi;

std::string end_name(const Endpoint& end) {
  return end.name.empty() ? std::string(to_string(end.type)) : end.name;
}

std::string card(std::string_view label, std::string_view value, std::string_view note) {
  return fmt::format("<div class=card><span>{}</span><b>{}</b><small>{}</small></div>\n",
                     escape_html(label), escape_html(value), escape_html(note));
}

std::string interval_note(const std::optional<Interval>& interval, double unit,
                          std::string_view name) {
  if (!interval) return "no interval";
  return fmt::format("95 %: {} to {} {}", format_number(interval->low / unit),
                     format_number(interval->high / unit), name);
}

std::string kind_cards(const KindFit& kind, int num_sms) {
  const LinkParams& p = kind.params;
  std::string html = fmt::format("<h3>{}</h3><div class=cards>\n", to_string(p.kind));
  html += card("drain rate R", format_rate(p.drain_rate),
               interval_note(kind.drain_rate_interval, 1, "GB/s"));
  if (p.capacity_mean_bytes) {
    html += card("capacity q of one SM", format_bytes(*p.capacity_mean_bytes),
                 interval_note(kind.capacity_mean_interval, kKibi, "KiB"));
  } else {
    html += card("capacity q of one SM", "unknown", "no burst filled the stage");
  }
  const int count = num_sms > 0 ? num_sms : 1;
  const Prediction tile = predict(p, {count, kTileBytes, 0});
  html += card("32 KiB, empty stage", format_time(tile.t0_ns), "issue time, one SM alone");
  html +=
      card("32 KiB, no gap", format_time(tile.issue_ns), fmt::format("issue time, {} SMs", count));
  html += card("gap without waiting", format_time(tile.onset_gap_ns),
               fmt::format("32 KiB, {} SMs", count));
  if (kind.held_out && kind.held_out->burst_gap.num_points > 0) {
    const auto& e = kind.held_out->burst_gap;
    html += card("error, held out", format_percent(e.median),
                 fmt::format("median of {}; p95 {}", e.num_points, format_percent(e.p95)));
  }
  return html + "</div>\n";
}

std::string table_html(const std::vector<std::string>& columns,
                       const std::vector<std::vector<std::string>>& rows) {
  std::string html = "<div class=scroll><table><thead><tr>";
  for (const auto& column : columns) html += fmt::format("<th>{}</th>", escape_html(column));
  html += "</tr></thead><tbody>\n";
  for (const auto& row : rows) {
    html += "<tr>";
    for (const auto& cell : row) {
      html +=
          fmt::format("<td{}>{}</td>", cell.size() > 48 ? " class=long" : "", escape_html(cell));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string report_table(const ReportTable& table) {
  std::string html = fmt::format("<h2>{}</h2>\n", escape_html(table.title));
  if (!table.note.empty()) html += fmt::format("<p>{}</p>\n", escape_html(table.note));
  return html + table_html(table.columns, table.rows);
}

std::string folded_tables(const std::vector<ReportTable>& tables) {
  std::string html;
  for (const auto& table : tables) {
    if (!table.folded) continue;
    html += fmt::format("<details><summary>{}, {} rows</summary>{}{}</details>\n",
                        escape_html(table.title), table.rows.size(),
                        table.note.empty() ? "" : "<p>" + escape_html(table.note) + "</p>",
                        table_html(table.columns, table.rows));
  }
  if (html.empty()) return html;
  return "<h2>Measured besides</h2>\n<p>Tables of the probe. docs/measuring.md says what their "
         "columns are.</p>\n" +
         html;
}

std::string warning_list(const std::vector<std::string>& warnings) {
  if (warnings.empty()) return "";
  std::string html = "<h2>What the probe warned of</h2>\n<ul>\n";
  for (const auto& warning : warnings) html += fmt::format("<li>{}</li>\n", escape_html(warning));
  return html + "</ul>\n";
}

std::string errors_cell(const ErrorSummary& e) {
  if (e.num_points == 0) return "-";
  const std::string median = format_percent(e.median);
  return fmt::format("{} / {}", median.substr(0, median.find(' ')), format_percent(e.p95));
}

std::string error_table(const std::vector<KindFit>& kinds) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& kind : kinds) {
    if (!kind.held_out) continue;
    const HeldOut& h = *kind.held_out;
    rows.push_back(
        {std::string(to_string(kind.params.kind)), fmt::format("{}", h.burst_gap.num_points),
         fmt::format("{:.0f} %", 100 * h.near_onset_share), errors_cell(h.burst_gap),
         errors_cell(h.period), errors_cell(h.unbounded), errors_cell(h.coupled),
         errors_cell(h.alpha_beta),
         h.burst_gap.num_points == 0
             ? "-"
             : fmt::format("{}: {}", format_percent(h.burst_gap.worst), h.burst_gap.worst_point)});
  }
  if (rows.empty()) return "<p>Every sample was fitted, so no error can be given.</p>\n";
  return table_html({"kind", "points", "near the knee", "burst-gap", "its period", "unbounded",
                     "coupled", "alpha-beta", "worst point"},
                    rows);
}

std::string provenance_table(const LinkProfile& profile) {
  const Provenance& p = profile.provenance;
  std::vector<std::vector<std::string>> rows;
  const auto add = [&rows](const char* name, const std::string& value) {
    if (!value.empty()) rows.push_back({name, value});
  };
  add("profile", profile.name);
  add("SHA-256", profile.hash);
  add("source",
      fmt::format(
          "{}{}", end_name(profile.source),
          profile.source.num_sms > 0 ? fmt::format(", {} SMs", profile.source.num_sms) : ""));
  if (profile.source.sm_clock_mhz > 0) {
    add("SM clock", fmt::format("{:.0f} MHz", profile.source.sm_clock_mhz));
  }
  add("destination", end_name(profile.destination));
  add("link", profile.link);
  add("measured", p.date);
  add("driver", p.driver);
  add("runtime", p.runtime);
  add("host", p.host);
  add("note", p.note);
  add("samples", profile.samples_file);
  add("command", p.command_line);
  add("tool", p.commit.empty() ? p.tool_version : fmt::format("{} ({})", p.tool_version, p.commit));
  return table_html({"what", "value"}, rows);
}

std::string unidentified_list(const std::vector<KindFit>& kinds) {
  std::string html;
  for (const auto& kind : kinds) {
    for (const auto& entry : kind.unidentified) {
      html += fmt::format("<li>{}, {}: {}</li>\n", to_string(kind.params.kind),
                          escape_html(entry.quantity), escape_html(entry.reason));
    }
  }
  return html.empty() ? "" : "<p>What these samples cannot say:</p><ul>\n" + html + "</ul>\n";
}

// JSON inside a script element: "</" would end it.
std::string embedded(const Json& json) {
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  for (std::size_t at = 0; (at = text.find("</", at)) != std::string::npos; at += 3) {
    text.replace(at, 2, "<\\/");
  }
  return text;
}

std::string chart_box(std::string_view id) {
  return fmt::format(
      "<figure class=chart><figcaption></figcaption><div class=plot><canvas id=\"{}\" "
      "role=img></canvas></div></figure>\n",
      id);
}

struct Charts {
  Json by_id = Json::object();
  std::string add(const std::string& id, Json chart) {
    by_id[id] = std::move(chart);
    return chart_box(id);
  }
};

std::string chart_section(const Report& report, Charts& charts) {
  const auto& kinds = report.profile.kinds;
  const int num_sms = report.profile.source.num_sms;
  const std::string grid =
      kinds.size() == 3 ? "<div class=\"grid three\">\n" : "<div class=grid>\n";
  std::string html =
      "<h2>Steady state</h2><p>A producer stores a burst, does something else for the gap, and "
      "stores again. Below the knee the stage is full and issue waits until there is room; past it "
      "issue costs the same however busy the link is. Filled points were fitted, rings were held "
      "out.</p>" +
      grid;
  for (const auto& kind : kinds) {
    html += charts.add(fmt::format("steady-{}", to_string(kind.params.kind)),
                       steady_state_chart(kind, report.samples, num_sms));
  }
  html +=
      "</div><h2>One burst into an idle link</h2><p>A burst that fits is taken at once, although "
      "it needs far longer to arrive. What exceeds the stage is waited for, and as shares differ, "
      "the slowest producer waits longer than the mean.</p>" +
      grid;
  for (const auto& kind : kinds) {
    html += charts.add(fmt::format("isolated-{}", to_string(kind.params.kind)),
                       isolated_chart(kind, report.samples, num_sms));
  }
  html += "</div>\n";
  std::string capacity;
  for (const auto& kind : kinds) {
    if (kind.capacity_at_k.empty()) continue;
    capacity +=
        charts.add(fmt::format("capacity-{}", to_string(kind.params.kind)), capacity_chart(kind));
  }
  if (!capacity.empty()) {
    html +=
        "<h2>What one SM may have in flight</h2><p>If the buffer sat at the link, each SM's share "
        "would fall as more SMs store (dashed). Where the points stay nearly level instead, it "
        "sits in or near the SM.</p>" +
        grid + capacity + "</div>\n";
  }
  if (!report.plan_charts.empty()) {
    html +=
        "<h2>Plans</h2><p>What the exchange of results adds to a kernel, by the order and the pace "
        "in which tiles are sent, and when the first SMs compute and send. Dashed: references, not "
        "to run. Simulated with this link; serial exchanges as measured.</p><div class=grid>\n";
    for (std::size_t i = 0; i < report.plan_charts.size(); ++i) {
      html += charts.add(fmt::format("plan-{}", i), report.plan_charts[i]);
    }
    html += "</div>\n";
  }
  return html;
}

std::string library_notice() {
  if (!has_charts()) return "";
  return "Charts: Chart.js, embedded (c) Chart.js contributors, MIT licence.";
}

}  // namespace

bool has_charts() noexcept {
  return !kChartLibrary.empty();
}

std::string escape_html(std::string_view text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

std::string render_report(const Report& report) {
  const LinkProfile& profile = report.profile;
  Charts charts;
  std::string body = fmt::format(
      "<header><h1>{}</h1><p class=pair>{} &rarr; {}{}</p>{}</header>\n", escape_html(profile.name),
      escape_html(end_name(profile.source)), escape_html(end_name(profile.destination)),
      profile.link.empty() ? "" : " over " + escape_html(profile.link),
      report.origin.empty() ? ""
                            : fmt::format("<p class=origin>{}</p>", escape_html(report.origin)));
  body +=
      "<p>A remote store is accepted long before its bytes arrive. Between the two it waits in a "
      "hidden, finite stage. While the stage has room, storing costs the issuer next to nothing; "
      "once it is full, issue proceeds at the rate at which the link drains it.</p>\n";
  if (!has_charts()) {
    body +=
        "<p class=origin>No charts: xstage was built without the charting library (Debian and "
        "Ubuntu: libjs-chart.js). Everything else is here.</p>\n";
  }
  for (const auto& kind : profile.kinds) body += kind_cards(kind, profile.source.num_sms);
  if (has_charts()) body += chart_section(report, charts);
  body +=
      "<h2>How far off</h2><p>Points that no parameter has seen. |issue time predicted &minus; "
      "measured| in % of the measured period (isolated bursts: of the time until the bytes are "
      "visible), median / 95th percentile.</p>\n";
  if (has_charts() && std::any_of(profile.kinds.begin(), profile.kinds.end(), [](const KindFit& k) {
        return k.held_out && k.held_out->burst_gap.num_points > 0;
      })) {
    body += "<div class=wide>" + charts.add("errors", error_chart(profile.kinds)) + "</div>\n";
  }
  body += error_table(profile.kinds) + unidentified_list(profile.kinds);
  for (const auto& table : report.tables) {
    if (!table.folded) body += report_table(table);
  }
  body += folded_tables(report.tables) + warning_list(report.warnings);
  body += "<h2>Where the numbers are from</h2>\n" + provenance_table(profile);
  body += fmt::format("<footer>{} {}</footer>\n", escape_html(report.generated), library_notice());

  std::string html =
      "<!doctype html>\n<html lang=en><head><meta charset=utf-8>\n"
      "<meta name=viewport content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=color-scheme content=\"light dark\">\n";
  html += fmt::format("<title>{} - xstage</title>\n<style>\n{}</style></head>\n<body><main>\n{}",
                      escape_html(profile.name), kReportCss, body);
  html += "</main>\n";
  if (has_charts()) {
    html += fmt::format("<script type=\"application/json\" id=charts>{}</script>\n",
                        embedded(charts.by_id));
    html += "<script>\n";
    html += kChartLibrary;
    html += "\n</script>\n<script>\n";
    html += kReportScript;
    html += "</script>\n";
  }
  return html + "</body></html>\n";
}

}  // namespace xstage::io
