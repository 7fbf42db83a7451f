// The one error type of xstage. Its category tells a caller what can be done about it, and is the
// exit code of the command-line tool.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace xstage {

enum class ErrorCategory : int {
  check_failed = 1,  // a checked condition does not hold: wrong data, a regression
  usage = 2,         // the request itself is impossible; the message names the legal values
  not_possible = 3,  // this machine cannot do it; the message says why
  runtime = 4,       // the GPU, its driver or the operating system failed
  timeout = 5,       // a deadline passed or a peer was lost
  bad_file = 6,      // a file is unreadable, damaged or of another version
};

[[nodiscard]] constexpr std::string_view to_string(ErrorCategory category) noexcept {
  switch (category) {
    case ErrorCategory::check_failed:
      return "check_failed";
    case ErrorCategory::usage:
      return "usage";
    case ErrorCategory::not_possible:
      return "not_possible";
    case ErrorCategory::runtime:
      return "runtime";
    case ErrorCategory::timeout:
      return "timeout";
    case ErrorCategory::bad_file:
      return "bad_file";
  }
  return "unknown";
}

class Error : public std::runtime_error {
 public:
  Error(ErrorCategory category, const std::string& message)
      : std::runtime_error(message), category_(category) {}

  [[nodiscard]] ErrorCategory category() const noexcept { return category_; }
  [[nodiscard]] int exit_code() const noexcept { return static_cast<int>(category_); }

 private:
  ErrorCategory category_;
};

}  // namespace xstage
