#include "cli/console.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "xstage/error.hpp"

namespace xstage::cli {
namespace {

bool shows_colors(int fd) {
  if (::isatty(fd) == 0) return false;
  const char* no_color = std::getenv("NO_COLOR");  // no-color.org
  if (no_color != nullptr && no_color[0] != '\0') return false;
  const char* term = std::getenv("TERM");
  return term != nullptr && std::string_view(term) != "dumb";
}

void write_stderr(std::string_view text) {
  // Nowhere is left to report a failure to.
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

std::string Console::tone(Tone tone, std::string_view text) const {
  if (tone == Tone::plain || no_color || json || !shows_colors(STDOUT_FILENO)) {
    return std::string(text);
  }
  const char* code = tone == Tone::strong ? "1"
                     : tone == Tone::good ? "32"
                     : tone == Tone::bad  ? "33"
                                          : "2";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

void Console::warn(std::string_view message) const {
  write_stderr(fmt::format("xstage: warning: {}\n", message));
}

void Console::progress(std::string_view message) {
  using namespace std::chrono_literals;
  const auto now = std::chrono::steady_clock::now();
  const bool on_terminal = ::isatty(STDERR_FILENO) != 0;
  // In a log file a line every ten seconds is enough to see that it lives.
  const auto interval = on_terminal ? 200ms : 10s;
  if (now - started_ < 2s || (progress_shown_ && now - last_progress_ < interval)) return;
  last_progress_ = now;
  progress_shown_ = true;
  write_stderr(on_terminal ? fmt::format("\r\x1b[K{}", message) : fmt::format("{}\n", message));
}

void Console::clear_progress() {
  if (progress_shown_ && ::isatty(STDERR_FILENO) != 0) write_stderr("\r\x1b[K");
  progress_shown_ = false;
}

void Console::write(std::string_view text) {
  while (!text.empty() && !stdout_closed_) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE) {
      stdout_closed_ = true;  // the reader has seen enough
      return;
    }
    if (written < 0) {
      throw Error(ErrorCategory::runtime,
                  fmt::format("standard output: {}", std::generic_category().message(errno)));
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void Console::flush() {
  clear_progress();
  write(std::exchange(text_, {}));
}

void Console::finish() {
  if (json) {
    if (!next_.empty()) result_["next"] = next_;
    clear_progress();
    write(io::format_json(result_));
    return;
  }
  if (!next_.empty()) text_ += tone(Tone::faint, "next: " + next_) + "\n";
  flush();
}

void Console::fail(std::string_view message, std::string_view category, int exit_code) {
  flush();
  write_stderr(fmt::format("xstage: error: {}\n", message));
  if (!next_.empty()) write_stderr(fmt::format("next: {}\n", next_));
  if (!json) return;
  Json error = {
      {"error", {{"category", category}, {"exit_code", exit_code}, {"message", message}}}};
  if (!next_.empty()) error["next"] = next_;
  write(io::format_json(error));
}

}  // namespace xstage::cli
