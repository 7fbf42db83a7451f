// Co-located ranks in one process on one GPU.
#include <dirent.h>

#include <chrono>
#include <map>
#include <thread>

#include "peers_rank.cuh"
#include "xstage/error.hpp"
#include "xstage/topology.hpp"

namespace xstage::gpu_test {
namespace {

using Ranks = std::vector<std::unique_ptr<RankRun>>;

Ranks make_ranks(const Options& options, int num_ranks, double deadline_seconds = 0) {
  if (deadline_seconds == 0) deadline_seconds = options.deadline;
  std::vector<int> devices;
  for (int rank = 0; rank < num_ranks; ++rank) devices.push_back(options.device_of(rank));
  Ranks ranks;
  for (PeerMemory& member :
       PeerMemory::create_local(devices, options.bytes, peer_options(options, deadline_seconds))) {
    ranks.push_back(std::make_unique<RankRun>(std::move(member)));
  }
  return ranks;
}

void expect_right(Ranks& ranks, std::uint32_t num_rounds, Report& report) {
  for (auto& rank : ranks) {
    const std::string name = "rank " + std::to_string(rank->memory().rank());
    const PeerStatus status = rank->memory().status();
    report.expect(status.fine, name + ": " + status.text);
    const RankRun::Counters counters = rank->counters();
    report.expect(counters.num_wrong == 0,
                  name + ": " + std::to_string(counters.num_wrong) + " vectors wrong");
    report.expect(counters.round == num_rounds, name + ": " + std::to_string(counters.round) +
                                                    " rounds instead of " +
                                                    std::to_string(num_rounds));
    report.expect(counters.num_checked > 0, name + ": nothing was checked");
  }
}

double total_checked(Ranks& ranks) {
  double bytes = 0;
  for (auto& rank : ranks) bytes += static_cast<double>(rank->counters().num_checked);
  return bytes;
}

void exchange(const Options& options, int num_ranks, Report& report) {
  Ranks ranks = make_ranks(options, num_ranks);
  const int per_launch = std::max(1, options.num_rounds / options.num_launches);
  const auto start = std::chrono::steady_clock::now();
  for (int launch = 0; launch < options.num_launches; ++launch) {
    for (auto& rank : ranks) rank->launch_exchange(options, per_launch);
  }
  for (auto& rank : ranks) rank->finish();
  print_figure("exchange", num_ranks, "seconds", seconds_since(start), "s");
  print_figure("exchange", num_ranks, "checked", total_checked(ranks), "B");
  expect_right(ranks, static_cast<std::uint32_t>(per_launch * options.num_launches), report);
}

// A graph of all ranks' kernels, replayed. The epochs live in device memory, so each replay is a
// new round.
void graph(const Options& options, int num_ranks, Report& report) {
  Ranks ranks = make_ranks(options, num_ranks);
  std::vector<cudaGraphExec_t> graphs;
  for (auto& rank : ranks) {
    graphs.push_back(rank->capture_exchange(options, 1, [&] {
      if (!graphs.empty()) return;  // allocation while capturing is refused before it does harm
      const int devices[] = {0};
      PeerOptions on_stream;
      on_stream.stream = rank->stream();
      try {
        (void)PeerMemory::create_local(devices, 64, on_stream);
        report.expect(false, "allocated during capture");
      } catch (const Error& error) {
        report.expect(error.category() == ErrorCategory::usage, error.what());
      }
    }));
  }
  for (int replay = 0; replay < options.num_rounds; ++replay) {
    for (std::size_t i = 0; i < graphs.size(); ++i) {
      check_cuda(cudaGraphLaunch(graphs[i], ranks[i]->stream()), "cudaGraphLaunch");
    }
  }
  for (auto& rank : ranks) rank->finish();
  expect_right(ranks, static_cast<std::uint32_t>(options.num_rounds), report);
  for (const cudaGraphExec_t graph_exec : graphs) (void)cudaGraphExecDestroy(graph_exec);
}

void delay(const Options& options, int num_ranks, Report& report) {
  Ranks ranks = make_ranks(options, num_ranks, options.seconds + 60);
  for (int rank = 1; rank < num_ranks; ++rank) {
    ranks[static_cast<std::size_t>(rank)]->launch_exchange(options, 3);
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
  ranks[0]->launch_exchange(options, 3);
  for (auto& rank : ranks) rank->finish();
  expect_right(ranks, 3, report);
  print_figure("delay", num_ranks, "delay", options.seconds, "s");
}

// Rank 0 never comes: the others give up at the deadline, say why, and later kernels end at once.
void deadline(const Options& options, int num_ranks, Report& report) {
  if (num_ranks < 2) return;
  Ranks ranks = make_ranks(options, num_ranks, options.seconds);
  auto start = std::chrono::steady_clock::now();
  for (int rank = 1; rank < num_ranks; ++rank) {
    ranks[static_cast<std::size_t>(rank)]->launch_exchange(options, 3);
  }
  for (auto& rank : ranks) rank->finish();
  const double took = seconds_since(start);
  print_figure("deadline", num_ranks, "until all kernels ended", took, "s");
  report.expect(took >= 0.9 * options.seconds, "gave up early: " + std::to_string(took) + " s");
  report.expect(took < options.seconds + 1, "gave up late: " + std::to_string(took) + " s");
  bool some_deadline = false;
  for (int rank = 1; rank < num_ranks; ++rank) {
    const PeerStatus status = ranks[static_cast<std::size_t>(rank)]->memory().status();
    report.expect(!status.fine && status.record.rank == rank,
                  "no record on rank " + std::to_string(rank));
    some_deadline |= status.record.outcome == static_cast<std::uint32_t>(WaitOutcome::deadline);
    if (rank == 1) std::printf("  %s\n", status.text.c_str());
    if (num_ranks == 2) {
      report.expect(status.record.peer == 0 && status.record.expected == 1 &&
                        status.record.seen == 0 &&
                        status.record.tag == static_cast<std::uint32_t>(WaitTag::rank_barrier),
                    "the record says: " + status.text);
    }
    try {
      ranks[static_cast<std::size_t>(rank)]->memory().check();
      report.expect(false, "check() passed on a dead group");
    } catch (const Error& error) {
      report.expect(error.category() == ErrorCategory::timeout, error.what());
    }
  }
  report.expect(some_deadline, "no rank says that its deadline passed");
  start = std::chrono::steady_clock::now();
  for (auto& rank : ranks) {
    rank->set_stop_when_dead(false);  // the poison drain
    rank->launch_exchange(options, 20);
  }
  for (auto& rank : ranks) rank->finish();
  print_figure("deadline", num_ranks, "20 rounds on the dead group", seconds_since(start), "s");
  report.expect(seconds_since(start) < 1, "waits of a dead group still wait");
}

// The host's word ends waits.
void host_abort(const Options& options, int num_ranks, Report& report) {
  if (num_ranks < 2) return;
  Ranks ranks = make_ranks(options, num_ranks);
  ranks[1]->launch_exchange(options, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto start = std::chrono::steady_clock::now();
  ranks[1]->memory().abort();
  ranks[1]->finish();
  print_figure("abort", num_ranks, "until the kernel ended", seconds_since(start) * 1e6, "us");
  report.expect(seconds_since(start) < 0.5, "abort took too long");
  report.expect(ranks[1]->memory().status().record.outcome ==
                    static_cast<std::uint32_t>(WaitOutcome::aborted),
                "the record does not say aborted");
}

// A side stream holds one SM while every rank's cooperative kernel wants its whole share.
void side_stream(const Options& options, int num_ranks, Report& report) {
  Ranks ranks = make_ranks(options, num_ranks, options.seconds + 30);
  cudaStream_t side = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking), "cudaStreamCreate");
  int most_shared = 0;
  check_cuda(cudaDeviceGetAttribute(&most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
             "cudaDeviceGetAttribute");
  check_cuda(
      cudaFuncSetAttribute(occupy_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared),
      "cudaFuncSetAttribute");
  const auto hold_ns = static_cast<std::uint64_t>(options.seconds * 1e9);
  occupy_kernel<<<1, 1024, static_cast<std::size_t>(most_shared), side>>>(hold_ns);
  check_cuda(cudaGetLastError(), "launching the side kernel");
  for (auto& rank : ranks) {
    rank->set_shared_bytes(static_cast<std::size_t>(most_shared));  // one CTA an SM
    rank->launch_exchange(options, 3);
  }
  for (auto& rank : ranks) rank->finish();
  expect_right(ranks, 3, report);
  check_cuda(cudaStreamSynchronize(side), "side stream");
  (void)cudaStreamDestroy(side);
  // A grid that can never be resident is an error at launch, not a hang.
  ranks[0]->set_num_ctas(1 << 20);
  try {
    if (options.cooperative) {
      ranks[0]->launch_exchange(options, 1);
      report.expect(false, "a grid too large for the GPU was launched");
    }
  } catch (const Error& error) {
    report.expect(error.category() == ErrorCategory::runtime, error.what());
  }
}

void barrier_latency(const Options& options, int num_ranks, Report& report) {
  Ranks ranks = make_ranks(options, num_ranks);
  const auto num_rounds = static_cast<std::uint32_t>(std::max(options.num_rounds, 2000));
  std::vector<std::uint32_t*> cycles(ranks.size(), nullptr);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    check_cuda(cudaSetDevice(ranks[i]->memory().device()), "cudaSetDevice");
    check_cuda(cudaMalloc(&cycles[i], (num_rounds + 1) * sizeof(std::uint32_t)), "cudaMalloc");
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    PeerTable table = ranks[i]->memory().table();
    WaitContext context = ranks[i]->memory().wait_context();
    check_cuda(cudaSetDevice(ranks[i]->memory().device()), "cudaSetDevice");
    barrier_kernel<<<1, 32, 0, ranks[i]->stream()>>>(table, context, num_rounds, cycles[i]);
    check_cuda(cudaGetLastError(), "launching the barrier");
  }
  for (auto& rank : ranks) rank->finish();
  int clock_khz = 0;
  check_cuda(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, 0), "cudaDeviceGetAttribute");
  double worst_median = 0;
  double worst_p99 = 0;
  double worst_mean = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::vector<std::uint32_t> host(num_rounds + 1);
    check_cuda(
        cudaMemcpy(host.data(), cycles[i], host.size() * sizeof(std::uint32_t), cudaMemcpyDefault),
        "copy");
    worst_mean = std::max(worst_mean, host.back() / 1e3 / num_rounds);
    const std::vector<double> warm(host.begin() + num_rounds / 10, host.end() - 1);
    worst_median = std::max(worst_median, quantile(warm, 0.5) * 1e3 / clock_khz);
    worst_p99 = std::max(worst_p99, quantile(warm, 0.99) * 1e3 / clock_khz);
    report.expect(ranks[i]->memory().status().fine, ranks[i]->memory().status().text);
    (void)cudaFree(cycles[i]);
  }
  print_figure("barrier", num_ranks, "median, slowest rank", worst_median, "us");
  print_figure("barrier", num_ranks, "p99, slowest rank", worst_p99, "us");
  print_figure("barrier", num_ranks, "mean by the global timer", worst_mean, "us");
  print_figure("barrier", num_ranks, "SM clock assumed", clock_khz / 1e3, "MHz");
}

