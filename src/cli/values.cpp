#include "cli/values.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>

#include "io/file_io.hpp"
#include "xstage/error.hpp"

namespace xstage::cli {
namespace {

struct Suffix {
  std::string_view name;
  double factor;
};

template <std::size_t N>
std::optional<double> parse_number(std::string_view text, const Suffix (&suffixes)[N]) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || !std::isfinite(value)) return std::nullopt;
  const std::string_view suffix(rest, static_cast<std::size_t>(end - rest));
  for (const auto& known : suffixes) {
    if (suffix == known.name) return value * known.factor;
  }
  return std::nullopt;
}

std::string describe(const Range& range) {
  std::string text = fmt::format("{}..{}", range.min, range.max);
  if (!range.reason.empty()) text += fmt::format(" ({})", range.reason);
  return text;
}

double in_range(std::string_view option, std::string_view text, double value, const Range& range,
                std::string_view unit) {
  if (!(value >= range.min && value <= range.max)) {
    fail_value(option, text, describe(range) + (unit.empty() ? "" : fmt::format(" {}", unit)));
  }
  return value;
}

}  // namespace

void fail_value(std::string_view option, std::string_view text, std::string_view legal) {
  throw Error(ErrorCategory::usage, fmt::format("{} {}: legal {}", option,
                                                text.empty() ? "''" : io::printable(text), legal));
}

double parse_size(std::string_view option, std::string_view text, const Range& range) {
  constexpr double kKibi = 1024;
  constexpr Suffix kSuffixes[] = {{"", 1},
                                  {"B", 1},
                                  {"K", kKibi},
                                  {"k", kKibi},
                                  {"KiB", kKibi},
                                  {"M", kKibi * kKibi},
                                  {"MiB", kKibi * kKibi},
                                  {"G", kKibi * kKibi * kKibi},
                                  {"GiB", kKibi * kKibi * kKibi}};
  const auto bytes = parse_number(text, kSuffixes);
  if (!bytes || *bytes != std::floor(*bytes)) {
    fail_value(option, text, "are whole bytes such as 4096, 32K, 1.5M (powers of 1024)");
  }
  return in_range(option, text, *bytes, range, "bytes");
}

double parse_time(std::string_view option, std::string_view text, const Range& range) {
  constexpr Suffix kSuffixes[] = {{"", 1}, {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
  const auto ns = parse_number(text, kSuffixes);
  if (!ns) fail_value(option, text, "are times such as 500 (ns), 8us, 1.5ms");
  return in_range(option, text, *ns, range, "ns");
}

int parse_count(std::string_view option, std::string_view text, const Range& range) {
  constexpr Suffix kSuffixes[] = {{"", 1}};
  const auto value = parse_number(text, kSuffixes);
  if (!value || *value != std::floor(*value)) fail_value(option, text, describe(range));
  return static_cast<int>(in_range(option, text, *value, range, ""));
}

std::vector<std::string> split_list(std::string_view option, std::string_view text) {
  std::vector<std::string> parts;
  const std::string_view whole = text;
  while (true) {
    const std::size_t comma = text.find(',');
    parts.emplace_back(text.substr(0, comma));
    if (parts.back().empty()) fail_value(option, whole, "are values with commas between them");
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

std::vector<double> size_sweep(std::string_view min, std::string_view max,
                               std::string_view factor) {
  const double first = parse_size("--min", min, kSizeRange);
  const double last = parse_size("--max", max, {first, kSizeRange.max, "--min to 1 TiB"});
  constexpr Suffix kNoSuffix[] = {{"", 1}};
  const auto step = parse_number(factor, kNoSuffix);
  if (!step || !(*step >= 1.01 && *step <= 1e6)) fail_value("--factor", factor, "1.01..1000000");
  std::vector<double> values;
  for (double value = first; value <= last * (1 + 1e-9); value *= *step) {
    values.push_back(std::round(value));
  }
  return values;
}

}  // namespace xstage::cli
