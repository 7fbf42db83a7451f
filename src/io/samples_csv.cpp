// The CSV of samples: a header row, one sample a row, an empty cell for what was not measured.
// Lines that start with '#' are comments; "# key: value" with a known key says where it is from.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_map>

#include "io/file_io.hpp"
#include "io/metadata.hpp"
#include "xstage/error.hpp"
#include "xstage/files.hpp"

namespace xstage {
namespace {

using io::fail_file;
using io::printable;

constexpr std::string_view kSchemaKey = "schema";
constexpr std::string_view kSchemaName = "xstage.samples";
constexpr std::size_t kMaxColumns = 256;
constexpr std::size_t kMaxWarnings = 20;

struct NumberColumn {
  std::string_view name;
  double Sample::*member;
};

// Columns that every file has come first, in the order in which files are written.
constexpr std::array<NumberColumn, 11> kNumberColumns{{
    {"gap_ns", &Sample::gap_ns},
    {"issue_ns", &Sample::issue_ns},
    {"period_ns", &Sample::period_ns},
    {"nominal_gap_ns", &Sample::nominal_gap_ns},
    {"issue_p10_ns", &Sample::issue_p10_ns},
    {"issue_p90_ns", &Sample::issue_p90_ns},
    {"issue_slowest_ns", &Sample::issue_slowest_ns},
    {"accept_ns", &Sample::accept_ns},
    {"visible_ns", &Sample::visible_ns},
    {"visible_slowest_ns", &Sample::visible_slowest_ns},
    {"compute_gap_ns", &Sample::compute_gap_ns},
}};
constexpr std::array<std::string_view, 7> kRequired{"experiment", "kind",     "producers", "bytes",
                                                    "gap_ns",     "issue_ns", "period_ns"};

std::string_view trim(std::string_view text) noexcept {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::string unquote(std::string_view cell) {
  std::string text;
  for (std::size_t i = 1; i + 1 < cell.size(); ++i) {
    text += cell[i];
    if (cell[i] == '"' && cell[i + 1] == '"') ++i;
  }
  return text;
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view file_name) : rest_(text), file_name_(file_name) {
    if (rest_.substr(0, 3) == "\xef\xbb\xbf") rest_.remove_prefix(3);
  }

  SampleFile parse() {
    while (next_line()) {
      if (trim(line_).empty()) continue;
      if (line_.front() == '#') {
        read_comment(trim(line_.substr(1)));
      } else if (columns_.empty()) {
        read_header();
      } else {
        read_row();
      }
    }
    if (columns_.empty()) fail("", fmt::format("no header row; it begins {}", required_list()));
    if (file_.samples.empty()) fail("", "no samples after the header row");
    if (num_warnings_ > kMaxWarnings) {
      file_.warnings.push_back(
          fmt::format("{}: {} more warnings like these", file_name_, num_warnings_ - kMaxWarnings));
    }
    return std::move(file_);
  }

 private:
  [[noreturn]] void fail(std::string_view place, std::string_view reason) const {
    fail_file(file_name_, place, reason);
  }
  [[nodiscard]] std::string at_line() const { return fmt::format("{}", line_no_); }
  [[nodiscard]] std::string at_column(std::size_t column_idx) const {
    return fmt::format("{}, column {} ({})", line_no_, column_idx + 1,
                       column_idx < columns_.size() ? columns_[column_idx] : "?");
  }
  static std::string required_list() { return fmt::format("{}", fmt::join(kRequired, ",")); }

  void warn(std::string message) {
    if (++num_warnings_ <= kMaxWarnings) file_.warnings.push_back(std::move(message));
  }

  bool next_line() {
    if (rest_.empty()) return false;
    const std::size_t end = rest_.find('\n');
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    ++line_no_;
    if (!line_.empty() && line_.back() == '\r') line_.remove_suffix(1);
    return true;
  }

  // Cells of the current line; a quoted cell may hold commas, not line ends.
  void split_line() {
    cells_.clear();
    std::size_t pos = 0;
    while (true) {
      if (cells_.size() == kMaxColumns) fail(at_line(), fmt::format("over {} cells", kMaxColumns));
      std::size_t end = 0;
      if (pos < line_.size() && line_[pos] == '"') {
        end = pos + 1;
        while (end < line_.size() && (line_[end] != '"' || line_.substr(end + 1, 1) == "\"")) {
          end += line_[end] == '"' ? 2 : 1;
        }
        if (end >= line_.size()) fail(at_line(), "a quoted cell is not closed");
        end = std::min(line_.find(',', end), line_.size());
        const std::string_view quoted = trim(line_.substr(pos, end - pos));
        if (quoted.back() != '"') fail(at_line(), "text after a quoted cell");
        cells_.push_back(unquote(quoted));
      } else {
        end = std::min(line_.find(',', pos), line_.size());
        cells_.emplace_back(trim(line_.substr(pos, end - pos)));
      }
      if (end == line_.size()) return;
      pos = end + 1;
    }
  }

  void read_comment(std::string_view comment) {
    const std::size_t colon = comment.find(':');
    if (colon == std::string_view::npos) return;
    const std::string_view key = trim(comment.substr(0, colon));
    const std::string_view value = trim(comment.substr(colon + 1));
    if (key == kSchemaKey) return check_schema(value);
    for (const auto& field : io::metadata_fields(file_.name, file_.link, file_.source,
                                                 file_.destination, file_.provenance)) {
      if (field.name == key) return set_field(field, value);
    }
    // Any other comment is the writer's own.
  }

  void check_schema(std::string_view value) const {
    const std::string expected = fmt::format("{}/{}", kSchemaName, SampleFile::kSchemaVersion);
    if (value != expected) {
      fail(at_line(),
           fmt::format("schema '{}'; this version reads {}", printable(value), expected));
    }
  }

  void set_field(const io::MetadataField& field, std::string_view value) const {
    if (auto* const* text = std::get_if<std::string*>(&field.value)) {
      if (!io::is_utf8(value)) fail(at_line(), fmt::format("{} is not UTF-8", field.name));
      (*text)->assign(value);
    } else if (auto* const* type = std::get_if<Endpoint::Type*>(&field.value)) {
      if (!io::parse_endpoint_type(value, **type)) {
        fail(at_line(), fmt::format("{} '{}': legal are {}", field.name, printable(value),
                                    io::kEndpointWords));
      }
    } else {
      const auto number = parse_number(value, at_line(), 0, field.max);
      if (auto* const* whole = std::get_if<int*>(&field.value)) {
        if (number != std::floor(number)) fail(at_line(), "not a whole number");
        **whole = static_cast<int>(number);
      } else {
        *std::get<double*>(field.value) = number;
      }
    }
  }

  [[nodiscard]] double parse_number(std::string_view cell, std::string_view place, double min,
                                    double max) const {
    double value = 0;
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (error == std::errc::result_out_of_range) {
      fail(place,
           fmt::format("'{}' is out of range: legal {:g} to {:g}", printable(cell), min, max));
    }
    if (error != std::errc{} || end != cell.data() + cell.size() || !std::isfinite(value)) {
      fail(place, fmt::format("'{}' is not a number{}", printable(cell),
                              std::isnan(value) ? "; an unmeasured cell is left empty" : ""));
    }
    if (!(value >= min && value <= max)) {
      fail(place, fmt::format("{} is out of range: legal {:g} to {:g}", printable(cell), min, max));
    }
    return value;
  }

  void read_header() {
    split_line();
    if (cells_.size() == 1 && line_.find_first_of(";\t") != std::string_view::npos) {
      fail(at_line(), "cells are separated by commas");
    }
    for (const auto& cell : cells_) {
      if (cell.empty()) fail(at_line(), fmt::format("column {} has no name", columns_.size() + 1));
      const std::string name = printable(cell);
      if (!column_of_.try_emplace(name, columns_.size()).second) {
        fail(at_line(), fmt::format("column '{}' twice", name));
      }
      columns_.push_back(name);
    }
    for (const auto required : kRequired) {
      if (!column(required)) {
        fail(at_line(),
             fmt::format("column '{}' is missing; every file has {}", required, required_list()));
      }
    }
    for (const auto& name : columns_) {
      if (!is_known(name)) {
        warn(fmt::format("{}:{}: column '{}' is not known and not read", file_name_, line_no_,
                         name));
      }
    }
    for (std::size_t i = 0; i < kNumberColumns.size(); ++i) {
      number_idx_[i] = column(kNumberColumns[i].name);
    }
    experiment_idx_ = *column("experiment");
    kind_idx_ = *column("kind");
    producers_idx_ = *column("producers");
    bytes_idx_ = *column("bytes");
    directions_idx_ = column("directions");
    round_idx_ = column("round");
  }

  [[nodiscard]] std::optional<std::size_t> column(std::string_view name) const {
    const auto found = column_of_.find(std::string(name));
    return found == column_of_.end() ? std::nullopt : std::optional(found->second);
  }

  static bool is_known(std::string_view name) {
    return std::find(kRequired.begin(), kRequired.end(), name) != kRequired.end() ||
           name == "directions" || name == "round" ||
           std::any_of(kNumberColumns.begin(), kNumberColumns.end(),
                       [name](const NumberColumn& known) { return known.name == name; });
  }

  [[nodiscard]] int whole_number(std::size_t column_idx, int min, int max) const {
    const double value = parse_number(cells_[column_idx], at_column(column_idx), min, max);
    if (value != std::floor(value)) {
      fail(at_column(column_idx),
           fmt::format("'{}' is not a whole number", printable(cells_[column_idx])));
    }
    return static_cast<int>(value);
  }

  template <typename Parse>
  auto word(std::size_t column_idx, Parse convert) const {
    try {
      return convert(printable(cells_[column_idx]));
    } catch (const Error& error) {
      fail(at_column(column_idx), error.what());
    }
  }

  void read_row() {
    split_line();
    if (cells_.size() != columns_.size()) {
      fail(at_line(), fmt::format("{} cells, the header has {}", cells_.size(), columns_.size()));
    }
    Sample sample;
    sample.experiment = word(experiment_idx_, parse_experiment);
    sample.kind = word(kind_idx_, parse_store_kind);
    sample.num_producers = whole_number(producers_idx_, 1, io::kMaxProducers);
    sample.bytes = parse_number(cells_[bytes_idx_], at_column(bytes_idx_), 1, io::kMaxBytes);
    for (std::size_t i = 0; i < kNumberColumns.size(); ++i) {
      if (!number_idx_[i] || cells_[*number_idx_[i]].empty()) continue;
      sample.*kNumberColumns[i].member =
          parse_number(cells_[*number_idx_[i]], at_column(*number_idx_[i]), 0, io::kMaxTimeNs);
    }
    if (directions_idx_ && !cells_[*directions_idx_].empty()) {
      sample.num_directions = whole_number(*directions_idx_, 1, 2);
    }
    if (round_idx_ && !cells_[*round_idx_].empty()) {
      sample.round_idx = whole_number(*round_idx_, 0, std::numeric_limits<int>::max());
    }
    complete(sample);
    file_.samples.push_back(sample);
  }

  // period = issue + gap by definition: one of the three may be left empty.
  void complete(Sample& sample) {
    if (sample.experiment == Experiment::isolated) {
      if (!measured(sample.issue_ns) && !measured(sample.accept_ns) &&
          !measured(sample.visible_ns)) {
        fail(at_line(), "an isolated burst without issue_ns, accept_ns or visible_ns");
      }
      return;
    }
    const int num_known =
        measured(sample.gap_ns) + measured(sample.issue_ns) + measured(sample.period_ns);
    if (num_known < 2) {
      fail(at_line(), "a periodic sample needs two of gap_ns, issue_ns and period_ns");
    }
    if (!measured(sample.gap_ns)) sample.gap_ns = sample.period_ns - sample.issue_ns;
    if (!measured(sample.issue_ns)) sample.issue_ns = sample.period_ns - sample.gap_ns;
    if (!measured(sample.period_ns)) sample.period_ns = sample.issue_ns + sample.gap_ns;
    if (sample.gap_ns < 0 || sample.issue_ns < 0) {
      fail(at_line(), "period_ns is less than one of its parts");
    }
    const double sum = sample.issue_ns + sample.gap_ns;
    if (num_known == 3 && std::abs(sum - sample.period_ns) > 0.02 * sample.period_ns + 2) {
      warn(fmt::format("{}:{}: issue_ns + gap_ns = {:.0f}, but period_ns = {:.0f}", file_name_,
                       line_no_, sum, sample.period_ns));
    }
  }

  std::string_view rest_;
  std::string_view file_name_;
  std::string_view line_;
  std::size_t line_no_ = 0;
  std::size_t num_warnings_ = 0;
  std::vector<std::string> cells_;
  std::vector<std::string> columns_;
  std::unordered_map<std::string, std::size_t> column_of_;
  std::array<std::optional<std::size_t>, kNumberColumns.size()> number_idx_;
  std::size_t experiment_idx_ = 0;
  std::size_t kind_idx_ = 0;
  std::size_t producers_idx_ = 0;
  std::size_t bytes_idx_ = 0;
  std::optional<std::size_t> directions_idx_;
  std::optional<std::size_t> round_idx_;
  SampleFile file_;
};

// Line ends would end the comment; everything else is kept.
std::string one_line(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return line;
}

}  // namespace

SampleFile parse_samples(std::string_view text, std::string_view file_name) {
  SampleFile file = Parser(text, file_name).parse();
  file.hash = sha256_hex(text);
  return file;
}

SampleFile read_samples(const std::filesystem::path& path) {
  const std::string text = io::read_file(path, io::kMaxSampleFileBytes);
  const bool is_stdin = path == "-";
  SampleFile file = parse_samples(text, is_stdin ? "standard input" : path.string());
  if (file.name.empty()) file.name = is_stdin ? "samples" : path.stem().string();
  return file;
}

std::string format_samples(const SampleFile& file) {
  std::string text =
      fmt::format("# {}: {}/{}\n", kSchemaKey, kSchemaName, SampleFile::kSchemaVersion);
  SampleFile copy = file;
  for (const auto& field :
       io::metadata_fields(copy.name, copy.link, copy.source, copy.destination, copy.provenance)) {
    std::string value;
    if (auto* const* words = std::get_if<std::string*>(&field.value)) {
      value = one_line(**words);
    } else if (auto* const* type = std::get_if<Endpoint::Type*>(&field.value)) {
      value = io::to_string(**type);
    } else if (auto* const* whole = std::get_if<int*>(&field.value)) {
      if (**whole != 0) value = fmt::format("{}", **whole);
    } else if (const double number = *std::get<double*>(field.value); number != 0) {
      value = fmt::format("{}", number);
    }
    if (!value.empty()) text += fmt::format("# {}: {}\n", field.name, value);
  }

  // Optional columns appear if any sample holds one.
  std::vector<NumberColumn> columns;
  for (std::size_t i = 0; i < kNumberColumns.size(); ++i) {
    const auto& column = kNumberColumns[i];
    const auto holds = [&column](const Sample& sample) { return measured(sample.*column.member); };
    if (i < 3 || std::any_of(file.samples.begin(), file.samples.end(), holds)) {
      columns.push_back(column);
    }
  }
  const bool has_rounds = std::any_of(file.samples.begin(), file.samples.end(),
                                      [](const Sample& sample) { return sample.round_idx >= 0; });
  text += "experiment,kind,producers,bytes";
  for (const auto& column : columns) text += fmt::format(",{}", column.name);
  text += has_rounds ? ",directions,round\n" : ",directions\n";
  for (const auto& sample : file.samples) {
    text += fmt::format("{},{},{},{}", to_string(sample.experiment), to_string(sample.kind),
                        sample.num_producers, sample.bytes);
    for (const auto& column : columns) {
      const double value = sample.*column.member;
      text += measured(value) ? fmt::format(",{}", value) : ",";
    }
    text += fmt::format(",{}", sample.num_directions);
    if (has_rounds) text += sample.round_idx >= 0 ? fmt::format(",{}", sample.round_idx) : ",";
    text += '\n';
  }
  return text;
}

}  // namespace xstage
