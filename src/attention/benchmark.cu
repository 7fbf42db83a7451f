// Host side of the attention benchmark: inputs, graphs, rounds, and the check of chosen rows.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>

#include "attention/benchmark.hpp"
#include "attention/dense_rate.cuh"
#include "attention/problem.hpp"
#include "peers/nvml.hpp"
#include "xstage/attention.hpp"
#include "xstage/error.hpp"

namespace xstage::attention {
namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  throw Error(ErrorCategory::runtime,
              std::string("bench attention: ") + what + ": " + cudaGetErrorString(status));
}

struct FreeDevice {
  void operator()(void* data) const noexcept { (void)cudaFree(data); }
};
using DeviceBytes = std::unique_ptr<char, FreeDevice>;

DeviceBytes allocate(std::size_t bytes) {
  void* data = nullptr;
  check(cudaMalloc(&data, std::max<std::size_t>(bytes, 1)), "cudaMalloc");
  return DeviceBytes(static_cast<char*>(data));
}

struct DestroyStream {
  void operator()(cudaStream_t stream) const noexcept { (void)cudaStreamDestroy(stream); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const noexcept { (void)cudaEventDestroy(event); }
};
struct DestroyGraph {
  void operator()(cudaGraphExec_t graph) const noexcept { (void)cudaGraphExecDestroy(graph); }
};
using OwnedStream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;
using OwnedEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;
using OwnedGraph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyGraph>;

OwnedStream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return OwnedStream(stream);
}
OwnedEvent make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  return OwnedEvent(event);
}

template <typename Work>
OwnedGraph capture(cudaStream_t stream, int repeats, const Work& work) {
  work();  // whatever happens once happens outside of the graph
  check(cudaStreamSynchronize(stream), "first call");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < repeats; ++i) work();
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "capture");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&exec, graph, 0);
  (void)cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate");
  return OwnedGraph(exec);
}

// q, k, v, out and the workspace of one shape, contiguous [batch, row, head, element].
class Inputs {
 public:
  Inputs(const BenchShape& shape, std::uint64_t seed, int num_sms, cudaStream_t stream)
      : shape_(shape), stream_(stream) {
    options_.causal = shape.causal;
    const auto bytes = [&](std::int64_t heads) {
      return static_cast<std::size_t>(shape.num_batches * shape.num_rows * heads * shape.head_dim) *
             2;
    };
    // Sizes are checked before anything is allocated.
    q_ = view(nullptr, shape.num_heads);
    k_ = view(nullptr, shape.num_kv_heads);
    char* placeholder = reinterpret_cast<char*>(std::uintptr_t{256});
    q_.data = k_.data = placeholder;
    workspace_bytes_ = attention_workspace_bytes(q_, k_, k_, options_, num_sms);
    for (int i = 0; i < 3; ++i) {
      const std::int64_t heads = i == 0 ? shape.num_heads : shape.num_kv_heads;
      inputs_[i] = allocate(bytes(heads));
      fill(inputs_[i].get(), static_cast<std::int64_t>(bytes(heads) / 2), seed * 3 + i);
    }
    out_ = allocate(bytes(shape.num_heads));
    check(cudaMemsetAsync(out_.get(), 0xFF, bytes(shape.num_heads), stream), "cudaMemset");
    workspace_ = allocate(workspace_bytes_);
    check(cudaMemsetAsync(workspace_.get(), 0, std::max<std::size_t>(workspace_bytes_, 1), stream),
          "cudaMemset");
    q_.data = inputs_[0].get();
    k_.data = inputs_[1].get();
  }

  void run() const {
    TensorView v = k_;
    v.data = inputs_[2].get();
    TensorView out = q_;
    out.data = out_.get();
    attention_forward(q_, k_, v, out, options_, {workspace_.get(), workspace_bytes_}, {stream_});
  }

  // Compares `num_rows` random rows of random heads.
  double relative_error(int num_rows, std::uint64_t seed) const;

