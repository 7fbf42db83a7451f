// moe_processes: the expert-parallel layer with one process per rank, every value against float64.
//
//   moe_processes CASE... [--ranks N] [--devices 0,1] [--rounds N] [--seed N]
//
// Cases: values (random shapes and routings), replays (--rounds replays of a graph), soak (--rounds
// calls in a row), kill (kill -9 of a rank). Exit code 0: all right, 1: a case failed, 2: usage,
// 3: no GPU here.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "moe_reference.cuh"
#include "peers_harness.hpp"
#include "xstage/error.hpp"

namespace xstage::test {
namespace {

using gpu_test::Options;
using gpu_test::Outcome;
using gpu_test::Report;

constexpr double kDeadlineSeconds = 60;

// One rank's layer. Weights of all ranks are here, for the reference.
struct ProcessLayer {
  MoeShape shape;
  MoeOptions options;
  std::unique_ptr<MoeRank> rank;
  std::vector<Weights> weights;
  std::unique_ptr<MoeLayer> layer;

  // Collective; the same `random` on all ranks.
  ProcessLayer(Group& group, const Options& how, const MoeShape& s, const MoeOptions& o,
               std::mt19937& random)
      : shape(s), options(o) {
    PeerOptions peer;
    peer.device = how.device_of(group.rank());
    peer.deadline_ns = static_cast<std::uint64_t>(kDeadlineSeconds * 1e9);
    check(cudaSetDevice(peer.device), "cudaSetDevice");
    const int num_ranks = group.num_ranks();
    rank = std::make_unique<MoeRank>(
        PeerMemory::create(group, MoeLayer::buffer_bytes(shape, num_ranks, options), peer), shape,
        options);
    for (int r = 0; r < num_ranks; ++r) {
      const int count = moe_experts_of(shape, num_ranks, r).count + shape.num_shared_experts;
      weights.emplace_back(shape, count, peer.device, rank->handle(), random);
    }
    layer = std::make_unique<MoeLayer>(
        rank->memory, shape, weights[static_cast<std::size_t>(group.rank())].view(),
        Workspace{rank->workspace.data(), rank->workspace.size()}, options);
    group.barrier();
  }
  void run() const { layer->run(rank->call, rank->handle()); }
  void finish() const {
    rank->stream.synchronize();
    rank->memory.check();
    if (!layer->status().fine) throw Error(ErrorCategory::check_failed, layer->status().text);
  }
  // Runs a call and compares its values.
  void expect_right(Group& group, const HostInputs& inputs) const {
    rank->upload(inputs);
    run();
    finish();
    const std::string wrong = wrong_value(shape, options, weights, group.rank(), inputs,
                                          download<std::uint16_t>(rank->y));
    if (!wrong.empty()) throw Error(ErrorCategory::check_failed, wrong);
  }
};

// Inputs of all ranks from the same `random`; returns this rank's.
HostInputs inputs_of(const Group& group, const MoeShape& shape, const RoutingKind& kind,
                     std::mt19937& random) {
  HostInputs mine;
  for (int rank = 0; rank < group.num_ranks(); ++rank) {
    const auto most = static_cast<unsigned>(shape.max_tokens);
    const int num_tokens = random() % 4 == 0 ? 0 : static_cast<int>(random() % (most + 1));
    HostInputs inputs = random_inputs(shape, num_tokens, kind, random);
    if (rank == group.rank()) mine = std::move(inputs);
  }
  return mine;
}

MoeOptions way_of(unsigned bits) {
  MoeOptions options;
  options.dispatch = (bits & 1) != 0 ? MoeTransfer::push : MoeTransfer::pull;
  options.combine = (bits & 2) != 0 ? MoeTransfer::push : MoeTransfer::pull;
  options.send_once = (bits & 4) == 0;
  return options;
}

MoeShape random_shape(int num_ranks, std::mt19937& random) {
  MoeShape shape;
  shape.max_tokens = 8 + static_cast<int>(random() % 33);
  shape.hidden = 64 * (1 + static_cast<int>(random() % 6));
  shape.intermediate = 64 * (1 + static_cast<int>(random() % 4));
  shape.num_experts = num_ranks + static_cast<int>(random() % 9);
  shape.top_k = 1 + static_cast<int>(random() % 5);
  shape.num_shared_experts = static_cast<int>(random() % 3);
  shape.dtype = random() % 2 == 0 ? DataType::fp8 : DataType::bf16;
  return shape;
}

std::string values(Group& group, const Options& how) {
  std::mt19937 random(how.seed);
  int num_calls = 0;
  for (unsigned round = 0; round < 12; ++round) {
    const MoeShape shape = random_shape(group.num_ranks(), random);
    const ProcessLayer layer(group, how, shape, way_of(round), random);
    const RoutingKind kinds[] = {{0, 0, false}, {0.3, 0, true}, {0, 0.7, true}};
    for (const RoutingKind& kind : kinds) {
      layer.expect_right(group, inputs_of(group, shape, kind, random));
      ++num_calls;
    }
    group.barrier();
  }
  return std::to_string(num_calls) + " calls";
}

constexpr std::size_t kNumSets = 4;

struct CheckedSets {
  std::vector<HostInputs> inputs;
  std::vector<std::vector<std::uint16_t>> y;

