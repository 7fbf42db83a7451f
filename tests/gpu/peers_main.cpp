// peers_gpu: tests of peer memory, waits and barriers on a GPU, for 1 to 8 co-located ranks.
//
//   peers_gpu CASE... [--ranks 2,4,8] [--rounds N] [--launches N] [--bytes B] [--seconds S]
//
// Exit code 0: all right, 1: a case failed, 2: usage, 3: no GPU here.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "peers_harness.hpp"
#include "xstage/error.hpp"
#include "xstage/topology.hpp"

namespace xstage::gpu_test {
namespace {

[[noreturn]] void usage(const std::string& message) {
  throw Error(ErrorCategory::usage, message);
}

std::vector<int> parse_list(const std::string& text) {
  std::vector<int> values;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    values.push_back(std::stoi(text.substr(at, end - at)));
    at = end + 1;
  }
  return values;
}

struct CommandLine {
  std::vector<std::string> cases;
  Options options;
};

CommandLine parse(int argc, char** argv) {
  CommandLine line;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--", 0) != 0) {
      line.cases.push_back(word);
      continue;
    }
    if (word == "--streams") {
      line.options.cooperative = false;
      continue;
    }
    if (i + 1 == argc) usage(word + ": a value is missing");
    const std::string value = argv[++i];
    if (word == "--ranks") {
      line.options.ranks = parse_list(value);
    } else if (word == "--rounds") {
      line.options.num_rounds = std::stoi(value);
    } else if (word == "--launches") {
      line.options.num_launches = std::stoi(value);
    } else if (word == "--bytes") {
      line.options.bytes = std::stoull(value);
    } else if (word == "--seconds") {
      line.options.seconds = std::stod(value);
    } else if (word == "--deadline") {
      line.options.deadline = std::stod(value);
    } else if (word == "--devices") {
      line.options.devices = parse_list(value);
    } else if (word == "--seed") {
      line.options.seed = static_cast<std::uint32_t>(std::stoul(value));
    } else if (word == "--placement") {
      line.options.placement = value;
    } else if (word == "--connections") {
      line.options.connections = std::stoi(value);
    } else {
      usage(word +
            ": legal --ranks --rounds --launches --bytes --seconds --devices --deadline --seed "
            "--placement --connections --streams");
    }
  }
  return line;
}

std::vector<NamedCase> all_cases() {
  std::vector<NamedCase> cases = process_cases();  // they fork: before CUDA starts
  for (auto& each : local_cases()) cases.push_back(std::move(each));
  for (auto& each : throughput_cases()) cases.push_back(std::move(each));
  return cases;
}

// In a child of its own, so that a case that spoils its CUDA context costs only itself.
bool run_case(const NamedCase& each, const Options& options, int num_ranks) {
  const auto start = std::chrono::steady_clock::now();
  std::printf("RUN  %s, %d ranks, seed %u\n", each.name.c_str(), num_ranks, options.seed);
  std::fflush(stdout);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const bool is_local = each.name.rfind("p-", 0) != 0;
    const int connections = options.connections > 0 ? options.connections : is_local ? 32 : 0;
    if (connections > 0) {
      ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(connections).c_str(), 1);
    }
    Report report;
    try {
      each.run(options, num_ranks, report);
    } catch (const std::exception& error) {
      report.failures.push_back(error.what());
    }
    for (const std::string& failure : report.failures) std::printf("  %s\n", failure.c_str());
    std::fflush(stdout);
    ::_exit(report.fine() ? 0 : 1);
  }
  int status = 0;
  (void)::waitpid(pid, &status, 0);
  const bool fine = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  std::printf("%s %s, %d ranks, %.2f s\n", fine ? "PASS" : "FAIL", each.name.c_str(), num_ranks,
              seconds_since(start));
  std::fflush(stdout);
  return fine;
}

int run(int argc, char** argv) {
  const CommandLine line = parse(argc, argv);
  const pid_t prober = ::fork();  // CUDA must not start in this process
  if (prober == 0) {
    const Topology topology = discover();
    if (topology.gpus.empty()) std::printf("no GPU: %s\n", topology.missing.c_str());
    std::fflush(stdout);
    ::_exit(topology.gpus.empty() ? 3 : 0);
  }
  int status = 0;
  (void)::waitpid(prober, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return 3;
  const std::vector<NamedCase> cases = all_cases();
  bool fine = true;
  for (const std::string& wanted : line.cases) {
    const auto found = std::find_if(cases.begin(), cases.end(),
                                    [&](const NamedCase& each) { return each.name == wanted; });
    if (found == cases.end()) usage(wanted + ": no such case");
    for (const int num_ranks : line.options.ranks) {
      fine = run_case(*found, line.options, num_ranks) && fine;
    }
  }
  if (line.cases.empty()) {
    for (const NamedCase& each : cases)
      std::printf("%-14s %s\n", each.name.c_str(), each.what.c_str());
  }
  return fine ? 0 : 1;
}

}  // namespace
}  // namespace xstage::gpu_test

int main(int argc, char** argv) {
  try {
    return xstage::gpu_test::run(argc, argv);
  } catch (const xstage::Error& error) {
    std::fprintf(stderr, "peers_gpu: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "peers_gpu: bad value: %s\n", error.what());
    return 2;
  }
}
