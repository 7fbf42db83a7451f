#include "io/tables_json.hpp"

#include <fmt/format.h>

#include <limits>

#include "io/file_io.hpp"
#include "io/text.hpp"

namespace xstage::io {
namespace {

constexpr std::string_view kSchemaName = "xstage.tables";
constexpr int kSchemaVersion = 1;

std::string cell_text(const JsonCursor& cell) {
  if (cell.is_null()) return "-";
  if (cell.is_text()) return cell.text();
  constexpr double kMost = std::numeric_limits<double>::max();
  return format_number(cell.number(-kMost, kMost));
}

ReportTable read_table(const JsonCursor& json) {
  json.known({"name", "columns", "rows"});
  ReportTable table;
  table.folded = true;
  table.title = json.at("name").text();
  for (const auto& column : json.at("columns").elements()) table.columns.push_back(column.text());
  for (const auto& row : json.at("rows").elements()) {
    std::vector<std::string> cells;
    for (const auto& cell : row.elements()) cells.push_back(cell_text(cell));
    if (cells.size() != table.columns.size()) {
      row.fail(
          fmt::format("{} cells in a table of {} columns", cells.size(), table.columns.size()));
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

}  // namespace

TablesFile parse_tables(std::string_view text, std::string_view file_name) {
  TablesFile file;
  const Json json = parse_json(text, file_name);
  const JsonCursor root(json, file_name, file.complaints);
  if (root.at("schema").text() != kSchemaName) {
    root.at("schema").fail(fmt::format("'{}', these are not tables of a probe ('{}')",
                                       printable(root.at("schema").text()), kSchemaName));
  }
  const int version = root.at("version").whole(0, std::numeric_limits<int>::max());
  if (version != kSchemaVersion) {
    root.at("version").fail(
        fmt::format("schema version {}; this xstage reads {}", version, kSchemaVersion));
  }
  root.known({"schema", "version", "name", "date", "command_line", "warnings", "tables"});
  for (const auto& table : root.at("tables").elements()) file.tables.push_back(read_table(table));
  if (const auto warnings = root.find("warnings")) {
    for (const auto& warning : warnings->elements()) file.warnings.push_back(warning.text());
  }
  return file;
}

TablesFile read_tables(const std::filesystem::path& path) {
  return parse_tables(read_file(path, kMaxProfileBytes), path.string());
}

std::filesystem::path tables_beside(const std::filesystem::path& link) {
  return link.parent_path() / (link.stem().string() + ".tables.json");
}

}  // namespace xstage::io
