// Ranks in several processes that share one GPU. Without MPS their kernels take turns on it, so
// barriers take milliseconds here; correctness is the point.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "peers_rank.cuh"
#include "xstage/error.hpp"
#include "xstage/topology.hpp"

namespace xstage::gpu_test {
namespace {

// What the rank's kernels found, as text: bytes checked. Throws if they did not finish
// `num_rounds`, found wrong bytes or none to check.
std::string checked_bytes(RankRun& rank, int num_rounds) {
  rank.memory().check();
  const RankRun::Counters counters = rank.counters();
  if (counters.num_wrong != 0 || counters.num_checked == 0 ||
      counters.round != static_cast<std::uint32_t>(num_rounds)) {
    throw Error(ErrorCategory::check_failed,
                std::to_string(counters.num_wrong) + " vectors wrong, " +
                    std::to_string(counters.num_checked) + " bytes checked, " +
                    std::to_string(counters.round) + " rounds of " + std::to_string(num_rounds));
  }
  return std::to_string(counters.num_checked);
}

// The exchange of one process; throws what went wrong.
std::string exchange_rank(Group& group, const Options& options, int num_rounds, int num_launches,
                          double deadline_seconds) {
  RankRun rank(PeerMemory::create(group, options.bytes,
                                  peer_options(options, deadline_seconds, group.rank())));
  group.barrier();
  const int per_launch = std::max(1, num_rounds / num_launches);
  for (int launch = 0; launch < num_launches; ++launch) {
    rank.launch_exchange(options, per_launch);
    rank.finish();
    rank.memory().check();
  }
  std::string checked = checked_bytes(rank, per_launch * num_launches);
  group.barrier();
  return checked;
}

void expect_all_fine(const std::vector<Outcome>& outcomes, Report& report) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    report.expect(outcomes[rank].exit_code == 0, "rank " + std::to_string(rank) + " ended with " +
                                                     std::to_string(outcomes[rank].exit_code) +
                                                     ": " + outcomes[rank].text);
  }
}

void exchange(const Options& options, int num_ranks, Report& report) {
  const auto start = std::chrono::steady_clock::now();
  expect_all_fine(run_ranks(num_ranks,
                            [&](Group& group) {
                              return exchange_rank(group, options, options.num_rounds,
                                                   options.num_launches, 120);
                            }),
                  report);
  print_figure("p-exchange", num_ranks, "seconds", seconds_since(start), "s");
}

// Each process captures its kernel and replays it; the epochs live in device memory, so each replay
// is a new round.
void graph(const Options& options, int num_ranks, Report& report) {
  const auto start = std::chrono::steady_clock::now();
  expect_all_fine(run_ranks(num_ranks,
                            [&](Group& group) {
                              RankRun rank(PeerMemory::create(
                                  group, options.bytes, peer_options(options, 120, group.rank())));
                              const cudaGraphExec_t graph = rank.capture_exchange(options, 1);
                              group.barrier();
                              for (int replay = 0; replay < options.num_rounds; ++replay) {
                                check_cuda(cudaGraphLaunch(graph, rank.stream()),
                                           "cudaGraphLaunch");
                              }
                              rank.finish();
                              (void)cudaGraphExecDestroy(graph);
                              std::string checked = checked_bytes(rank, options.num_rounds);
                              group.barrier();
                              return checked;
                            }),
                  report);
  print_figure("p-graph", num_ranks, "seconds", seconds_since(start), "s");
}

void creation(const Options& options, int num_ranks, Report& report) {
  const auto outcomes = run_ranks(num_ranks, [&](Group& group) {
    std::size_t free_before = 0;
    std::size_t free_after = 0;
    std::size_t total = 0;
    double seconds = 0;
    PeerMemory::create(group, options.bytes, peer_options(options)).close();  // CUDA starts
    group.barrier();
    for (int i = 0; i < options.num_rounds; ++i) {
      const auto start = std::chrono::steady_clock::now();
      PeerMemory memory = PeerMemory::create(group, options.bytes, peer_options(options));
      seconds += seconds_since(start);
      memory.close();
      group.barrier();
      if (i == 0) check_cuda(cudaMemGetInfo(&free_before, &total), "cudaMemGetInfo");
      group.barrier();
    }
    group.barrier();
    check_cuda(cudaMemGetInfo(&free_after, &total), "cudaMemGetInfo");
    group.barrier();
    if (free_after + (8 << 20) < free_before) {
      throw Error(ErrorCategory::check_failed,
                  std::to_string(free_before - free_after) + " bytes leaked");
    }
    return std::to_string(seconds / options.num_rounds);
  });
  expect_all_fine(outcomes, report);
  if (report.fine()) {
    print_figure("p-cycles", num_ranks, "one creation", std::stod(outcomes[0].text), "s");
  }
}