int num_open_fds() {
  int count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (directory != nullptr && ::readdir(directory) != nullptr) ++count;
  if (directory != nullptr) ::closedir(directory);
  return count;
}

void cycles(const Options& options, int num_ranks, Report& report) {
  const std::vector<int> devices(static_cast<std::size_t>(num_ranks), 0);
  for (const Placement placement : {Placement::device, Placement::host}) {
    PeerOptions peer;
    peer.placement = placement;
    const bool host = placement == Placement::host;
    std::size_t free_before = 0;
    std::size_t free_after = 0;
    std::size_t total = 0;
    int fds_before = 0;
    const int num_cycles = host ? options.num_rounds / 10 + 1 : options.num_rounds;
    double overhead = 0;
    for (int i = 0; i < num_cycles; ++i) {
      std::vector<PeerMemory> members = PeerMemory::create_local(devices, options.bytes, peer);
      overhead = static_cast<double>(members[0].overhead_bytes());
      if (i == 0 && !host) {
        std::size_t free_now = 0;
        check_cuda(cudaMemGetInfo(&free_now, &total), "cudaMemGetInfo");
        std::size_t free_empty = 0;
        members.clear();
        check_cuda(cudaMemGetInfo(&free_empty, &total), "cudaMemGetInfo");
        const double used = static_cast<double>(free_empty) - static_cast<double>(free_now);
        print_figure("cycles", num_ranks, "device memory per rank beyond the asked",
                     used / num_ranks - static_cast<double>(options.bytes), "B");
      }
      members.clear();
      if (i == 0) {
        check_cuda(cudaMemGetInfo(&free_before, &total), "cudaMemGetInfo");
        fds_before = num_open_fds();
      }
    }
    check_cuda(cudaMemGetInfo(&free_after, &total), "cudaMemGetInfo");
    const std::string where = host ? "host" : "device";
    print_figure("cycles", num_ranks, where + ": cycles", num_cycles, "");
    print_figure("cycles", num_ranks, where + ": overhead_bytes()", overhead, "B");
    report.expect(free_after + (1 << 20) >= free_before,
                  where + ": " + std::to_string(free_before - free_after) + " bytes leaked");
    report.expect(num_open_fds() == fds_before, where + ": descriptors leaked");
    report.expect(overhead <= 4 << 20, where + ": more than 4 MiB of overhead");
  }
}

