#include "io/file_io.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "xstage/error.hpp"
#include "xstage/files.hpp"

namespace xstage {
namespace {

std::string error_text(int error) {
  return std::generic_category().message(error);
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ > STDERR_FILENO) ::close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void fail_write(const std::filesystem::path& path, int error) {
  throw Error(ErrorCategory::runtime,
              fmt::format("{}: cannot write: {}", path.string(), error_text(error)));
}

[[noreturn]] void fail_exists(const std::filesystem::path& path) {
  throw Error(ErrorCategory::usage, fmt::format("{}: exists; --force replaces it", path.string()));
}

void write_all(int fd, std::string_view text, const std::filesystem::path& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_write(path, errno);
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

// Gives the finished file its name. Without `replace` a file that appeared meanwhile is kept.
int rename_file(const std::string& from, const std::string& to, bool replace) {
  if (replace) return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  constexpr unsigned kNoReplace = 1;  // RENAME_NOREPLACE of linux/fs.h
  if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), kNoReplace) == 0) {
    return 0;
  }
  if (errno != EINVAL && errno != ENOSYS) return errno;
  // This file system cannot do it in one step: link() fails if the name is taken.
  if (::link(from.c_str(), to.c_str()) != 0) return errno;
  ::unlink(from.c_str());
  return 0;
}

}  // namespace

void write_text_file(const std::filesystem::path& path, std::string_view text,
                     Overwrite overwrite) {
  const bool replace = overwrite == Overwrite::yes;
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_directory(status)) fail_write(path, EISDIR);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    // A device or a pipe cannot be renamed onto; it is written in place.
    const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (file.get() < 0) fail_write(path, errno);
    write_all(file.get(), text, path);
    return;
  }
  if (std::filesystem::exists(status) && !replace) fail_exists(path);
  std::string temporary = path.string() + ".XXXXXX";
  const FileDescriptor file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (file.get() < 0) fail_write(path, errno);
  try {
    write_all(file.get(), text, path);
    // mkstemp makes files private; results are as readable as any other file of the user.
    const mode_t mask = ::umask(0);
    ::umask(mask);
    if (::fchmod(file.get(), 0666 & ~mask) != 0) fail_write(path, errno);
    if (::fsync(file.get()) != 0 && errno != EINVAL) fail_write(path, errno);
    const int error = rename_file(temporary, path.string(), replace);
    if (error == EEXIST) fail_exists(path);
    if (error != 0) fail_write(path, error);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

namespace io {

std::string read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  const std::string name = path == "-" ? "standard input" : path.string();
  const FileDescriptor file(path == "-" ? STDIN_FILENO
                                        : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail_file(name, "", fmt::format("cannot open: {}", error_text(errno)));
  struct stat info {};
  if (::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode) &&
      static_cast<std::size_t>(info.st_size) > max_bytes) {
    fail_file(name, "",
              fmt::format("{} MiB, legal is up to {} MiB", info.st_size >> 20, max_bytes >> 20));
  }
  std::string text;
  std::size_t size = 0;
  while (true) {
    constexpr std::size_t kChunk = std::size_t{1} << 18;
    if (text.size() < size + kChunk) text.resize(size + kChunk);
    const ssize_t got = ::read(file.get(), text.data() + size, kChunk);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_file(name, "", fmt::format("cannot read: {}", error_text(errno)));
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
    if (size > max_bytes) {
      fail_file(name, "", fmt::format("more than {} MiB", max_bytes >> 20));
    }
  }
  text.resize(size);
  return text;
}

std::string printable(std::string_view text, std::size_t max_chars) {
  std::string shown;
  for (const char c : text) {
    if (shown.size() >= max_chars) return shown + "...";
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      shown += c;
    } else {
      shown += fmt::format("\\x{:02x}", byte);
    }
  }
  return shown;
}

bool is_utf8(std::string_view text) noexcept {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) continue;
    const int num_more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (lead < 0xc2 || lead > 0xf4) return false;
    char32_t code = lead & (0x3fu >> num_more);
    for (int k = 0; k < num_more; ++k, ++i) {
      if (i >= text.size() || (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return false;
      code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3fu);
    }
    // Longer than needed, a surrogate, or past the last code point.
    if (num_more == 2 && (code < 0x800 || (code >= 0xd800 && code < 0xe000))) return false;
    if (num_more == 3 && (code < 0x10000 || code > 0x10ffff)) return false;
  }
  return true;
}

void fail_file(std::string_view file_name, std::string_view place, std::string_view reason) {
  throw Error(ErrorCategory::bad_file, place.empty()
                                           ? fmt::format("{}: {}", file_name, reason)
                                           : fmt::format("{}:{}: {}", file_name, place, reason));
}

}  // namespace io
}  // namespace xstage