  CheckedSets(Group& group, const ProcessLayer& layer, std::mt19937& random) {
    for (std::size_t set = 0; set < kNumSets; ++set) {
      for (int rank = 0; rank < group.num_ranks(); ++rank) {
        HostInputs one =
            random_inputs(layer.shape, layer.shape.max_tokens - 3 * rank, {0.1, 0.1, true}, random);
        if (rank == group.rank()) inputs.push_back(std::move(one));
      }
      layer.expect_right(group, inputs[set]);
      y.push_back(download<std::uint16_t>(layer.rank->y));
    }
  }
  void expect_bits(const ProcessLayer& layer, std::size_t set, int call) const {
    const auto got = download<std::uint16_t>(layer.rank->y);
    const auto count = static_cast<std::ptrdiff_t>(inputs[set].num_tokens) * layer.shape.hidden;
    if (std::equal(got.begin(), got.begin() + count, y[set].begin())) return;
    throw Error(ErrorCategory::check_failed, "call " + std::to_string(call) + ": other bits");
  }
};

MoeShape soak_shape() {
  MoeShape shape;
  shape.max_tokens = 48;
  shape.hidden = 512;
  shape.intermediate = 128;
  shape.num_experts = 7;
  shape.top_k = 3;
  return shape;
}

std::string replays(Group& group, const Options& how) {
  std::mt19937 random(how.seed);
  const ProcessLayer layer(group, how, soak_shape(), {}, random);
  const CheckedSets sets(group, layer, random);
  cudaGraph_t captured = nullptr;
  cudaGraphExec_t graph = nullptr;
  const cudaStream_t stream = layer.rank->stream.get();
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  layer.run();
  check(cudaStreamEndCapture(stream, &captured), "capture");
  check(cudaGraphInstantiate(&graph, captured, 0), "instantiate");
  check(cudaGraphDestroy(captured), "destroy");
  for (int replay = 0; replay < how.num_rounds; ++replay) {
    const std::size_t set = random() % kNumSets;
    layer.rank->upload(sets.inputs[set]);
    check(cudaGraphLaunch(graph, stream), "launch");
    layer.finish();
    sets.expect_bits(layer, set, replay);
  }
  check(cudaGraphExecDestroy(graph), "destroy");
  group.barrier();
  return std::to_string(how.num_rounds) + " replays";
}

// Calls that do not wait for the host, checked every tenth call.
std::string soak(Group& group, const Options& how) {
  std::mt19937 random(how.seed);
  const ProcessLayer layer(group, how, soak_shape(), way_of(3), random);
  const CheckedSets sets(group, layer, random);
  for (int call = 0; call < how.num_rounds;) {
    const std::size_t set = random() % kNumSets;
    layer.rank->upload(sets.inputs[set]);
    for (int i = 0; i < 10; ++i, ++call) layer.run();
    layer.finish();
    sets.expect_bits(layer, set, call);
  }
  group.barrier();
  return std::to_string(how.num_rounds) + " calls";
}

void expect_all_fine(const std::string& name, const std::vector<Outcome>& outcomes,
                     Report& report) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    report.expect(outcomes[rank].exit_code == 0,
                  name + ": rank " + std::to_string(rank) + " ended with " +
                      std::to_string(outcomes[rank].exit_code) + ": " + outcomes[rank].text);
  }
  if (outcomes.empty()) return;
  std::printf("%s: %s, %.1f s\n", name.c_str(), outcomes[0].text.c_str(),
              outcomes[0].seconds_to_end);
}

