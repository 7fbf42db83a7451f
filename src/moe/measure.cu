// Measuring the layer: random data, emulated ranks, events between phases, graphs of whole calls.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "device/ptx.cuh"
#include "moe/layer.hpp"
#include "moe/measure.hpp"
#include "moe/measure_inputs.hpp"
#include "peers/cuda_check.hpp"
#include "probe/cuda.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

using peers::check_cuda;
using probing::Buffer;

constexpr int kNumPhases = 8;  // stage, route, dispatch, linear1, linear2, scatter, meet, sum

__device__ inline std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}
__device__ inline float normal(std::uint64_t at, std::uint64_t seed) {
  const std::uint64_t bits = scramble(at + (seed << 44));
  const float u = (static_cast<float>(bits >> 40) + 0.5f) / 16777216.f;
  const float angle = static_cast<float>(bits & 0xffffff) / 16777216.f * 6.2831853f;
  return sqrtf(-2.f * __logf(u)) * __cosf(angle);
}

// Standard normal numbers times `spread`, as bf16, e4m3 or float32 of 0.5 .. 1.5 times `spread`.
enum class Fill { bf16, e4m3, scale };
__global__ void fill_kernel(void* out, std::int64_t count, Fill kind, float spread,
                            std::uint64_t seed) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const auto at = static_cast<std::uint64_t>(i);
    if (kind == Fill::bf16) {
      static_cast<__nv_bfloat16*>(out)[i] = __float2bfloat16(spread * normal(at, seed));
    } else if (kind == Fill::e4m3) {
      static_cast<__nv_fp8_e4m3*>(out)[i] = __nv_fp8_e4m3(spread * normal(at, seed));
    } else {
      const float share = static_cast<float>(scramble(at + (seed << 44)) >> 40) / 16777216.f;
      static_cast<float*>(out)[i] = spread * (0.5f + share);
    }
  }
}

void fill(void* out, std::size_t count, Fill kind, float spread, std::uint64_t seed) {
  if (count == 0) return;
  fill_kernel<<<2048, 256>>>(out, static_cast<std::int64_t>(count), kind, spread, seed);
  check_cuda(cudaGetLastError(), "fill");
}

// Rows of x with their scales, as the layer stages them.
__global__ void fill_staged_kernel(char* rows, Geometry g, std::int64_t count, std::uint64_t seed) {
  for (std::int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    char* to = rows + row * g.x_pitch;
    for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < g.hidden; i += blockDim.x) {
      const float value = normal(static_cast<std::uint64_t>(row * g.hidden + i), seed);
      if (g.num_scales > 0) {
        reinterpret_cast<__nv_fp8_e4m3*>(to)[i] = __nv_fp8_e4m3(64.f * value);
      } else {
        reinterpret_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16(value);
      }
    }
    for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < g.num_scales;
         i += blockDim.x) {
      reinterpret_cast<float*>(to + g.row_bytes)[i] = (1.f + 0.01f * static_cast<float>(i)) / 64.f;
    }
  }
}

__global__ void count_not_finite_kernel(const std::uint16_t* values, std::int64_t count,
                                        unsigned long long* num_bad) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    if ((values[i] & 0x7f80u) == 0x7f80u) atomicAdd(num_bad, 1ull);
  }
}

// Keeps a stream busy until the host has enqueued what follows.
__global__ void delay_kernel(std::uint64_t duration_ns) {
  const std::uint64_t start = device::global_time_ns();
  while (device::global_time_ns() - start < duration_ns) {
  }
}

__global__ void read_kernel(const uint4* from, std::int64_t count, std::uint32_t* sink) {
  std::uint32_t sum = 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += 4 * stride) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      if (i + part * stride >= count) continue;
      const uint4 value = from[i + part * stride];
      sum += value.x ^ value.y ^ value.z ^ value.w;
    }
  }
  if (sum == 0x12345u) *sink = sum;
}

// Weights of one GPU, for all ways.
struct WeightBuffers {
  Buffer w1, w1_scales, w2, w2_scales;

