// Runs the exchange benchmark: set-up, checks, rounds. What a rank does is in timed_rank.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <sstream>

#include "attention/ghosts.hpp"
#include "attention/timed_rank.hpp"
#include "attention/timed_stamps.cuh"
#include "xstage/error.hpp"
#include "xstage/exchange_bench.hpp"

namespace xstage {
namespace {

using attention::GhostPlace;
using attention::Stamp;
using attention::StampLog;
using attention::TimedLayout;
using attention::TimedRank;
using attention::TimedShape;
using probing::Buffer;
using probing::check;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCategory::usage, "bench exchange: " + message);
}
[[noreturn]] void cannot(const std::string& message) {
  throw Error(ErrorCategory::not_possible, "bench exchange: " + message);
}

int num_gpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return count;
}

// A captured candidate of one rank.
class Graph {
 public:
  Graph() = default;
  Graph(Graph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  Graph& operator=(Graph&&) = delete;
  ~Graph() {
    if (exec_ != nullptr) (void)cudaGraphExecDestroy(exec_);
  }

  template <typename Work>
  void capture(cudaStream_t stream, Work work) {
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    try {
      work();
    } catch (...) {
      (void)cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) (void)cudaGraphDestroy(graph);
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph), "capture");
    const cudaError_t status = cudaGraphInstantiate(&exec_, graph, 0);
    (void)cudaGraphDestroy(graph);
    check(status, "cudaGraphInstantiate");
  }
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(exec_, stream), "graph launch"); }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

struct Runner {
  std::unique_ptr<TimedRank> rank;
  Buffer log;
  std::vector<Graph> graphs;  // [candidate]
};

// Samples of one rank: [candidate][replay].
struct Samples {
  std::vector<std::vector<double>> done;
  std::vector<std::vector<double>> sent;
  std::vector<std::vector<double>> clock;
};

class ExchangeBench {
 public:
  explicit ExchangeBench(const ExchangeBenchOptions& options) : options_(options) {
    check_request();
    shape_ = {options.workload, options.num_ranks};
    say("allocating");
    create_ranks();
    for (const ExchangeCandidate& c : options.candidates) {
      result_.series.push_back({});
      result_.series.back().name = c.name;
    }
  }

  ExchangeMeasurement run() {
    describe();
    for (std::size_t i = 0; i < options_.candidates.size(); ++i) prepare(i);
    for (std::size_t i = 0; i < options_.candidates.size(); ++i) {
      if (result_.series[i].why_not.empty()) verify(i);
    }
    say("warming up");
    const auto begin = std::chrono::steady_clock::now();
    (void)round();
    const double first = seconds_since(begin);
    const int num_rounds =
        agree(std::clamp(static_cast<int>(options_.seconds / std::max(first, 1e-6)),
                         options_.min_rounds, options_.max_rounds));
    std::vector<Samples> mine(runners_.size());
    for (int i = 0; i < num_rounds; ++i) {
      say("measuring");
      const std::vector<Samples> of_round = round();
      for (std::size_t r = 0; r < mine.size(); ++r) append(mine[r], of_round[r]);
    }
    collect(mine);
    for (auto& runner : runners_) runner.rank->memory().check();
    return std::move(result_);
  }

 private:
  void say(std::string_view what) const {
    if (options_.progress) options_.progress(what);
  }
  static double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  void check_request() const {
    const AttentionWorkload& w = options_.workload;
    if (w.dtype != DataType::bf16 && w.dtype != DataType::fp16) {
      refuse("the data type is " + std::string(to_string(w.dtype)) + ": legal bf16, fp16");
    }
    const int most = std::min(w.num_heads, kMaxRanks);
    if (options_.num_ranks < 1 || options_.num_ranks > most) {
      refuse(std::to_string(options_.num_ranks) + " ranks: legal 1.." + std::to_string(most) +
             " (attention is spread over heads, and there are " + std::to_string(w.num_heads) +
             ")");
    }
    if (options_.candidates.empty()) refuse("no candidates");
    const int replays = 2 * options_.max_rounds * static_cast<int>(options_.candidates.size());
    if (options_.max_rounds < options_.min_rounds || options_.min_rounds < 1 || replays < 1) {
      refuse("rounds " + std::to_string(options_.min_rounds) + ".." +
             std::to_string(options_.max_rounds) + ": legal 1 and more");
    }
    if (2 * options_.candidates.size() > static_cast<std::size_t>(attention::kMaxStamps)) {
      refuse("more than " + std::to_string(attention::kMaxStamps / 2) + " candidates");
    }
    if (options_.group != nullptr && options_.peers != ExchangePeers::real) {
      refuse("ghosts belong to one process: start it without a launcher");
    }
  }