// One computing rank among ghosts: barriers pass, and what was sent to each ghost lies in its
// image.
void emulated(const Options& options, int num_ranks, Report& report) {
  if (num_ranks < 2) return;
  for (const Placement placement : {Placement::host, Placement::device}) {
    const int devices[] = {0};
    std::vector<PeerMemory> real =
        PeerMemory::create_local(devices, options.bytes, peer_options(options));
    GhostOptions ghosts;
    ghosts.placement = placement;
    RankRun rank(PeerMemory::emulate(std::move(real[0]), num_ranks, ghosts));
    rank.launch_exchange(options, 1);
    rank.finish();
    const PeerStatus status = rank.memory().status();
    report.expect(status.fine, status.text);
    report.expect(rank.counters().num_wrong == 0, "own section wrong");
    const ExchangeArgs args = rank.exchange_args(options, 1);
    const std::size_t section = 16ull * args.section_vectors;
    for (int ghost = 1; ghost < num_ranks; ++ghost) {
      std::vector<uint4> image(args.section_vectors * static_cast<std::size_t>(num_ranks));
      rank.memory().read(ghost, 0, image.data(), section * static_cast<std::size_t>(num_ranks));
      // The kernel's own dice, on the host.
      const std::uint32_t count =
          1 + mix(args.seed + static_cast<std::uint32_t>(ghost)) % args.section_vectors;
      int num_wrong = 0;
      for (std::size_t i = 0; i < image.size(); ++i) {
        const auto idx = static_cast<std::uint32_t>(i);
        const uint4 expected =
            idx < count ? payload(args.seed, 0, ghost, idx)
                        : make_uint4(poison(ghost), poison(ghost), poison(ghost), poison(ghost));
        const uint4 got = image[i];
        num_wrong += got.x != expected.x || got.y != expected.y || got.z != expected.z ||
                     got.w != expected.w;
      }
      report.expect(num_wrong == 0, "ghost " + std::to_string(ghost) + ": " +
                                        std::to_string(num_wrong) + " vectors wrong");
    }
  }
}