  WeightBuffers(const MoeShape& shape, int num_local, int device, std::uint64_t seed) {
    const auto matrix = static_cast<std::size_t>(shape.hidden) * shape.intermediate *
                        static_cast<std::size_t>(num_local);
    const auto blocks = [](int size) { return static_cast<std::size_t>((size + 127) / 128); };
    const bool is_fp8 = shape.dtype == DataType::fp8;
    const std::size_t bytes = is_fp8 ? 1 : 2;
    const auto make = [&](std::size_t size) { return Buffer(Buffer::Place::device, device, size); };
    const float spread1 = 1.f / std::sqrt(static_cast<float>(shape.hidden));
    const float spread2 = 1.f / std::sqrt(static_cast<float>(shape.intermediate));
    w1 = make(2 * matrix * bytes);
    w2 = make(matrix * bytes);
    const Fill kind = is_fp8 ? Fill::e4m3 : Fill::bf16;
    fill(w1.data(), 2 * matrix, kind, is_fp8 ? 64.f : spread1, seed + 11);
    fill(w2.data(), matrix, kind, is_fp8 ? 64.f : spread2, seed + 12);
    if (!is_fp8) return;
    const std::size_t num_scales =
        static_cast<std::size_t>(num_local) * blocks(shape.intermediate) * blocks(shape.hidden);
    w1_scales = make(2 * num_scales * 4);
    w2_scales = make(num_scales * 4);
    fill(w1_scales.data(), 2 * num_scales, Fill::scale, spread1 / 64.f, seed + 13);
    fill(w2_scales.data(), num_scales, Fill::scale, spread2 / 64.f, seed + 14);
  }
  [[nodiscard]] MoeWeights view() const {
    return {w1.data(), w1_scales.as<float>(), w2.data(), w2_scales.as<float>()};
  }
};

// One computing rank of one way.
struct RankOfWay {
  PeerMemory memory;
  Buffer workspace;
  std::unique_ptr<Layer> layer;
  MoeCall call;  // x in input()
  cudaGraphExec_t graph = nullptr;

  explicit RankOfWay(PeerMemory m) : memory(std::move(m)) {}
  RankOfWay(RankOfWay&& other) noexcept
      : memory(std::move(other.memory)),
        workspace(std::move(other.workspace)),
        layer(std::move(other.layer)),
        call(other.call),
        graph(std::exchange(other.graph, nullptr)) {}
  RankOfWay& operator=(RankOfWay&&) = delete;
  ~RankOfWay() {
    if (graph != nullptr) (void)cudaGraphExecDestroy(graph);
  }
};

// What a computing rank has, whatever the way.
struct RankData {
  int device = 0;
  std::unique_ptr<probing::Stream> stream;
  std::unique_ptr<WeightBuffers> weights;
  Buffer x, x_scales, ids, topk_weights, y, num_bad;
  std::array<cudaEvent_t, kNumPhases + 1> events{};

  ~RankData() {
    for (const cudaEvent_t event : events) {
      if (event != nullptr) (void)cudaEventDestroy(event);
    }
  }
};

class Measurement {
 public:
  Measurement(const LayerRun& run, const std::function<void(const std::string&)>& progress)
      : run_(run), progress_(progress), ids_(random_routing(run)) {
    geometry_ = make_geometry(run.shape, run.num_ranks);
    progress_("random weights and inputs");
    for (std::size_t i = 0; i < run.devices.size(); ++i) {
      make_data(run.group != nullptr ? run.group->rank() : static_cast<int>(i), run.devices[i]);
    }
    for (const Way& way : run.ways) {
      progress_("memory and emulated ranks");
      make_way(way);
    }
  }