 private:
  TensorView view(void* data, std::int64_t heads) const {
    return TensorView::bshd(data, shape_.dtype, shape_.num_batches, shape_.num_rows, heads,
                            shape_.head_dim);
  }
  void fill(char* data, std::int64_t count, std::uint64_t seed) const {
    if (shape_.dtype == DataType::bf16) {
      fill_normal_kernel<<<1024, 256, 0, stream_>>>(reinterpret_cast<__nv_bfloat16*>(data), count,
                                                    seed);
    } else {
      fill_normal_kernel<<<1024, 256, 0, stream_>>>(reinterpret_cast<__half*>(data), count, seed);
    }
    check(cudaGetLastError(), "fill");
  }
  // `count` rows of one head, from row 0 or from `first`.
  std::vector<double> fetch(const char* data, std::int64_t heads, std::int64_t batch,
                            std::int64_t head, std::int64_t first, std::int64_t count) const {
    const auto row_bytes = static_cast<std::size_t>(shape_.head_dim) * 2;
    const auto pitch = row_bytes * static_cast<std::size_t>(heads);
    std::vector<std::uint16_t> raw(static_cast<std::size_t>(count * shape_.head_dim));
    const char* source = data + static_cast<std::size_t>(batch * shape_.num_rows + first) * pitch +
                         static_cast<std::size_t>(head) * row_bytes;
    check(cudaMemcpy2D(raw.data(), row_bytes, source, pitch, row_bytes,
                       static_cast<std::size_t>(count), cudaMemcpyDeviceToHost),
          "cudaMemcpy2D");
    std::vector<double> values(raw.size());
    for (std::size_t i = 0; i < raw.size(); ++i) {
      if (shape_.dtype == DataType::bf16) {
        __nv_bfloat16_raw bits;
        bits.x = raw[i];
        values[i] = static_cast<double>(__bfloat162float(__nv_bfloat16(bits)));
      } else {
        __half_raw bits;
        bits.x = raw[i];
        values[i] = static_cast<double>(__half2float(__half(bits)));
      }
    }
    return values;
  }

  BenchShape shape_;
  cudaStream_t stream_;
  AttentionOptions options_;
  TensorView q_;
  TensorView k_;
  DeviceBytes inputs_[3];
  DeviceBytes out_;
  DeviceBytes workspace_;
  std::size_t workspace_bytes_ = 0;
};

// softmax(q K^T) V of one row in float64.
std::vector<double> exact_row(std::span<const double> q, std::span<const double> k,
                              std::span<const double> v, std::size_t num_keys) {
  const std::size_t dim = q.size();
  std::vector<double> scores(num_keys);
  double largest = -INFINITY;
  for (std::size_t j = 0; j < num_keys; ++j) {
    double dot = 0;
    for (std::size_t d = 0; d < dim; ++d) dot += q[d] * k[j * dim + d];
    scores[j] = dot / std::sqrt(static_cast<double>(dim));
    largest = std::max(largest, scores[j]);
  }
  std::vector<double> out(dim, 0.0);
  double sum = 0;
  for (std::size_t j = 0; j < num_keys; ++j) {
    const double p = std::exp(scores[j] - largest);
    sum += p;
    for (std::size_t d = 0; d < dim; ++d) out[d] += p * v[j * dim + d];
  }
  for (double& x : out) x /= sum;
  return out;
}