  [[nodiscard]] bool wants_local_owners() const {
    return std::any_of(options_.candidates.begin(), options_.candidates.end(),
                       [](const auto& c) { return c.way == ExchangeWay::fused && c.local_owners; });
  }

  void create_ranks() {
    const int gpus = num_gpus();
    if (gpus == 0) cannot("no GPU or no driver here");
    const TimedLayout layout = attention::timed_layout(shape_, options_.candidates);
    std::vector<PeerMemory> memories;
    PeerOptions peer_options;
    if (options_.peers != ExchangePeers::real) {
      const GhostPlace place = options_.peers == ExchangePeers::local_ghosts  ? GhostPlace::local
                               : options_.peers == ExchangePeers::host_ghosts ? GhostPlace::host
                                                                              : GhostPlace::peer;
      memories.push_back(attention::with_ghosts(place, 0, gpus > 1 ? 1 : -1, options_.num_ranks,
                                                layout.bytes, peer_options));
    } else if (options_.group != nullptr) {
      Group& group = *options_.group;
      if (group.num_ranks() != options_.num_ranks) {
        refuse(std::to_string(options_.num_ranks) + " ranks, but the launcher started " +
               std::to_string(group.num_ranks()));
      }
      peer_options.device = group.launch().local_rank % gpus;
      memories.push_back(PeerMemory::create(group, layout.bytes, peer_options));
    } else {
      if (gpus < options_.num_ranks) {
        cannot(std::to_string(options_.num_ranks) + " ranks that compute need as many GPUs; here " +
               (gpus == 1 ? "is 1" : "are " + std::to_string(gpus)));
      }
      std::vector<int> devices;
      for (int r = 0; r < options_.num_ranks; ++r) devices.push_back(r);
      memories = PeerMemory::create_local(devices, layout.bytes, peer_options);
    }
    for (PeerMemory& memory : memories) {
      Runner runner;
      check(cudaSetDevice(memory.device()), "cudaSetDevice");
      runner.rank = std::make_unique<TimedRank>(shape_, std::move(memory), options_.seed,
                                                options_.candidates, options_.group);
      if (wants_local_owners()) runner.rank->make_local_twin();
      runner.log = Buffer(Buffer::Place::device, runner.rank->device(), sizeof(StampLog));
      check(cudaMemset(runner.log.data(), 0, sizeof(StampLog)), "cudaMemset");
      runner.graphs.resize(options_.candidates.size());
      runners_.push_back(std::move(runner));
    }
    load_stamps();
  }

  // Loading a kernel waits for those that run: all are loaded before a rank waits for another.
  void load_stamps() const {
    for (const auto& runner : runners_) {
      check(cudaSetDevice(runner.rank->device()), "cudaSetDevice");
      cudaFuncAttributes attributes{};
      check(cudaFuncGetAttributes(&attributes, attention::start_kernel), "load");
      check(cudaFuncGetAttributes(&attributes, attention::sent_kernel), "load");
      check(cudaFuncGetAttributes(&attributes, attention::done_kernel), "load");
    }
  }

  void describe() {
    cudaDeviceProp properties{};
    const TimedRank& rank = *runners_.front().rank;
    const PeerMemory& memory = runners_.front().rank->memory();
    check(cudaGetDeviceProperties(&properties, rank.device()), "cudaGetDeviceProperties");
    result_.gpu = properties.name;
    result_.num_sms = properties.multiProcessorCount;
    check(cudaDriverGetVersion(&result_.driver_version), "cudaDriverGetVersion");
    check(cudaRuntimeGetVersion(&result_.runtime_version), "cudaRuntimeGetVersion");
    result_.num_computing_ranks = memory.num_computing_ranks();
    result_.emulated = memory.emulated();
    const AttentionWorkload& w = options_.workload;
    result_.num_tiles = std::int64_t{w.batch} * shape_.heads_of(0) * ceil_div(w.sequence, 128);
    const SequenceShards shards = shape_.shards(0);
    for (int p = 1; p < shape_.num_ranks; ++p) {
      result_.sent_bytes +=
          static_cast<std::int64_t>(shape_.tensor_bytes(shards.owner_rows(p), shape_.heads_of(0)));
    }
  }