void adopted(const Options& options, int num_ranks, Report& report) {
  std::vector<void*> bases(static_cast<std::size_t>(num_ranks), nullptr);
  for (void*& base : bases) {
    check_cuda(cudaMalloc(&base, options.bytes + kControlBytes), "cudaMalloc");
  }
  {
    Ranks ranks;
    for (int rank = 0; rank < num_ranks; ++rank) {
      ranks.push_back(std::make_unique<RankRun>(
          PeerMemory::adopt(bases, rank, options.bytes + kControlBytes, peer_options(options))));
      ranks.back()->set_num_ctas(8);
    }
    for (auto& rank : ranks) rank->launch_exchange(options, 20);
    for (auto& rank : ranks) rank->finish();
    expect_right(ranks, 20, report);
  }
  for (void* base : bases) check_cuda(cudaFree(base), "cudaFree");
}

void machine(const Options&, int, Report& report) {
  Topology topology = discover();
  run_canary(topology);
  const Verdict verdict = judge(topology);
  for (const Gpu& gpu : topology.gpus) {
    std::printf("  GPU %d %s %s %s cc %d.%d, %d SMs, vmm %d, posix fd %d, nvlinks %d, coop %d\n",
                gpu.ordinal, gpu.uuid.c_str(), gpu.name.c_str(), gpu.pci_bus_id.c_str(),
                gpu.compute_major, gpu.compute_minor, gpu.num_sms, gpu.virtual_memory,
                gpu.posix_descriptors, gpu.num_nvlinks, gpu.cooperative_launch);
  }
  for (const PeerEdge& edge : topology.edges) {
    std::printf("  %d -> %d access %d atomics %d %s canary %s %s\n", edge.from, edge.to,
                edge.access, edge.native_atomics, std::string(to_string(edge.link)).c_str(),
                std::string(to_string(edge.canary)).c_str(),
                (edge.reason + edge.canary_detail).c_str());
    report.expect(!edge.access || edge.canary == CanaryState::passed, "canary");
  }
  std::printf("  verdict %d: %s\n", verdict.exit_code, verdict.summary.c_str());
}

}  // namespace

std::vector<NamedCase> local_cases() {
  return {
      {"machine", "topology and canary of this machine", machine},
      {"exchange", "all ranks send random amounts to all, every byte checked", exchange},
      {"graph", "captured kernels, replayed --rounds times", graph},
      {"delay", "one rank comes --seconds late", delay},
      {"deadline", "one rank never comes", deadline},
      {"abort", "the host ends a wait", host_abort},
      {"side", "another stream holds an SM for --seconds", side_stream},
      {"barrier", "time of the all-rank barrier on the device", barrier_latency},
      {"cycles", "create and close --rounds times, nothing leaks", cycles},
      {"emulated", "one computing rank, the others ghosts", emulated},
      {"adopted", "pointers that somebody else mapped", adopted},
  };
}

}  // namespace xstage::gpu_test
