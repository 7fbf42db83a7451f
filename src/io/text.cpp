#include "io/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace xstage::io {
namespace {

// Three significant digits; zeros after the point only where the digits are not the whole value.
std::string three_digits(double value) {
  const double size = std::abs(value);
  const int digits = size < 0.9995 ? 3 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  const double scaled = value * std::pow(10, digits);
  std::string text = fmt::format("{:.{}f}", value, digits);
  const bool exact = std::abs(scaled - std::round(scaled)) < 1e-9 * std::max(1.0, std::abs(scaled));
  if (exact && digits > 0) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text == "-0" ? "0" : text;
}

}  // namespace

std::string format_number(double value) {
  return std::isfinite(value) ? three_digits(value) : std::isnan(value) ? "-" : "unbounded";
}

std::string format_time(double ns) {
  if (!std::isfinite(ns)) return format_number(ns);
  const double size = std::abs(ns);
  if (size < 999.5) return fmt::format("{:.0f} ns", ns);
  if (size < 999.5e3) return three_digits(ns / 1e3) + " us";
  if (size < 999.5e6) return three_digits(ns / 1e6) + " ms";
  return three_digits(ns / 1e9) + " s";
}

std::string format_bytes(double bytes) {
  constexpr double kKibi = 1024;
  if (!std::isfinite(bytes)) return format_number(bytes);
  const double size = std::abs(bytes);
  if (size < kKibi) return fmt::format("{:.0f} B", bytes);
  if (size < kKibi * kKibi) return three_digits(bytes / kKibi) + " KiB";
  if (size < kKibi * kKibi * kKibi) return three_digits(bytes / kKibi / kKibi) + " MiB";
  return three_digits(bytes / kKibi / kKibi / kKibi) + " GiB";
}

std::string format_rate(double bytes_per_ns) {
  return format_number(bytes_per_ns) + " GB/s";
}

std::string format_percent(double fraction) {
  if (!std::isfinite(fraction)) return format_number(fraction);
  const double percent = 100 * fraction;
  const double size = std::abs(percent);
  return fmt::format("{:.{}f} %", percent, size < 0.995 ? 2 : size < 9.95 ? 1 : 0);
}

std::size_t display_width(std::string_view text) noexcept {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

TextTable::TextTable(std::vector<std::string> header, std::vector<Align> align)
    : align_(std::move(align)) {
  align_.resize(header.size(), Align::right);
  rows_.push_back(std::move(header));
}

void TextTable::add(std::vector<std::string> row) {
  row.resize(rows_.front().size());
  rows_.push_back(std::move(row));
}

std::string TextTable::str() const {
  std::vector<std::size_t> width(align_.size());
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      width[i] = std::max(width[i], display_width(row[i]));
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(width[i] - display_width(row[i]), ' ');
      if (i > 0) line += "  ";
      line += align_[i] == Align::left ? row[i] + padding : padding + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

}  // namespace xstage::io
