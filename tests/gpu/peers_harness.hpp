// The frame of the peer tests on a GPU: what a case is given, how it reports, how ranks are
// started. No test framework: the same binary runs as a quick test, as a long soak and as a
// measurement, and its ranks are processes that must start before CUDA does.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "../processes.hpp"
#include "xstage/group.hpp"

namespace xstage::gpu_test {

struct Options {
  std::vector<int> ranks = {2};  // sizes of groups to try
  int num_rounds = 200;          // of a case's main loop
  int num_launches = 5;          // that the rounds are spread over
  std::size_t bytes = 1 << 20;   // of user memory per rank
  double seconds = 1;            // of delays and stops
  double deadline = 60;          // of waits on the device, s
  std::uint32_t seed = 1;
  bool cooperative = true;  // how kernels of co-located ranks are launched
  std::string placement = "device";
  // Hardware queues of a process (CUDA_DEVICE_MAX_CONNECTIONS); 0: 32 if all ranks are in one
  // process, where each one's stream must have its own, else what the driver takes: 32 of them make
  // the end of a process several times as long.
  int connections = 0;
  std::vector<int> devices = {0};  // of the ranks, in turn

  [[nodiscard]] int device_of(int rank) const {
    return devices[static_cast<std::size_t>(rank) % devices.size()];
  }
};

// What a case found. `figures` are printed as JSON lines for result files.
struct Report {
  std::vector<std::string> failures;

  void expect(bool condition, const std::string& what) {
    if (!condition) failures.push_back(what);
  }
  [[nodiscard]] bool fine() const { return failures.empty(); }
};

// One measured value: {"case": ..., "ranks": ..., "name": ..., "value": ..., "unit": ...}.
void print_figure(const std::string& case_name, int num_ranks, const std::string& name,
                  double value, const std::string& unit);

using Case = std::function<void(const Options&, int num_ranks, Report&)>;

struct NamedCase {
  std::string name;
  std::string what;  // one line
  Case run;
};

[[nodiscard]] std::vector<NamedCase> local_cases();  // all ranks in this process
[[nodiscard]] std::vector<NamedCase>
process_cases();  // one process per rank; run before CUDA starts
[[nodiscard]] std::vector<NamedCase> throughput_cases();

// --- processes -----------------------------------------------------------------------------------

struct Outcome : testing_support::Outcome {
  double seconds_to_end = 0;    // from run_ranks' start until the process was gone
  double seconds_to_error = 0;  // until its body had returned or thrown
};

// Called once all ranks run; may signal them.
using Meddle = std::function<void(const std::vector<int>& pids)>;

// One process per rank; an Error becomes exit code and text.
[[nodiscard]] std::vector<Outcome> run_ranks(int num_ranks,
                                             const std::function<std::string(Group&)>& body,
                                             const Meddle& meddle = {});

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The value at a share (0.5: the median) of a list.
[[nodiscard]] double quantile(std::vector<double> values, double share);

}  // namespace xstage::gpu_test
