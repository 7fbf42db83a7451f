// Values of options: sizes, times, lists. All throw Error(usage) that names option, value and what
// is legal.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace xstage::cli {

// A legal range, and why it ends where it ends ("H200 has 132 SMs"); the reason may be empty.
struct Range {
  double min = 0;
  double max = 0;
  std::string reason;
};

// "4096", "32K", "1.5MiB": K, M, G are powers of 1024. Whole bytes only.
[[nodiscard]] double parse_size(std::string_view option, std::string_view text, const Range& range);
// "500", "500ns", "8us", "1.5ms", "2s"; a bare number is nanoseconds.
[[nodiscard]] double parse_time(std::string_view option, std::string_view text, const Range& range);
[[nodiscard]] int parse_count(std::string_view option, std::string_view text, const Range& range);

inline const Range kSizeRange{1, 1099511627776.0, "1 TiB"};
inline const Range kTimeRange{0, 1e12, "1000 s"};

// Parts of a list "1,2,4"; an empty part is an error.
[[nodiscard]] std::vector<std::string> split_list(std::string_view option, std::string_view text);

template <typename Parse>
[[nodiscard]] auto parse_list(std::string_view option, std::string_view text, Parse parse) {
  std::vector<decltype(parse(option, std::string_view()))> values;
  for (const auto& part : split_list(option, text)) values.push_back(parse(option, part));
  return values;
}

// min, min*factor, ... up to max.
[[nodiscard]] std::vector<double> size_sweep(std::string_view min, std::string_view max,
                                             std::string_view factor);

[[noreturn]] void fail_value(std::string_view option, std::string_view text,
                             std::string_view legal);

}  // namespace xstage::cli
