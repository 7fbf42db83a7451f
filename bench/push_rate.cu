// How fast the serial exchange moves rows: the push kernel (bulk copies, register stores) and the
// copy engine, into ghosts in local memory, in pinned host memory and on another GPU, against the
// number of SMs. One JSON object on stdout.
//
//   push_rate [--places local,host,peer] [--rounds N]
//
// Times are medians of graph replays of one exchange, from events around it; the rate counts bytes
// that leave the rank.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attention/ghosts.hpp"
#include "attention/push.hpp"
#include "model/robust.hpp"
#include "probe/cuda.hpp"
#include "xstage/version.hpp"

namespace xstage {
namespace {

using attention::GhostPlace;
using attention::PushOptions;
using attention::PushPlan;
using nlohmann::json;
using probing::check;

constexpr std::int64_t kHeadDim = 128;

struct Shape {
  std::int64_t rows;
  std::int64_t heads;  // of the rank
  int ranks;
};

struct Way {
  std::string name;
  bool by_engine = false;
  PushOptions options;
};

std::vector<Way> ways(bool sweep) {
  std::vector<Way> list = {{"copy engine", true, {}}};
  const std::vector<int> sms =
      sweep ? std::vector<int>{4, 8, 16, 32, 66, 132} : std::vector<int>{0};
  for (const auto kind : {PushOptions::Kind::bulk, PushOptions::Kind::register16}) {
    for (const int num_sms : sms) {
      const std::string name = kind == PushOptions::Kind::bulk ? "bulk" : "register16";
      list.push_back({name, false, {kind, num_sms}});
    }
  }
  return list;
}

class Exchange {
 public:
  Exchange(const Shape& shape, GhostPlace place, int peer_device)
      : shape_(shape),
        memory_(attention::with_ghosts(place, 0, peer_device, shape.ranks, bytes_of(shape))),
        source_(probing::Buffer::Place::device, 0,
                static_cast<std::size_t>(shape.rows * shape.heads * kHeadDim * 2)) {
    std::vector<std::uint32_t> random(source_.size() / 4);
    std::uint32_t state = 1;
    for (auto& word : random) word = state = state * 1664525u + 1013904223u;
    check(cudaMemcpy(source_.data(), random.data(), source_.size(), cudaMemcpyDefault), "upload");
    std::vector<TensorView> to;
    const auto shards = SequenceShards::even(static_cast<std::int32_t>(shape.rows), shape.ranks, 0);
    const PeerTable table = memory_.table();
    for (int p = 0; p < shape.ranks; ++p) {
      to.push_back(attention::heads_of(
          TensorView::bshd(table.bases[p], DataType::bf16, 1, shards.owner_rows(p),
                           shape.heads * shape.ranks, kHeadDim),
          0, shape.heads));
    }
    plan_ = attention::gather_plan(
        shards,
        TensorView::bshd(source_.data(), DataType::bf16, 1, shape.rows, shape.heads, kHeadDim), to);
  }

  [[nodiscard]] const PushPlan& plan() const { return plan_; }

  std::vector<double> measure(const Way& way, int rounds) {
    probing::Stream stream(0);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capture");
    if (way.by_engine) {
      attention::copy_by_engine(plan_, {}, {stream.get()});
    } else {
      attention::push(plan_, {}, way.options, {stream.get()});
    }
    check(cudaStreamEndCapture(stream.get(), &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    const probing::EventPair events;
    std::vector<double> times;
    for (int i = 0; i < rounds + 3; ++i) {
      events.begin(stream);
      check(cudaGraphLaunch(exec, stream.get()), "cudaGraphLaunch");
      events.end(stream);
      const double elapsed = events.elapsed_ns();
      if (i >= 3) times.push_back(elapsed);
    }
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
    return times;
  }

 private:
  static std::size_t bytes_of(const Shape& s) {
    return static_cast<std::size_t>((s.rows + s.ranks - 1) / s.ranks * s.heads * s.ranks *
                                    kHeadDim * 2);
  }
  Shape shape_;
  PeerMemory memory_;
  probing::Buffer source_;
  PushPlan plan_;
};

void measure_place(GhostPlace place, int peer_device, int rounds, json& rows) {
  const Shape shapes[] = {{4608, 12, 2}, {8704, 12, 2}, {32760, 12, 2}, {32760, 20, 2},
                          {8192, 4, 8},  {32768, 4, 8}, {4608, 3, 8},   {65536, 1, 8}};
  for (const Shape& shape : shapes) {
    Exchange exchange(shape, place, peer_device);
    const bool sweep = shape.rows >= 32760;
    for (const Way& way : ways(sweep)) {
      const auto times = exchange.measure(way, rounds);
      const double median = model::median(times);
      rows.push_back({{"place", to_string(place)},
                      {"rows", shape.rows},
                      {"heads_of_rank", shape.heads},
                      {"ranks", shape.ranks},
                      {"way", way.name},
                      {"sms", way.options.num_sms},
                      {"bytes", exchange.plan().bytes},
                      {"remote_bytes", exchange.plan().remote_bytes},
                      {"median_ns", median},
                      {"gb_per_s", static_cast<double>(exchange.plan().remote_bytes) / median},
                      {"times_ns", times}});
      std::fprintf(stderr, "%-6s %6ld x %2ld of %d ranks  %-11s %3d SMs  %8.1f us  %6.1f GB/s\n",
                   std::string(to_string(place)).c_str(), static_cast<long>(shape.rows),
                   static_cast<long>(shape.heads), shape.ranks, way.name.c_str(),
                   way.options.num_sms, median / 1e3,
                   static_cast<double>(exchange.plan().remote_bytes) / median);
    }
  }
}

int run(int argc, char** argv) {
  std::string places = "local,host,peer";
  int rounds = 20;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--places") places = argv[i + 1];
    if (option == "--rounds") rounds = std::max(3, std::atoi(argv[i + 1]));
  }
  int num_gpus = 0;
  if (cudaGetDeviceCount(&num_gpus) != cudaSuccess || num_gpus == 0) {
    std::fprintf(stderr, "push_rate: not possible here: no GPU\n");
    return 3;
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  json result = {{"schema", "xstage.push_rate"}, {"version", 1},
                 {"gpu", properties.name},       {"num_gpus", num_gpus},
                 {"commit", source_commit()},    {"rounds", rounds}};
  json rows = json::array();
  const int peer_device = num_gpus > 1 ? 1 : -1;
  for (const auto place : {GhostPlace::local, GhostPlace::host, GhostPlace::peer}) {
    if (places.find(to_string(place)) == std::string::npos) continue;
    if (const auto why = attention::why_no_ghosts(place, 0, peer_device); !why.empty()) {
      std::fprintf(stderr, "%s: left out: %s\n", std::string(to_string(place)).c_str(),
                   why.c_str());
      result["left_out"][std::string(to_string(place))] = why;
      continue;
    }
    measure_place(place, peer_device, rounds, rows);
  }
  result["rows"] = std::move(rows);
  std::printf("%s\n", result.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace xstage

int main(int argc, char** argv) {
  try {
    return xstage::run(argc, argv);
  } catch (const xstage::Error& error) {
    std::fprintf(stderr, "push_rate: %s\n", error.what());
    return error.exit_code();
  }
}
