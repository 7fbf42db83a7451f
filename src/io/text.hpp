// Numbers and tables as people read them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace xstage::io {

[[nodiscard]] std::string format_time(double ns);      // "557 ns", "3.63 us", "42 us", "1.20 ms"
[[nodiscard]] std::string format_bytes(double bytes);  // "512 B", "32 KiB", "23.4 KiB", "4.12 MiB"
[[nodiscard]] std::string format_rate(double bytes_per_ns);  // "372 GB/s"
[[nodiscard]] std::string format_percent(double fraction);   // "0.12 %", "3.5 %", "137 %"
// Three significant digits without an exponent: "0.123", "3.63", "52.5", "372", "11627".
[[nodiscard]] std::string format_number(double value);

// Columns that line up; text to the left, numbers to the right. Every row is one line without
// trailing blanks.
class TextTable {
 public:
  enum class Align { left, right };

  explicit TextTable(std::vector<std::string> header, std::vector<Align> align = {});
  void add(std::vector<std::string> row);
  [[nodiscard]] std::string str() const;

 private:
  std::vector<Align> align_;
  std::vector<std::vector<std::string>> rows_;
};

// Code points of UTF-8 text: what it takes on a terminal for the characters that we write.
[[nodiscard]] std::size_t display_width(std::string_view text) noexcept;

}  // namespace xstage::io
