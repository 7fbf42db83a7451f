// The tables that a probe leaves beside its profile. The schema is in docs/measuring.md.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "io/report.hpp"

namespace xstage::io {

struct TablesFile {
  std::vector<ReportTable> tables;      // cells as text; "-" what was not measured
  std::vector<std::string> warnings;    // of the probe: points that stayed noisy, ...
  std::vector<std::string> complaints;  // about the file: members that it should not have
};

// Throws Error(bad_file) naming file, place and reason.
[[nodiscard]] TablesFile parse_tables(std::string_view text, std::string_view file_name);
[[nodiscard]] TablesFile read_tables(const std::filesystem::path& path);

// Where the tables of a profile lie: NAME.tables.json beside NAME.json.
[[nodiscard]] std::filesystem::path tables_beside(const std::filesystem::path& link);

}  // namespace xstage::io