  void enqueue(Runner& runner, std::size_t idx) const {
    const ExchangeCandidate& candidate = options_.candidates[idx];
    auto* log = runner.log.as<StampLog>();
    TimedRank& rank = *runner.rank;
    const cudaStream_t stream = rank.stream().get();
    PeerTable computing = rank.memory().table();
    computing.num_ranks = rank.memory().num_computing_ranks();
    attention::start_kernel<<<1, 32, 0, stream>>>(rank.memory().wait_context(), computing, log);
    rank.enqueue(candidate);
    attention::sent_kernel<<<1, 1, 0, stream>>>(log);
    rank.enqueue_wait(candidate);
    attention::done_kernel<<<1, 1, 0, stream>>>(log);
    check(cudaGetLastError(), "launch");
  }

  // Run once, then captured, everywhere or nowhere: what cannot be done is refused on all ranks
  // alike, before anything is launched.
  void prepare(std::size_t idx) {
    ExchangeSeries& series = result_.series[idx];
    say(series.name + ": capturing");
    try {
      for (Runner& runner : runners_) {
        check(cudaSetDevice(runner.rank->device()), "cudaSetDevice");
        runner.rank->enqueue(options_.candidates[idx]);
        runner.rank->enqueue_wait(options_.candidates[idx]);
      }
      synchronize();
      for (Runner& runner : runners_) {
        TimedRank& rank = *runner.rank;
        check(cudaSetDevice(rank.device()), "cudaSetDevice");
        runner.graphs[idx].capture(rank.stream().get(), [&] { enqueue(runner, idx); });
        series.fell_back = rank.fell_back(options_.candidates[idx]);
      }
    } catch (const Error& error) {
      const bool is_refusal = error.category() == ErrorCategory::usage ||
                              error.category() == ErrorCategory::not_possible;
      if (!is_refusal) throw;
      series.why_not = error.what();
    }
    if (options_.group == nullptr) return;
    for (const std::string& why : options_.group->all_gather(series.why_not)) {
      if (series.why_not.empty()) series.why_not = why;
    }
  }

  void launch(std::size_t idx) {
    for (Runner& runner : runners_) {
      check(cudaSetDevice(runner.rank->device()), "cudaSetDevice");
      runner.graphs[idx].launch(runner.rank->stream().get());
    }
  }
  void synchronize() {
    for (Runner& runner : runners_) runner.rank->stream().synchronize();
    for (Runner& runner : runners_) runner.rank->memory().check();
  }
  void meet() {
    if (options_.group != nullptr) options_.group->barrier();
  }

  void verify(std::size_t idx) {
    ExchangeSeries& series = result_.series[idx];
    say(series.name + ": checking");
    for (Runner& runner : runners_) runner.rank->poison(options_.candidates[idx]);
    synchronize();
    meet();
    launch(idx);
    synchronize();
    meet();
    std::int64_t wrong = 0;
    for (Runner& runner : runners_) wrong += runner.rank->wrong_bytes(options_.candidates[idx]);
    if (options_.group != nullptr) {
      std::int64_t sum = 0;
      for (const auto& text : options_.group->all_gather(std::to_string(wrong))) {
        sum += std::stoll(text);
      }
      wrong = sum;
    }
    series.wrong_bytes = wrong;
  }