  LayerResult measure() {
    LayerResult result;
    result.volume = volume_of(run_, ids_);
    result.emulated = is_emulated();
    result.num_sms = ways_[0][0].layer->exchange().num_sms();
    constexpr int kWarmup = 2;
    std::vector<double> samples;  // [repeat][way][phases, then the whole]
    for (int repeat = -kWarmup; repeat < run_.num_repeats; ++repeat) {
      progress_("repeat " + std::to_string(std::max(repeat, 0) + 1) + " of " +
                std::to_string(run_.num_repeats));
      for (std::size_t way = 0; way < ways_.size(); ++way) {
        const auto times = time_phases(way);
        const double whole = time_whole(way);
        if (repeat < 0) continue;
        samples.insert(samples.end(), times.begin(), times.end());
        samples.push_back(whole);
      }
    }
    take_slowest(samples);
    for (std::size_t way = 0; way < ways_.size(); ++way) {
      const auto spread = [&](std::size_t i) {
        std::vector<double> of_one;
        for (std::size_t at = way * (kNumPhases + 1) + i; at < samples.size();
             at += ways_.size() * (kNumPhases + 1)) {
          of_one.push_back(samples[at]);
        }
        return spread_of(std::move(of_one));
      };
      LayerTimes times;
      times.way = run_.ways[way];
      times.stage = spread(0);
      times.route = spread(1);
      times.dispatch = spread(2);
      times.linear1 = spread(3);
      times.linear2 = spread(4);
      times.scatter = spread(5);
      times.meet = spread(6);
      times.sum = spread(7);
      times.whole = spread(8);
      times.finite = is_finite(way);
      times.peer_bytes = ways_[way][0].layer->exchange().peer_layout().bytes;
      times.workspace_bytes = ways_[way][0].layer->exchange().local_layout().bytes;
      result.ways.push_back(times);
    }
    return result;
  }

 private:
  [[nodiscard]] bool is_emulated() const {
    return run_.group == nullptr && static_cast<int>(run_.devices.size()) < run_.num_ranks;
  }

  // Of each sample the slowest rank's.
  void take_slowest(std::vector<double>& samples) const {
    if (run_.group == nullptr) return;
    const std::string_view mine(reinterpret_cast<const char*>(samples.data()),
                                samples.size() * sizeof(double));
    for (const std::string& theirs : run_.group->all_gather(mine)) {
      std::vector<double> values(theirs.size() / sizeof(double));
      std::memcpy(values.data(), theirs.data(), theirs.size());
      for (std::size_t i = 0; i < std::min(values.size(), samples.size()); ++i) {
        samples[i] = std::max(samples[i], values[i]);
      }
    }
  }

  void make_data(int rank, int device) {
    auto data = std::make_unique<RankData>();
    data->device = device;
    check_cuda(cudaSetDevice(data->device), "cudaSetDevice");
    data->stream = std::make_unique<probing::Stream>(data->device);
    const int num_local = geometry_.experts.count(rank) + geometry_.num_shared;
    data->weights = std::make_unique<WeightBuffers>(run_.shape, num_local, data->device,
                                                    run_.seed + 100 * static_cast<unsigned>(rank));
    const auto tokens = static_cast<std::size_t>(std::max(run_.num_tokens, 1));
    const auto make = [&](std::size_t bytes) {
      return Buffer(Buffer::Place::device, data->device, std::max<std::size_t>(bytes, 16));
    };
    data->x = make(tokens * geometry_.row_bytes);
    data->x_scales = make(tokens * geometry_.num_scales * 4);
    const bool is_fp8 = geometry_.num_scales > 0;
    fill(data->x.data(), tokens * geometry_.hidden, is_fp8 ? Fill::e4m3 : Fill::bf16,
         is_fp8 ? 64.f : 1.f, run_.seed + static_cast<unsigned>(rank));
    fill(data->x_scales.data(), tokens * geometry_.num_scales, Fill::scale, 1.f / 64, run_.seed);
    const auto& ids = ids_[static_cast<std::size_t>(rank)];
    data->ids = make(ids.size() * 4);
    data->topk_weights = make(ids.size() * 4);
    fill(data->topk_weights.data(), ids.size(), Fill::scale,
         1.f / static_cast<float>(geometry_.top_k), run_.seed + 3);
    check_cuda(cudaMemcpy(data->ids.data(), ids.data(), ids.size() * 4, cudaMemcpyDefault), "ids");
    data->y = make(tokens * geometry_.output_row_bytes());
    data->num_bad = make(8);
    for (auto& event : data->events) check_cuda(cudaEventCreate(&event), "cudaEventCreate");
    check_cuda(cudaDeviceSynchronize(), "inputs");
    data_.push_back(std::move(data));
  }

