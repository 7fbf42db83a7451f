// Where a verb says things: results on stdout, everything else on stderr.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "io/json_reader.hpp"

namespace xstage::cli {

using io::Json;

enum class Tone { plain, strong, good, bad, faint };

class Console {
 public:
  Console() = default;
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // Options that every verb has.
  bool json = false;
  bool no_color = false;

  std::string command_line;  // as results name it

  // Text of the result; not shown with --json. Kept until flush() or finish().
  template <typename... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    if (!json) text_ += fmt::format(format, std::forward<Args>(args)...);
  }
  // `text` in a colour, where stdout shows colours.
  [[nodiscard]] std::string tone(Tone tone, std::string_view text) const;

  // The result for --json: merged into one object that is written by finish().
  void result(std::string_view key, Json value) { result_[std::string(key)] = std::move(value); }

  // The next useful step: last line of the output, and "next" in JSON.
  void next(std::string step) { next_ = std::move(step); }

  void warn(std::string_view message) const;
  // One line about what is being done, replaced by the next on a terminal; at most five a second,
  // and only after the first two seconds.
  void progress(std::string_view message);

  // Another process speaks for all: nothing more goes to stdout.
  void hush() { stdout_closed_ = true; }

  void flush();   // writes what was printed so far
  void finish();  // writes the rest, the next step, the JSON
  // An error: one line on stderr, in JSON also on stdout.
  void fail(std::string_view message, std::string_view category, int exit_code);

 private:
  void write(std::string_view text);
  void clear_progress();

  std::string text_;
  std::string next_;
  Json result_ = Json::object();
  bool stdout_closed_ = false;
  bool progress_shown_ = false;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_progress_ = started_;
};

}  // namespace xstage::cli
