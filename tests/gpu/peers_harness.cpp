#include "peers_harness.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "xstage/error.hpp"

namespace xstage::gpu_test {
namespace {

// Of a clock that all processes share.
long long now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

struct Child {
  pid_t pid = -1;
  int output = -1;
};

Child start_rank(int rank, int num_ranks, const std::string& job,
                 const std::function<std::string(Group&)>& body) {
  int ends[2];
  if (::pipe(ends) != 0) throw Error(ErrorCategory::runtime, "pipe failed");
  const pid_t pid = ::fork();
  if (pid != 0) {
    ::close(ends[1]);
    return {pid, ends[0]};
  }
  ::close(ends[0]);
  int code = 0;
  std::string text;
  try {
    LaunchInfo launch;
    launch.rank = launch.local_rank = rank;
    launch.num_ranks = launch.num_local_ranks = num_ranks;
    launch.job = job;
    Group group = Group::join(launch);
    text = body(group);
  } catch (const Error& error) {
    code = error.exit_code();
    text = error.what();
  } catch (const std::exception& error) {
    code = 99;
    text = error.what();
  }
  const std::string stamp = std::to_string(now_ns());
  (void)!::write(ends[1], text.c_str(), text.size() + 1);  // with its final zero
  (void)!::write(ends[1], stamp.data(), stamp.size());
  ::close(ends[1]);
  ::_exit(code);
}

}  // namespace

void print_figure(const std::string& case_name, int num_ranks, const std::string& name,
                  double value, const std::string& unit) {
  std::printf(
      "{\"case\": \"%s\", \"ranks\": %d, \"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n",
      case_name.c_str(), num_ranks, name.c_str(), value, unit.c_str());
  std::fflush(stdout);
}

std::vector<Outcome> run_ranks(int num_ranks, const std::function<std::string(Group&)>& body,
                               const Meddle& meddle) {
  static int count = 0;
  const std::string job = "gpu test " + std::to_string(getpid()) + " " + std::to_string(count++);
  std::fflush(stdout);
  const auto start = std::chrono::steady_clock::now();
  std::vector<Child> children;
  std::vector<int> pids;
  for (int rank = 0; rank < num_ranks; ++rank) {
    children.push_back(start_rank(rank, num_ranks, job, body));
    pids.push_back(children.back().pid);
  }
  if (meddle) meddle(pids);
  std::vector<Outcome> outcomes(children.size());
  for (std::size_t open = children.size(); open > 0;) {
    std::vector<pollfd> entries;
    for (const Child& child : children) entries.push_back({child.output, POLLIN, 0});
    (void)::poll(entries.data(), static_cast<nfds_t>(entries.size()), 1000);
    for (std::size_t rank = 0; rank < children.size(); ++rank) {
      if (children[rank].output < 0 || entries[rank].revents == 0) continue;
      char buffer[4096];
      const ssize_t got = ::read(children[rank].output, buffer, sizeof buffer);
      if (got > 0) {
        outcomes[rank].text.append(buffer, static_cast<std::size_t>(got));
        continue;
      }
      ::close(children[rank].output);
      children[rank].output = -1;
      int status = 0;
      (void)::waitpid(children[rank].pid, &status, 0);
      if (WIFEXITED(status)) outcomes[rank].exit_code = WEXITSTATUS(status);
      outcomes[rank].seconds_to_end = seconds_since(start);
      const std::size_t stamp = outcomes[rank].text.find('\0');
      if (stamp != std::string::npos) {
        const long long ended = std::stoll(outcomes[rank].text.substr(stamp + 1));
        outcomes[rank].seconds_to_error =
            static_cast<double>(ended - start.time_since_epoch().count()) / 1e9;
        outcomes[rank].text.resize(stamp);
      }
      --open;
    }
  }
  return outcomes;
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto idx = static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5);
  return values[idx];
}

}  // namespace xstage::gpu_test