  void make_way(const Way& way) {
    MoeOptions options;
    options.dispatch = way.dispatch;
    options.combine = way.combine;
    options.send_once = way.send_once;
    const std::size_t bytes = MoeLayer::buffer_bytes(run_.shape, run_.num_ranks, options);
    std::vector<RankOfWay> ranks;
    std::vector<PeerMemory> members;
    if (run_.group != nullptr) {
      PeerOptions peer;
      peer.device = run_.devices[0];
      members.push_back(PeerMemory::create(*run_.group, bytes, peer));
    } else {
      members = PeerMemory::create_local(run_.devices, bytes);
    }
    for (PeerMemory& real : members) {
      const std::size_t idx = ranks.size();
      const int device = run_.devices[idx];
      if (is_emulated()) {
        real = PeerMemory::emulate(std::move(real), run_.num_ranks, {run_.ghosts, device});
      }
      RankOfWay& rank = ranks.emplace_back(std::move(real));
      check_cuda(cudaSetDevice(device), "cudaSetDevice");
      rank.workspace = Buffer(Buffer::Place::device, device,
                              MoeLayer::workspace_bytes(run_.shape, run_.num_ranks, options));
      check_cuda(cudaMemset(rank.workspace.data(), 0, rank.workspace.size()), "memset");
      rank.layer =
          std::make_unique<Layer>(rank.memory, run_.shape, data_[idx]->weights->view(),
                                  Workspace{rank.workspace.data(), rank.workspace.size()}, options);
      fill_memory(rank, options);
      const RankData& data = *data_[idx];
      rank.call.num_tokens = run_.num_tokens;
      rank.call.topk_ids = data.ids.data();
      rank.call.topk_weights = data.topk_weights.as<float>();
      rank.call.y = data.y.data();
    }
    ways_.push_back(std::move(ranks));
    capture(ways_.back());
    if (run_.group != nullptr) run_.group->barrier();
  }

  // What a rank finds in its memory, and what emulated ranks would have written.
  void fill_memory(RankOfWay& rank, const MoeOptions& options) {
    const Exchange& exchange = rank.layer->exchange();
    const PeerLayout& layout = exchange.peer_layout();
    const PeerTable table = rank.memory.table();
    const auto rows = static_cast<std::size_t>(geometry_.pool_rows);
    const auto tokens = static_cast<std::size_t>(geometry_.max_tokens);
    const bool is_fp8 = geometry_.num_scales > 0;
    for (int r = 0; r < run_.num_ranks; ++r) {
      if (r != table.rank && r < rank.memory.num_computing_ranks()) continue;
      char* base = static_cast<char*>(table.bases[r]);
      const auto seed = run_.seed + 1000 + static_cast<std::uint64_t>(r);
      fill_staged_kernel<<<1024, 256>>>(base + layout.x, geometry_, geometry_.max_tokens, seed);
      check_cuda(cudaGetLastError(), "fill");
      if (options.dispatch == MoeTransfer::push && r == table.rank) {
        fill(base + layout.pool, rows * geometry_.hidden, is_fp8 ? Fill::e4m3 : Fill::bf16,
             is_fp8 ? 64.f : 1.f, seed);
        fill(base + layout.pool_scales, rows * geometry_.scale_bytes() / 4, Fill::scale, 1.f / 64,
             seed);
      }
      if (options.combine == MoeTransfer::push && r == table.rank) {
        fill(base + layout.slots, tokens * geometry_.num_slots() * geometry_.hidden, Fill::bf16,
             1.f, seed);
      }
      if (options.combine == MoeTransfer::pull) {
        fill(base + layout.outputs, rows * geometry_.hidden, Fill::bf16, 1.f, seed);
      }
    }
    check_cuda(cudaDeviceSynchronize(), "fill");
    for (int ghost = rank.memory.num_computing_ranks(); ghost < run_.num_ranks; ++ghost) {
      const auto idx = static_cast<std::size_t>(ghost);
      const RankEntries entries = entries_of(ids_[idx], run_.shape.num_experts);
      const CallHeader header{
          static_cast<std::uint32_t>(run_.num_tokens), exchange.agreement(), {}};
      rank.memory.write(table.rank, layout.headers + idx * sizeof header, &header, sizeof header);
      rank.memory.write(table.rank, layout.counts + idx * entries.counts.size() * 4,
                        entries.counts.data(), entries.counts.size() * 4);
      if (!entries.entries.empty()) {
        rank.memory.write(ghost, layout.entries, entries.entries.data(),
                          entries.entries.size() * 4);
      }
    }
  }