  // All candidates forwards and backwards, enqueued as one.
  std::vector<Samples> round() {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < options_.candidates.size(); ++i) {
      if (result_.series[i].why_not.empty()) order.push_back(i);
    }
    for (std::size_t i = order.size(); i > 0; --i) order.push_back(order[i - 1]);
    for (Runner& runner : runners_) {
      check(cudaSetDevice(runner.rank->device()), "cudaSetDevice");
      check(cudaMemsetAsync(runner.log.data(), 0, sizeof(std::uint32_t) * 2,
                            runner.rank->stream().get()),
            "cudaMemsetAsync");
    }
    for (const std::size_t idx : order) launch(idx);
    synchronize();
    std::vector<Samples> all;
    std::vector<char> bytes(sizeof(StampLog));
    for (Runner& runner : runners_) {
      check(cudaMemcpy(bytes.data(), runner.log.data(), sizeof(StampLog), cudaMemcpyDefault),
            "log");
      all.push_back(read_log(*reinterpret_cast<const StampLog*>(bytes.data()), order));
    }
    return all;
  }

  Samples read_log(const StampLog& log, const std::vector<std::size_t>& order) const {
    if (log.count != order.size()) {
      throw Error(ErrorCategory::runtime, "bench exchange: " + std::to_string(log.count) +
                                              " replays were logged, not " +
                                              std::to_string(order.size()));
    }
    Samples s;
    const std::size_t count = options_.candidates.size();
    s.done.resize(count);
    s.sent.resize(count);
    s.clock.resize(count);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Stamp& stamp = log.stamps[i];
      s.done[order[i]].push_back(static_cast<double>(stamp.done - stamp.start));
      s.sent[order[i]].push_back(static_cast<double>(stamp.sent - stamp.start));
      s.clock[order[i]].push_back(static_cast<double>(stamp.clock_cycles) * 1e3 /
                                  static_cast<double>(stamp.clock_ns));
    }
    return s;
  }

  static void append(Samples& all, const Samples& more) {
    const auto add = [](auto& to, const auto& from) {
      to.resize(from.size());
      for (std::size_t i = 0; i < from.size(); ++i) {
        to[i].insert(to[i].end(), from[i].begin(), from[i].end());
      }
    };
    add(all.done, more.done);
    add(all.sent, more.sent);
    add(all.clock, more.clock);
  }

  // The same number on all ranks.
  int agree(int value) {
    if (options_.group == nullptr) return value;
    return std::stoi(options_.group->all_gather(std::to_string(value)).front());
  }

  // The slowest rank's times, the mean clock.
  void collect(const std::vector<Samples>& mine) {
    for (std::size_t i = 0; i < result_.series.size(); ++i) {
      ExchangeSeries& series = result_.series[i];
      if (!series.why_not.empty()) continue;
      series.done_ns = over_ranks(mine, &Samples::done, i, true);
      series.sent_ns = over_ranks(mine, &Samples::sent, i, true);
      series.clock_mhz = over_ranks(mine, &Samples::clock, i, false);
    }
  }

  std::vector<double> over_ranks(const std::vector<Samples>& mine,
                                 std::vector<std::vector<double>> Samples::*member, std::size_t idx,
                                 bool largest) {
    std::vector<std::vector<double>> ranks;
    for (const Samples& s : mine) ranks.push_back((s.*member)[idx]);
    if (options_.group != nullptr) {
      std::ostringstream text;
      text.precision(17);
      for (const double v : ranks.front()) text << v << ' ';
      ranks.clear();
      for (const std::string& line : options_.group->all_gather(text.str())) {
        std::istringstream words(line);
        ranks.emplace_back();
        for (double v = 0; words >> v;) ranks.back().push_back(v);
      }
    }
    std::vector<double> values = ranks.front();
    for (std::size_t r = 1; r < ranks.size(); ++r) {
      for (std::size_t i = 0; i < values.size() && i < ranks[r].size(); ++i) {
        values[i] = largest ? std::max(values[i], ranks[r][i]) : values[i] + ranks[r][i];
      }
    }
    if (!largest) {
      for (double& v : values) v /= static_cast<double>(ranks.size());
    }
    return values;
  }

  const ExchangeBenchOptions& options_;
  TimedShape shape_;
  std::vector<Runner> runners_;
  ExchangeMeasurement result_;
};

}  // namespace

ExchangeMeasurement measure_exchange(const ExchangeBenchOptions& options) {
  return ExchangeBench(options).run();
}

}  // namespace xstage
