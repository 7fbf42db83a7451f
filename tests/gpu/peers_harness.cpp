#include "peers_harness.hpp"

#include <poll.h>
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

using testing_support::Child;

// Its text ends with a zero and the time at which `body` had ended.
Child start_rank(int rank, int num_ranks, const std::string& job,
                 const std::function<std::string(Group&)>& body) {
  const Child child = testing_support::start_child([&] {
    auto outcome = testing_support::outcome_of([&] {
      LaunchInfo launch;
      launch.rank = launch.local_rank = rank;
      launch.num_ranks = launch.num_local_ranks = num_ranks;
      launch.job = job;
      Group group = Group::join(launch);
      return body(group);
    });
    outcome.text += '\0' + std::to_string(now_ns());
    return outcome;
  });
  if (child.pid < 0) throw Error(ErrorCategory::runtime, "no pipe or no process for a rank");
  return child;
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
      if (testing_support::read_some(children[rank], outcomes[rank].text)) continue;
      outcomes[rank].exit_code = testing_support::reap(children[rank]);
      children[rank].output = -1;
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