  void enqueue(RankOfWay& rank, const RankData& data, bool with_events) {
    const Exchange& exchange = rank.layer->exchange();
    const xstage::Stream stream{data.stream->get()};
    const auto mark = [&](int i) {
      if (with_events) {
        check_cuda(cudaEventRecord(data.events[static_cast<std::size_t>(i)], data.stream->get()),
                   "cudaEventRecord");
      }
    };
    mark(0);
    if (with_events) {
      MoeCall staged = rank.call;
      staged.x = data.x.data();
      staged.x_scales = data.x_scales.as<float>();
      exchange.stage(staged, stream);
    }
    mark(1);
    exchange.route(rank.call, stream);
    mark(2);
    exchange.dispatch(rank.call, stream);
    mark(3);
    if (run_.with_products) rank.layer->linear1(rank.call, stream);
    mark(4);
    if (run_.with_products) rank.layer->linear2(rank.call, stream);
    mark(5);
    exchange.scatter(stream);
    mark(6);
    exchange.meet(stream);
    mark(7);
    exchange.sum(rank.call, stream);
    mark(8);
  }

  void capture(std::vector<RankOfWay>& ranks) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const cudaStream_t stream = data_[i]->stream->get();
      check_cuda(cudaSetDevice(data_[i]->device), "cudaSetDevice");
      cudaGraph_t captured = nullptr;
      check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
      enqueue(ranks[i], *data_[i], false);
      check_cuda(cudaStreamEndCapture(stream, &captured), "capture");
      check_cuda(cudaGraphInstantiate(&ranks[i].graph, captured, 0), "cudaGraphInstantiate");
      check_cuda(cudaGraphDestroy(captured), "cudaGraphDestroy");
      check_cuda(cudaGraphUpload(ranks[i].graph, stream), "cudaGraphUpload");
      check_cuda(cudaStreamSynchronize(stream), "cudaGraphUpload");
    }
  }

  // Poisons y, gives the host time to enqueue what follows, and meets the other ranks.
  void prepare(const RankOfWay& rank, std::size_t i, std::uint64_t delay_ns) const {
    check_cuda(cudaSetDevice(data_[i]->device), "cudaSetDevice");
    const cudaStream_t stream = data_[i]->stream->get();
    check_cuda(cudaMemsetAsync(data_[i]->y.data(), 0xff, data_[i]->y.size(), stream), "poison");
    delay_kernel<<<1, 1, 0, stream>>>(delay_ns);
    check_cuda(cudaGetLastError(), "delay");
    rank.layer->exchange().meet({stream});
  }

  [[nodiscard]] double elapsed_us(std::size_t rank, int from, int to) const {
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, data_[rank]->events[static_cast<std::size_t>(from)],
                                    data_[rank]->events[static_cast<std::size_t>(to)]),
               "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e3;
  }

  std::array<double, kNumPhases> time_phases(std::size_t way) {
    auto& ranks = ways_[way];
    if (run_.group != nullptr) run_.group->barrier();
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      prepare(ranks[i], i, 150'000);
      enqueue(ranks[i], *data_[i], true);
    }
    finish(ranks);
    std::array<double, kNumPhases> times{};
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      for (int phase = 0; phase < kNumPhases; ++phase) {
        times[phase] = std::max(times[phase], elapsed_us(i, phase, phase + 1));
      }
    }
    return times;
  }

  double time_whole(std::size_t way) {
    auto& ranks = ways_[way];
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      prepare(ranks[i], i, 60'000);
      const cudaStream_t stream = data_[i]->stream->get();
      check_cuda(cudaEventRecord(data_[i]->events[0], stream), "cudaEventRecord");
      check_cuda(cudaGraphLaunch(ranks[i].graph, stream), "cudaGraphLaunch");
      check_cuda(cudaEventRecord(data_[i]->events[1], stream), "cudaEventRecord");
    }
    finish(ranks);
    double most = 0;
    for (std::size_t i = 0; i < ranks.size(); ++i) most = std::max(most, elapsed_us(i, 0, 1));
    return most;
  }

  void finish(const std::vector<RankOfWay>& ranks) const {
    for (const auto& data : data_) {
      check_cuda(cudaStreamSynchronize(data->stream->get()), "layer");
    }
    for (const RankOfWay& rank : ranks) {
      const MoeStatus status = rank.layer->exchange().status();
      if (!status.fine) throw Error(ErrorCategory::check_failed, status.text);
    }
  }

  // Runs the way once more: y of all ranks must be numbers.
  bool is_finite(std::size_t way) {
    (void)time_whole(way);
    bool fine = true;
    for (const auto& data : data_) {
      check_cuda(cudaSetDevice(data->device), "cudaSetDevice");
      check_cuda(cudaMemset(data->num_bad.data(), 0, 8), "memset");
      count_not_finite_kernel<<<512, 256>>>(
          data->y.as<std::uint16_t>(),
          static_cast<std::int64_t>(run_.num_tokens) * geometry_.hidden,
          data->num_bad.as<unsigned long long>());
      unsigned long long num_bad = 1;
      check_cuda(cudaMemcpy(&num_bad, data->num_bad.data(), 8, cudaMemcpyDefault), "count");
      fine &= num_bad == 0;
    }
    return fine;
  }

  LayerRun run_;
  std::function<void(const std::string&)> progress_;
  std::vector<std::vector<std::int32_t>> ids_;
  Geometry geometry_;
  std::vector<std::unique_ptr<RankData>> data_;
  std::vector<std::vector<RankOfWay>> ways_;
};