double Inputs::relative_error(int num_rows, std::uint64_t seed) const {
  std::mt19937_64 random(seed);
  const auto below = [&random](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  const std::int64_t batch = below(shape_.num_batches);
  const std::int64_t head = below(shape_.num_heads);
  const std::int64_t kv_head = head * shape_.num_kv_heads / shape_.num_heads;
  const auto k = fetch(inputs_[1].get(), shape_.num_kv_heads, batch, kv_head, 0, shape_.num_rows);
  const auto v = fetch(inputs_[2].get(), shape_.num_kv_heads, batch, kv_head, 0, shape_.num_rows);
  double difference = 0;
  double norm = 0;
  for (int i = 0; i < num_rows; ++i) {
    const std::int64_t row = below(shape_.num_rows);
    const auto q = fetch(inputs_[0].get(), shape_.num_heads, batch, head, row, 1);
    const auto got = fetch(out_.get(), shape_.num_heads, batch, head, row, 1);
    const auto exact =
        exact_row(q, k, v, static_cast<std::size_t>(shape_.causal ? row + 1 : shape_.num_rows));
    for (std::size_t d = 0; d < exact.size(); ++d) {
      difference += (got[d] - exact[d]) * (got[d] - exact[d]);
      norm += exact[d] * exact[d];
    }
  }
  return std::sqrt(difference / norm);
}

// Replays graphs and says how long they took; between two clock marks.
class Meter {
 public:
  Meter(int device, int num_sms, cudaStream_t stream)
      : num_sms_(num_sms),
        stream_(stream),
        marks_(allocate(2 * static_cast<std::size_t>(num_sms) * sizeof(ClockMark))) {
    check(cudaDeviceGetAttribute(&shared_bytes_, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          "cudaDeviceGetAttribute");
    check(cudaFuncSetAttribute(clock_mark_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               shared_bytes_),
          "cudaFuncSetAttribute");
  }

  // ns; `during` is called while the graph runs.
  template <typename During>
  double replay(cudaGraphExec_t graph, const During& during) {
    mark(0);
    check(cudaEventRecord(begin_.get(), stream_), "event");
    check(cudaGraphLaunch(graph, stream_), "cudaGraphLaunch");
    check(cudaEventRecord(end_.get(), stream_), "event");
    mark(1);
    during();
    check(cudaStreamSynchronize(stream_), "kernel");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_.get(), end_.get()), "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e6;
  }

  // Mean over SMs of the last replay. A CTA of a mark occupies a whole SM, so every SM has one.
  [[nodiscard]] double sm_mhz() const {
    std::vector<ClockMark> marks(2 * static_cast<std::size_t>(num_sms_));
    check(cudaMemcpy(marks.data(), marks_.get(), marks.size() * sizeof(ClockMark),
                     cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    double sum = 0;
    for (int sm = 0; sm < num_sms_; ++sm) {
      const ClockMark& a = marks[static_cast<std::size_t>(sm)];
      const ClockMark& b = marks[static_cast<std::size_t>(num_sms_ + sm)];
      sum += static_cast<double>(b.cycles - a.cycles) / static_cast<double>(b.ns - a.ns) * 1e3;
    }
    return sum / num_sms_;
  }

 private:
  void mark(int idx) {
    clock_mark_kernel<<<static_cast<unsigned>(num_sms_), 32,
                        static_cast<std::size_t>(shared_bytes_), stream_>>>(
        reinterpret_cast<ClockMark*>(marks_.get()) + idx * num_sms_);
    check(cudaGetLastError(), "clock mark");
  }

  int num_sms_;
  int shared_bytes_ = 0;
  cudaStream_t stream_;
  OwnedEvent begin_ = make_event();
  OwnedEvent end_ = make_event();
  DeviceBytes marks_;
};

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  constexpr const char* kDigits = "0123456789abcdef";
  for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += kDigits[byte / 16];
    text += kDigits[byte % 16];
  }
  return text;
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The most work, the rounds, and how long a graph is: long enough that its start does not count,
// short enough that a round sees one state of the machine.
constexpr double kGraphNs = 3e6;

int rounds_for(const BenchOptions& options, double round_ns) {
  if (options.num_rounds > 0) return options.num_rounds;
  return static_cast<int>(std::clamp(options.seconds * 1e9 / round_ns, 5.0, 40.0));
}

// Rows that cost the CPU about a second.
int rows_to_check(const BenchShape& shape) {
  const double cost = 4.0 * static_cast<double>(shape.num_rows * shape.head_dim);
  return static_cast<int>(std::clamp(5e8 / cost, 4.0, 64.0));
}

}  // namespace

double num_operations(const BenchShape& s) noexcept {
  const double full = 4.0 * static_cast<double>(s.num_batches * s.num_heads) *
                      static_cast<double>(s.num_rows) * static_cast<double>(s.num_rows) *
                      static_cast<double>(s.head_dim);
  return s.causal ? full / 2 : full;
}

BenchMachine bench_machine(int device) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    throw Error(ErrorCategory::not_possible, "bench attention: no GPU is visible here");
  }
  if (device < 0 || device >= count) {
    throw Error(ErrorCategory::usage,
                "--device " + std::to_string(device) + ": legal 0.." + std::to_string(count - 1));
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  if (properties.major != 9 || properties.minor != 0) {
    throw Error(ErrorCategory::not_possible,
                std::string("bench attention: GPU ") + std::to_string(device) + " is a " +
                    properties.name + ", sm_" + std::to_string(properties.major) +
                    std::to_string(properties.minor) + ": the kernels need sm_90 (Hopper)");
  }
  int driver = 0;
  int runtime = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  return {properties.name, uuid_text(properties.uuid), properties.multiProcessorCount,
          version_text(driver), version_text(runtime)};
}