void kill_one(const Options& how, int num_ranks, Report& report) {
  int ready[2];
  if (::pipe(ready) != 0) throw Error(ErrorCategory::runtime, "pipe failed");
  const int victim = num_ranks - 1;
  std::chrono::steady_clock::time_point death;
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = gpu_test::run_ranks(
      num_ranks,
      [&](Group& group) {
        std::mt19937 random(how.seed);
        const ProcessLayer layer(group, how, soak_shape(), {}, random);
        layer.expect_right(group, inputs_of(group, layer.shape, {}, random));
        group.barrier();
        (void)!::write(ready[1], "x", 1);
        while (true) {
          layer.run();
          layer.finish();
        }
        return std::string();
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
  for (int rank = 0; rank < victim; ++rank) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    const double took = outcome.seconds_to_error - death_at;
    std::printf("kill: rank %d after %.3f s: %s\n", rank, took, outcome.text.c_str());
    report.expect(outcome.exit_code == 5, "kill: rank " + std::to_string(rank) + " ended with " +
                                              std::to_string(outcome.exit_code) + ": " +
                                              outcome.text);
    report.expect(took <= 1.0, "kill: took " + std::to_string(took) + " s to raise the error");
  }
}

int run(int argc, char** argv) {
  Options how;
  int num_ranks = 2;
  how.num_rounds = 1000;
  std::vector<std::string> cases;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--", 0) != 0) {
      cases.push_back(word);
      continue;
    }
    if (i + 1 == argc) throw Error(ErrorCategory::usage, word + ": a value is missing");
    const std::string value = argv[++i];
    if (word == "--ranks") {
      num_ranks = std::stoi(value);
    } else if (word == "--rounds") {
      how.num_rounds = std::stoi(value);
    } else if (word == "--seed") {
      how.seed = static_cast<std::uint32_t>(std::stoul(value));
    } else if (word == "--devices") {
      how.devices.clear();
      for (const char digit : value) {
        if (digit != ',') how.devices.push_back(digit - '0');
      }
    } else {
      throw Error(ErrorCategory::usage, word + ": legal --ranks --devices --rounds --seed");
    }
  }
  std::printf("seed %u\n", how.seed);
  Report report;
  for (const std::string& name : cases) {
    const auto in_processes = [&](auto body) {
      expect_all_fine(
          name, gpu_test::run_ranks(num_ranks, [&](Group& group) { return body(group, how); }),
          report);
    };
    if (name == "values") {
      in_processes(values);
    } else if (name == "replays") {
      in_processes(replays);
    } else if (name == "soak") {
      in_processes(soak);
    } else if (name == "kill") {
      kill_one(how, num_ranks, report);
    } else {
      throw Error(ErrorCategory::usage, name + ": legal values, replays, soak, kill");
    }
  }
  for (const std::string& failure : report.failures) std::printf("FAILED %s\n", failure.c_str());
  return report.fine() ? 0 : 1;
}

// In a process of its own: CUDA must not start before the ranks do.
bool has_gpu() {
  const auto outcomes = gpu_test::run_ranks(1, [](Group&) { return why_no_gpu(); });
  return outcomes[0].exit_code == 0 && outcomes[0].text.empty();
}

}  // namespace
}  // namespace xstage::test

int main(int argc, char** argv) {
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a line that is printed stays printed
  // Ranks that share a GPU need a queue each only within one process: 32 make processes slow to
  // end.
  (void)::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  try {
    if (!xstage::test::has_gpu()) {
      std::printf("no GPU of compute capability 9.0 here\n");
      return 3;
    }
    return xstage::test::run(argc, argv);
  } catch (const xstage::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
