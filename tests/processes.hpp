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

// What `body` returns; an Error becomes its exit code and text.
inline Outcome outcome_of(const std::function<std::string()>& body) {
  try {
    return {0, body()};
  } catch (const Error& error) {
    return {error.exit_code(), error.what()};
  } catch (const std::exception& error) {
    return {99, error.what()};
  }
}

// Starts a child that ends with what `run` gives. No child (pid -1) if there is no pipe.
inline Child start_child(const std::function<Outcome()>& run) {
  int ends[2];
  if (::pipe(ends) != 0) return {};
  const pid_t pid = ::fork();
  if (pid != 0) {
    ::close(ends[1]);
    return {pid, ends[0]};
  }
  ::close(ends[0]);
  const Outcome outcome = run();
  (void)!::write(ends[1], outcome.text.data(), outcome.text.size());
  ::close(ends[1]);
  ::_exit(outcome.exit_code);
}

inline Child start(const std::function<std::string()>& body) {
  return start_child([&] { return outcome_of(body); });
}

// Reads on what the child says; false once there is no more.
inline bool read_some(const Child& child, std::string& text) {
  char buffer[4096];
  const ssize_t count = ::read(child.output, buffer, sizeof buffer);
  if (count > 0) text.append(buffer, static_cast<std::size_t>(count));
  return count > 0;
}

// The exit code of a child that has said all; -1 if a signal ended it.
inline int reap(const Child& child) {
  ::close(child.output);
  int status = 0;
  (void)::waitpid(child.pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

inline Outcome finish(const Child& child) {
  Outcome outcome;
  while (read_some(child, outcome.text)) {
  }
  outcome.exit_code = reap(child);
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
