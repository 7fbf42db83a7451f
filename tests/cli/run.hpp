// Runs the built tool as a user would and keeps what it said.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace xstage::test {

struct Outcome {
  int exit_code = -1;  // 128 + signal if it was killed
  std::string out;
  std::string err;
};

struct RunOptions {
  std::string input{};                     // standard input
  std::string stdout_to{};                 // a path instead of capturing
  bool close_stdout = false;               // a pipe that nobody reads
  std::vector<std::string> environment{};  // "NAME=value", added
};

namespace detail {

class TemporaryFile {
 public:
  TemporaryFile() : path_("/tmp/xstage-run.XXXXXX"), fd_(::mkstemp(path_.data())) {
    if (fd_ < 0) throw std::runtime_error("mkstemp");
    ::unlink(path_.c_str());
  }
  ~TemporaryFile() { ::close(fd_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  void fill(const std::string& text) const {
    if (::write(fd_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      throw std::runtime_error("write");
    }
    ::lseek(fd_, 0, SEEK_SET);
  }
  [[nodiscard]] std::string content() const {
    ::lseek(fd_, 0, SEEK_SET);
    std::string text;
    std::array<char, 65536> chunk{};
    for (ssize_t got = 0; (got = ::read(fd_, chunk.data(), chunk.size())) > 0;) {
      text.append(chunk.data(), static_cast<std::size_t>(got));
    }
    return text;
  }

 private:
  std::string path_;
  int fd_;
};

}  // namespace detail

inline Outcome run_tool(const std::vector<std::string>& arguments, const RunOptions& options = {}) {
  const detail::TemporaryFile in;
  const detail::TemporaryFile out;
  const detail::TemporaryFile err;
  in.fill(options.input);
  std::vector<char*> argv;
  std::string tool = XSTAGE_TOOL_PATH;
  argv.push_back(tool.data());
  std::vector<std::string> copies = arguments;
  for (auto& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);

  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork");
  if (child == 0) {
    ::dup2(in.fd(), STDIN_FILENO);
    ::dup2(err.fd(), STDERR_FILENO);
    int stdout_fd = out.fd();
    if (!options.stdout_to.empty()) stdout_fd = ::open(options.stdout_to.c_str(), O_WRONLY);
    if (options.close_stdout) {
      int ends[2];
      if (::pipe(ends) != 0) ::_exit(126);
      ::close(ends[0]);
      stdout_fd = ends[1];
    }
    ::dup2(stdout_fd, STDOUT_FILENO);
    for (const auto& variable : options.environment) ::putenv(const_cast<char*>(variable.c_str()));
    ::execv(tool.c_str(), argv.data());
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
  }
  Outcome outcome;
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = out.content();
  outcome.err = err.content();
  return outcome;
}

}  // namespace xstage::test