void rendezvous(const Options&, int num_ranks, Report& report) {
  std::vector<double> seconds;
  for (int i = 0; i < 20; ++i) {
    const auto outcomes = run_ranks(num_ranks, [&](Group& group) {
      group.barrier();
      return std::string();
    });
    expect_all_fine(outcomes, report);
    double last = 0;
    for (const Outcome& outcome : outcomes) last = std::max(last, outcome.seconds_to_end);
    seconds.push_back(last);
  }
  print_figure("p-rendezvous", num_ranks, "median with process start and end",
               quantile(seconds, 0.5), "s");
  print_figure("p-rendezvous", num_ranks, "slowest of 20", quantile(seconds, 1), "s");
}

// One rank dies while the others' kernels wait for it.
void killed(const Options& options, int num_ranks, Report& report) {
  if (num_ranks < 2) return;
  for (const int victim : {0, num_ranks - 1}) {
    int ready[2];
    if (::pipe(ready) != 0) throw Error(ErrorCategory::runtime, "pipe failed");
    std::chrono::steady_clock::time_point death;
    const auto start = std::chrono::steady_clock::now();
    const auto outcomes = run_ranks(
        num_ranks,
        [&](Group& group) {
          RankRun rank(
              PeerMemory::create(group, options.bytes, peer_options(options, 60, group.rank())));
          rank.launch_exchange(options, 1);
          rank.finish();
          group.barrier();
          (void)!::write(ready[1], "x", 1);
          if (group.rank() == victim) {  // in a kernel of its own when it dies
            rank.launch_exchange(options, 1'000'000);
            std::this_thread::sleep_for(std::chrono::seconds(60));
          }
          rank.launch_exchange(options, 1'000'000);
          rank.finish();
          rank.memory().check();
          return std::string("ended without an error");
        },
        [&](const std::vector<int>& pids) {
          char byte = 0;
          for (int i = 0; i < num_ranks; ++i) (void)!::read(ready[0], &byte, 1);
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
          death = std::chrono::steady_clock::now();
          ::kill(pids[static_cast<std::size_t>(victim)], SIGKILL);
        });
    ::close(ready[0]);
    ::close(ready[1]);
    const double death_at = std::chrono::duration<double>(death - start).count();
    double last = 0;
    double last_error = 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
      const std::string fate =
          rank == victim
              ? "killed"
              : "error after " + std::to_string(outcome.seconds_to_error - death_at) + " s";
      std::printf("  rank %d: %s, gone after %.3f s\n", rank, fate.c_str(),
                  outcome.seconds_to_end - death_at);
      if (rank == victim) continue;
      last = std::max(last, outcome.seconds_to_end - death_at);
      last_error = std::max(last_error, outcome.seconds_to_error - death_at);
      report.expect(outcome.exit_code == 5, "rank " + std::to_string(rank) + " ended with " +
                                                std::to_string(outcome.exit_code) + ": " +
                                                outcome.text);
      if (rank == (victim == 0 ? 1 : 0)) std::printf("  %s\n", outcome.text.c_str());
      report.expect(
          outcome.text.find("rank " + std::to_string(victim) + " was lost") != std::string::npos,
          "the loss is not named: " + outcome.text);
      for (const std::string& part :
           {"rank " + std::to_string(rank) + " waited", std::string(" for rank "),
            std::string(", tag rank_barrier"), std::string(": expected "), std::string(", saw ")}) {
        report.expect(outcome.text.find(part) != std::string::npos,
                      "'" + part + "' is missing: " + outcome.text);
      }
    }
    print_figure("p-kill", num_ranks,
                 "victim " + std::to_string(victim) + ": until all had raised the error",
                 last_error, "s");
    print_figure("p-kill", num_ranks, "victim " + std::to_string(victim) + ": until all had ended",
                 last, "s");
    // Until then the driver takes down the contexts, one process after the other.
    report.expect(last <= 1.0, "took " + std::to_string(last) + " s until all had ended");
  }
}