// Best of some rounds: B/ns of an operation on `bytes`.
template <typename Operation>
double rate_of(std::size_t bytes, Operation operation) {
  const probing::EventPair events;
  double best = 0;
  probing::Stream stream([] {
    int device = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    return device;
  }());
  for (int round = 0; round < 6; ++round) {
    events.begin(stream);
    operation(stream.get());
    events.end(stream);
    best = std::max(best, static_cast<double>(bytes) / events.elapsed_ns());
  }
  return best;
}

}  // namespace

LayerResult measure_layer(const LayerRun& run,
                          const std::function<void(const std::string&)>& progress) {
  Measurement measurement(run, progress);
  return measurement.measure();
}

MachineRates measure_rates(const std::vector<int>& devices) {
  int num_gpus = 0;
  if (cudaGetDeviceCount(&num_gpus) != cudaSuccess || num_gpus == 0) {
    throw Error(ErrorCategory::not_possible, "no GPU or no driver here");
  }
  for (const int device : devices) {
    if (device < num_gpus) continue;
    throw Error(ErrorCategory::usage,
                "GPU " + std::to_string(device) + ": legal are 0.." + std::to_string(num_gpus - 1));
  }
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  MachineRates rates;
  const Buffer from(Buffer::Place::device, devices[0], kBytes);
  const Buffer to(Buffer::Place::device, devices[0], kBytes);
  fill(from.data(), kBytes / 2, Fill::bf16, 1.f, 1);
  check_cuda(cudaDeviceSynchronize(), "fill");
  const auto copy = [](const Buffer& source, const Buffer& destination, std::size_t bytes) {
    return [&, bytes](cudaStream_t stream) {
      check_cuda(
          cudaMemcpyAsync(destination.data(), source.data(), bytes, cudaMemcpyDefault, stream),
          "copy");
    };
  };
  rates.local_copy = rate_of(kBytes, copy(from, to, kBytes));
  rates.local_read = rate_of(kBytes, [&](cudaStream_t stream) {
    read_kernel<<<132 * 8, 256, 0, stream>>>(from.as<uint4>(), kBytes / 16, to.as<std::uint32_t>());
  });
  constexpr std::size_t kHostBytes = std::size_t{1} << 28;
  const Buffer host(Buffer::Place::pinned_host, devices[0], kHostBytes);
  rates.to_host = rate_of(kHostBytes, copy(from, host, kHostBytes));
  rates.from_host = rate_of(kHostBytes, copy(host, to, kHostBytes));
  if (devices.size() > 1) {
    const Buffer peer(Buffer::Place::device, devices[1], kBytes);
    check_cuda(cudaSetDevice(devices[0]), "cudaSetDevice");
    rates.peer_copy = rate_of(kBytes, copy(from, peer, kBytes));
  }
  return rates;
}

}  // namespace xstage::moe
