// Runs each rank of a test as a real process and collects what it says.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "xstage/error.hpp"

namespace xstage::testing_support {

struct Outcome {
  int exit_code = -1;  // -1: killed by a signal
  std::string text;    // what() of the error, or what the function returned
};

struct Child {
  pid_t pid = -1;
  int output = -1;
};

// Starts `body` in a child; an Error becomes its exit code and text.
inline Child start(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return {};
  const pid_t pid = ::fork();
  if (pid != 0) {
    ::close(ends[1]);
    return {pid, ends[0]};
  }
  ::close(ends[0]);
  int code = 0;
  std::string text;
  try {
    text = body();
  } catch (const Error& error) {
    code = error.exit_code();
    text = error.what();
  } catch (const std::exception& error) {
    code = 99;
    text = error.what();
  }
  (void)!::write(ends[1], text.data(), text.size());
  ::_exit(code);
}

inline Outcome finish(const Child& child) {
  Outcome outcome;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(child.output, buffer, sizeof buffer)) > 0;) {
    outcome.text.append(buffer, static_cast<std::size_t>(count));
  }
  ::close(child.output);
  int status = 0;
  (void)::waitpid(child.pid, &status, 0);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

// One process per rank, all at once.
inline std::vector<Outcome> run_ranks(int num_ranks,
                                      const std::function<std::string(int rank)>& body) {
  std::vector<Child> children;
  for (int rank = 0; rank < num_ranks; ++rank) {
    children.push_back(start([&, rank] { return body(rank); }));
  }
  std::vector<Outcome> outcomes;
  for (const Child& child : children) outcomes.push_back(finish(child));
  return outcomes;
}

}  // namespace xstage::testing_support