BenchRow bench_attention(const BenchShape& shape, const BenchOptions& options) {
  const BenchMachine machine = bench_machine(options.device);
  check(cudaSetDevice(options.device), "cudaSetDevice");
  const OwnedStream owned_stream = make_stream();
  cudaStream_t stream = owned_stream.get();
  const auto say = [&options](const char* what) {
    if (options.progress) options.progress(what);
  };
  say("preparing");
  const Inputs problem(shape, options.seed, machine.num_sms, stream);
  BenchRow row;
  row.shape = shape;
  row.work = busiest_sm(shape, machine.num_sms);

  const double guess_ns = num_operations(shape) / 600e3;
  row.num_repeats = static_cast<int>(std::clamp(kGraphNs / std::max(guess_ns, 1.0), 1.0, 50.0));
  const OwnedGraph calls = capture(stream, row.num_repeats, [&] { problem.run(); });

  const DeviceBytes source = allocate(sizeof(DenseShared) + 256);
  fill_normal_kernel<<<64, 256, 0, stream>>>(reinterpret_cast<__nv_bfloat16*>(source.get()),
                                             static_cast<std::int64_t>(sizeof(DenseShared) / 2),
                                             options.seed + 17);
  check(cudaFuncSetAttribute(dense_rate_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(sizeof(DenseShared))),
        "cudaFuncSetAttribute");
  const double step_ns = dense_operations(1, 1) * machine.num_sms / 800e3;
  const auto num_steps =
      static_cast<int>(std::clamp(row.num_repeats * guess_ns, kGraphNs, 5 * kGraphNs) / step_ns);
  const OwnedGraph dense = capture(stream, 1, [&] {
    dense_rate_kernel<<<static_cast<unsigned>(machine.num_sms), kDenseThreads, sizeof(DenseShared),
                        stream>>>(reinterpret_cast<const __nv_bfloat16*>(source.get()), num_steps,
                                  reinterpret_cast<float*>(source.get() + sizeof(DenseShared)));
    check(cudaGetLastError(), "dense rate");
  });

  say("measuring");
  Meter meter(options.device, machine.num_sms, stream);
  const peers::Nvml nvml;
  const auto nothing = [] {};
  const auto ask = [&] {
    if (const auto mhz = nvml.sm_clock_mhz(machine.uuid)) row.nvml_mhz.push_back(*mhz);
    if (const auto watts = nvml.power_watts(machine.uuid)) row.watts.push_back(*watts);
  };
  const double first_ns = meter.replay(calls.get(), nothing) + meter.replay(dense.get(), nothing);
  const int num_rounds = rounds_for(options, first_ns);
  const double operations = dense_operations(machine.num_sms, num_steps);
  for (int round = 0; round < num_rounds; ++round) {
    for (int i = 0; i < 2; ++i) {
      if ((round + i) % 2 == 0) {
        row.call_ns.push_back(meter.replay(calls.get(), ask) / row.num_repeats);
        row.sm_mhz.push_back(meter.sm_mhz());
      } else {
        row.dense_tflops.push_back(operations / meter.replay(dense.get(), nothing) / 1e3);
      }
    }
  }
  say("checking");
  row.num_checked_rows = rows_to_check(shape);
  row.relative_error = problem.relative_error(row.num_checked_rows, options.seed);
  row.error_bound = shape.dtype == DataType::bf16 ? 3e-3 : 4e-4;
  return row;
}

}  // namespace xstage::attention