// A stopped rank is slow: everybody waits, and the result is right.
void stopped(const Options& options, int num_ranks, Report& report) {
  if (num_ranks < 2) return;
  int ready[2];
  if (::pipe(ready) != 0) throw Error(ErrorCategory::runtime, "pipe failed");
  const auto outcomes = run_ranks(
      num_ranks,
      [&](Group& group) {
        const std::string first = exchange_rank(group, options, 2, 1, options.seconds + 60);
        (void)!::write(ready[1], "x", 1);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        return exchange_rank(group, options, 5, 5, options.seconds + 60);
      },
      [&](const std::vector<int>& pids) {
        char byte = 0;
        for (int i = 0; i < num_ranks; ++i) (void)!::read(ready[0], &byte, 1);
        ::kill(pids.back(), SIGSTOP);
        std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
        ::kill(pids.back(), SIGCONT);
      });
  expect_all_fine(outcomes, report);
  ::close(ready[0]);
  ::close(ready[1]);
}

// Each process numbers the same GPUs in its own way, or sees one alone: ranks are joined by UUID.
void masked(const Options& options, int num_ranks, Report& report) {
  for (const bool one_each : {false, true}) {
    const auto outcomes = run_ranks(num_ranks, [&](Group& group) {
      std::string mask;
      const std::size_t count = one_each ? 1 : options.devices.size();
      for (std::size_t i = 0; i < count; ++i) {
        if (i > 0) mask += ',';
        mask += std::to_string(options.device_of(group.rank() + static_cast<int>(i)));
      }
      ::setenv("CUDA_VISIBLE_DEVICES", mask.c_str(), 1);
      Options as_seen = options;
      as_seen.devices = {0};
      const std::string checked = exchange_rank(group, as_seen, 4, 1, 60);
      Topology topology = discover();
      run_canary(topology);
      const Verdict verdict = judge(gather_topology(group, topology));
      return std::to_string(verdict.exit_code) + " " + verdict.summary;
    });
    expect_all_fine(outcomes, report);
    for (const Outcome& outcome : outcomes) {
      report.expect(outcome.text == outcomes[0].text, outcome.text + " vs " + outcomes[0].text);
    }
    std::printf("  %s: %s\n", one_each ? "one GPU each" : "permuted", outcomes[0].text.c_str());
  }
}

__global__ void spoil_kernel(std::uint32_t* words, std::size_t idx) {
  words[idx] = 1;
}

// For a memory checker alone: every rank stores behind an allocation of its own. A run under the
// checker that reports nothing has not looked into the ranks' processes.
void spoiled(const Options&, int num_ranks, Report& report) {
  expect_all_fine(run_ranks(num_ranks,
                            [&](Group& group) {
                              std::uint32_t* words = nullptr;
                              check_cuda(cudaMalloc(&words, 256), "cudaMalloc");
                              spoil_kernel<<<1, 1>>>(words, 256);
                              check_cuda(cudaDeviceSynchronize(), "storing out of bounds");
                              group.barrier();
                              return std::string();
                            }),
                  report);
}

// Every process judges what all together see.
void doctor(const Options&, int num_ranks, Report& report) {
  const auto outcomes = run_ranks(num_ranks, [&](Group& group) {
    Topology topology = discover();
    run_canary(topology);
    const Verdict verdict = judge(gather_topology(group, topology));
    return std::to_string(verdict.exit_code) + " " + verdict.summary;
  });
  expect_all_fine(outcomes, report);
  for (const Outcome& outcome : outcomes) {
    report.expect(outcome.text == outcomes[0].text, outcome.text + " against " + outcomes[0].text);
  }
  std::printf("  %s\n", outcomes[0].text.c_str());
}

}  // namespace

std::vector<NamedCase> process_cases() {
  return {
      {"p-rendezvous", "time for processes to meet", rendezvous},
      {"p-exchange", "as exchange, one process per rank", exchange},
      {"p-graph", "as graph, one process per rank", graph},
      {"p-cycles", "create and close --rounds times", creation},
      {"p-kill", "kill -9 of one rank while the others wait for it", killed},
      {"p-stop", "SIGSTOP of one rank for --seconds", stopped},
      {"p-masks", "each process has its own CUDA_VISIBLE_DEVICES", masked},
      {"p-doctor", "the same verdict on every rank", doctor},
      {"p-spoiled", "a store out of bounds: what a memory checker must find", spoiled},
  };
}

}  // namespace xstage::gpu_test
