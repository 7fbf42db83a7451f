#include <algorithm>
#include <numeric>
#include <random>

#include "device/outbox.cuh"
#include "probe/burst_kernel.cuh"
#include "probe/link.hpp"
#include "probe/tensor_map.hpp"
#include "probe/verify.cuh"

namespace xstage::probing {
namespace {

constexpr std::size_t kScratchBytes = 16u << 20;
constexpr std::size_t kGuardBytes = 1024;
constexpr std::uint32_t kNumRowsPermuted = 1024;
constexpr std::size_t kMinSharedBytes = 116 * 1024;  // more than half of an SM's: one CTA per SM

// What a kernel of this kind is called with.
using Kernel = void (*)(BurstArgs, CUtensorMap);

Kernel kernel_of(const BurstSpec& spec) {
  using device::LinearDestination;
  using device::RowsDestination;
  const bool rows = spec.layout.rows != Layout::Rows::contiguous;
  switch (spec.kind) {
    case StoreKind::register16:
      return rows ? burst_kernel<device::RegisterStore<uint4, RowsDestination>>
                  : burst_kernel<device::RegisterStore<uint4, LinearDestination>>;
    case StoreKind::bulk:
      return rows ? burst_kernel<device::BulkStore<RowsDestination>>
                  : burst_kernel<device::BulkStore<LinearDestination>>;
    case StoreKind::tensor:
      return burst_kernel<device::TensorStore>;
    case StoreKind::register8:
      return burst_kernel<device::RegisterStore<uint2>>;
    case StoreKind::register4:
      return burst_kernel<device::RegisterStore<std::uint32_t>>;
    case StoreKind::bulk_reduce:
      return burst_kernel<device::BulkReduce>;
    case StoreKind::red:
      return burst_kernel<device::RedStore>;
    case StoreKind::load:
      return burst_kernel<device::RemoteLoad, true>;
  }
  throw Error(ErrorCategory::usage, "unknown store kind");
}

// Offsets within the scratch buffer.
struct Scratch {
  std::uint32_t* num_arrived;
  std::uint32_t* num_wrong;
  std::uint64_t* start_times_ns;
  std::uint32_t* cycles;
  std::uint32_t* producer_sm;
  std::uint64_t* calibration;
  std::int32_t* producer_of_sm;
  char** destinations;

  explicit Scratch(char* base)
      : num_arrived(reinterpret_cast<std::uint32_t*>(base)),
        num_wrong(reinterpret_cast<std::uint32_t*>(base + 128)),
        start_times_ns(reinterpret_cast<std::uint64_t*>(base + 4096)),
        cycles(reinterpret_cast<std::uint32_t*>(base + 65536)),
        producer_sm(reinterpret_cast<std::uint32_t*>(base + 8192)),
        calibration(reinterpret_cast<std::uint64_t*>(base + 16384)),
        producer_of_sm(reinterpret_cast<std::int32_t*>(base + 32768)),
        destinations(reinterpret_cast<char**>(base + 49152)) {}
};

std::uint32_t log2_of(std::uint32_t value) {
  std::uint32_t shift = 0;
  while ((1u << shift) < value) ++shift;
  return shift;
}

// Where the bytes of a run go.
struct Geometry {
  std::uint64_t block_stride_bytes = 0;
  std::uint32_t num_columns = 1;
  std::uint32_t row_shift = 8;
  std::uint32_t pitch_bytes = 256;
  std::uint32_t num_slices = 1;
  std::uint64_t total_bytes = 0;
};

Geometry geometry_of(const BurstSpec& spec, bool host) {
  Geometry g;
  g.row_shift = log2_of(spec.layout.row_bytes);
  const auto producers = static_cast<std::uint64_t>(spec.num_producers);
  if (spec.layout.rows == Layout::Rows::contiguous) {
    g.pitch_bytes = spec.layout.row_bytes;
    const bool rotates = spec.kind != StoreKind::tensor && spec.kind != StoreKind::load;
    g.num_slices = rotates ? std::min<std::uint32_t>(host ? 2 : 4, spec.num_bursts) : 1;
    const std::uint64_t guard = spec.kind == StoreKind::tensor ? 0 : kGuardBytes;
    g.block_stride_bytes = static_cast<std::uint64_t>(g.num_slices) * spec.bytes + guard;
    g.total_bytes = g.block_stride_bytes * producers;
  } else {
    g.pitch_bytes = spec.layout.pitch_bytes;
    g.num_columns = spec.layout.pitch_bytes / spec.layout.row_bytes;
    g.block_stride_bytes =
        static_cast<std::uint64_t>(spec.bytes / spec.layout.row_bytes) * g.pitch_bytes;
    g.total_bytes = (producers + g.num_columns - 1) / g.num_columns * g.block_stride_bytes;
  }
  return g;
}

}  // namespace

Link::Link(int source_idx, Target target, double timeout_s)
    : source_idx_(source_idx), target_(target), timeout_s_(timeout_s) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, source_idx), "cudaGetDeviceProperties");
  num_sms_ = properties.multiProcessorCount;
  has_tma_ = properties.major >= 9;
  max_burst_bytes_ =
      static_cast<int>((properties.sharedMemPerBlockOptin - 16 * 1024) / 1024 * 1024);
  if (target.type == Endpoint::Type::gpu) {
    int accessible = 0;
    check(cudaDeviceCanAccessPeer(&accessible, source_idx, target.device_idx),
          "cudaDeviceCanAccessPeer");
    if (accessible == 0) {
      throw Error(ErrorCategory::not_possible,
                  "GPU " + std::to_string(source_idx) + " cannot store into GPU " +
                      std::to_string(target.device_idx) + ": the driver reports no peer access");
    }
    check(cudaSetDevice(source_idx), "cudaSetDevice");
    const cudaError_t status = cudaDeviceEnablePeerAccess(target.device_idx, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      check(status, "cudaDeviceEnablePeerAccess");
    }
  }
  const bool host = target.type == Endpoint::Type::host_memory;
  destination_ = Buffer(host ? Buffer::Place::pinned_host : Buffer::Place::device,
                        target.device_idx, host ? 64u << 20 : 256u << 20);
  gap_source_ = Buffer(Buffer::Place::device, source_idx,
                       static_cast<std::size_t>(num_sms_) * kGapSourceBytesPerSm);
  scratch_ = Buffer(Buffer::Place::device, source_idx, kScratchBytes);
  arena_ = Buffer(Buffer::Place::device, source_idx, kArenaBytes);
  abort_ = Buffer(Buffer::Place::device, source_idx, 256);
  check(cudaMemset(abort_.data(), 0, abort_.size()), "cudaMemset");
  check_counter_ = Buffer(Buffer::Place::device, target.device_idx, 256);
  check(cudaSetDevice(source_idx), "cudaSetDevice");
  row_order_ = Buffer(Buffer::Place::device, source_idx, kNumRowsPermuted * 4);
  stream_ = std::make_unique<Stream>(source_idx);
  events_ = std::make_unique<EventPair>();
  fill_random(gap_source_.data(), gap_source_.size(), 0x5eed, *stream_);
}

void Link::check_abort(const char* what) const {
  std::uint32_t aborted = 0;
  check(cudaMemcpy(&aborted, abort_.data(), 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
  if (aborted == 0) return;
  check(cudaMemset(abort_.data(), 0, 4), "cudaMemset");
  throw Error(ErrorCategory::timeout,
              std::string(what) + ": a wait on the GPU passed its deadline");
}

// The launch that start() will make.
struct Link::Prepared {
  BurstArgs args{};
  CUtensorMap map{};
  Kernel kernel = nullptr;
  std::size_t shared_bytes = 0;
};

Link::~Link() = default;
Link::Link(Link&&) noexcept = default;

char* Link::arena() const {
  check(cudaSetDevice(source_idx_), "cudaSetDevice");
  check(cudaMemset(arena_.data(), 0, arena_.size()), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaMemset");
  return arena_.data();
}

void Link::prepare(const BurstSpec& spec, const std::vector<Link*>& others) {
  const bool host = target_.type == Endpoint::Type::host_memory;
  const Geometry g = geometry_of(spec, host);
  if (spec.bytes == 0 || spec.bytes % 128 != 0 ||
      spec.bytes + 2 * kGapStageBytes > static_cast<std::uint32_t>(max_burst_bytes_) + 32768u) {
    throw Error(ErrorCategory::usage, "burst of " + std::to_string(spec.bytes) +
                                          " bytes: legal are multiples of 128 from 128 to " +
                                          std::to_string(max_burst_bytes_));
  }
  const bool fits = std::all_of(others.begin(), others.end(), [&](const Link* other) {
    return g.total_bytes <= other->destination_.size();
  });
  if (!fits || g.total_bytes > destination_.size() ||
      spec.num_bursts > static_cast<int>(kMaxBursts)) {
    throw Error(ErrorCategory::usage, "burst does not fit the probe's buffers");
  }
  if (!others.empty() && (spec.kind == StoreKind::tensor || spec.kind == StoreKind::load ||
                          spec.layout.rows != Layout::Rows::contiguous)) {
    throw Error(ErrorCategory::usage, "fan-out: legal are contiguous register and bulk stores");
  }
  spec_ = spec;
  others_ = others;
  check(cudaSetDevice(source_idx_), "cudaSetDevice");
  const Scratch scratch(scratch_.data());
  const auto placement = place_producers(num_sms_, spec.num_producers, spec.two_per_tpc);
  check(cudaMemcpyAsync(scratch.producer_of_sm, placement.data(), placement.size() * 4,
                        cudaMemcpyHostToDevice, stream_->get()),
        "cudaMemcpyAsync");
  check(cudaMemsetAsync(scratch.num_arrived, 0, 8192, stream_->get()), "cudaMemsetAsync");

  prepared_ = std::make_unique<Prepared>();
  BurstArgs& args = prepared_->args;
  args.destination = destination_.data();
  if (!others.empty()) {
    std::vector<char*> bases{destination_.data()};
    for (const Link* other : others) bases.push_back(other->destination_.data());
    check(cudaMemcpy(scratch.destinations, bases.data(), bases.size() * sizeof(char*),
                     cudaMemcpyHostToDevice),
          "cudaMemcpy");
    args.destinations = scratch.destinations;
    args.num_destinations = static_cast<std::uint32_t>(bases.size());
  }
  args.row_order = nullptr;
  if (spec.layout.rows == Layout::Rows::random) {
    row_order_host_.resize(spec.bytes / spec.layout.row_bytes);
    std::iota(row_order_host_.begin(), row_order_host_.end(), 0u);
    std::shuffle(row_order_host_.begin(), row_order_host_.end(), std::mt19937(spec.seed));
    check(cudaMemcpyAsync(row_order_.data(), row_order_host_.data(), row_order_host_.size() * 4,
                          cudaMemcpyHostToDevice, stream_->get()),
          "cudaMemcpyAsync");
    args.row_order = row_order_.as<std::uint32_t>();
  }
  args.block_stride_bytes = g.block_stride_bytes;
  args.num_columns = g.num_columns;
  args.row_shift = g.row_shift;
  args.pitch_bytes = g.pitch_bytes;
  args.bytes = spec.bytes;
  args.num_bursts = static_cast<std::uint32_t>(spec.num_bursts);
  args.num_slices = g.num_slices;
  args.aligned = spec.aligned;
  args.measure_visible = spec.measure_visible;
  args.send = spec.send;
  args.send.kind = spec.kind;
  args.idle_ns = static_cast<std::uint64_t>(spec.idle_ns);
  int clock_khz = 0;
  check(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, source_idx_), "clock rate");
  args.gap_cycles = static_cast<std::uint64_t>(spec.gap_ns * clock_khz * 1e-6);
  args.gap_steps = static_cast<std::uint32_t>(spec.gap_steps);
  args.gap_source = has_tma_ ? gap_source_.data() : nullptr;
  args.seed = spec.seed;
  args.producer_of_sm = scratch.producer_of_sm;
  args.num_producers = static_cast<std::uint32_t>(spec.num_producers);
  args.num_arrived = scratch.num_arrived;
  args.start_times_ns = scratch.start_times_ns;
  args.cycles = scratch.cycles;
  args.producer_sm = scratch.producer_sm;
  args.calibration = scratch.calibration;
  args.num_wrong_loads = scratch.num_wrong;
  args.wait = {abort_word(), static_cast<std::uint64_t>(timeout_s_ * 1e9)};

  if (spec.kind == StoreKind::tensor) {
    const std::uint64_t rows = g.total_bytes / g.pitch_bytes;
    prepared_->map =
        make_row_box_map(destination_.data(), g.num_columns << g.row_shift, rows, g.pitch_bytes,
                         1u << g.row_shift, spec.send.chunk_bytes >> g.row_shift);
  }
  const PayloadLayout payload{g.block_stride_bytes, g.num_columns, g.row_shift, g.pitch_bytes,
                              g.num_slices};
  prepare_destination(destination_, g.total_bytes, spec, *stream_, payload);
  for (const Link* other : others) {
    prepare_destination(other->destination_, g.total_bytes, spec, *stream_, payload);
  }
  check(cudaSetDevice(source_idx_), "cudaSetDevice");
  prepared_->kernel = kernel_of(spec);
  prepared_->shared_bytes =
      std::max<std::size_t>(kMinSharedBytes, (spec.bytes + 1023) / 1024 * 1024 +
                                                 (spec.gap_steps > 0 ? 2 * kGapStageBytes : 0));
  check(cudaSetDevice(source_idx_), "cudaSetDevice");
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(prepared_->kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(prepared_->shared_bytes)),
        "cudaFuncSetAttribute");
  stream_->synchronize();
}

void Link::start() {
  check(cudaSetDevice(source_idx_), "cudaSetDevice");
  void* arguments[] = {&prepared_->args, &prepared_->map};
  events_->begin(*stream_);
  check(cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(prepared_->kernel),
                                    dim3(num_sms_), dim3(kNumThreads), arguments,
                                    prepared_->shared_bytes, stream_->get()),
        "burst kernel launch");
  events_->end(*stream_);
}

Link::Checked Link::check_destinations() const {
  const Geometry g = geometry_of(spec_, target_.type == Endpoint::Type::host_memory);
  PayloadLayout payload{g.block_stride_bytes, g.num_columns, g.row_shift, g.pitch_bytes,
                        g.num_slices};
  payload.num_shares = static_cast<std::uint32_t>(others_.size()) + 1;
  Checked sum;
  for (; payload.share_idx < payload.num_shares; ++payload.share_idx) {
    const Link& at = payload.share_idx == 0 ? *this : *others_[payload.share_idx - 1];
    const VerifyResult verified =
        verify_destination(at.destination_, g.total_bytes, spec_, *stream_, payload,
                           row_order_host_, at.check_counter());
    sum.num_words += verified.num_checked;
    sum.num_wrong += verified.num_wrong;
  }
  return sum;
}

BurstRun Link::collect() {
  BurstRun run;
  run.num_producers = spec_.num_producers;
  run.num_bursts = spec_.num_bursts;
  run.kernel_ns = events_->elapsed_ns();
  check_abort("burst");
  check(cudaSetDevice(source_idx_), "cudaSetDevice");
  const Scratch scratch(scratch_.data());
  const auto producers = static_cast<std::size_t>(spec_.num_producers);
  const std::size_t count = producers * spec_.num_bursts;
  std::vector<std::uint32_t> cycles(count * kNumTimes);
  std::vector<std::uint64_t> calibration(producers * 3);
  run.sm.resize(producers);
  std::uint32_t num_wrong_loads = 0;
  const auto read = [](void* to, const void* from, std::size_t bytes) {
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  };
  read(cycles.data(), scratch.cycles, cycles.size() * 4);
  read(calibration.data(), scratch.calibration, calibration.size() * 8);
  read(run.sm.data(), scratch.producer_sm, producers * 4);
  read(&num_wrong_loads, scratch.num_wrong, 4);

  std::vector<double> rates;
  std::uint64_t first_ns = ~0ull;
  for (std::size_t p = 0; p < producers; ++p) {
    if (calibration[3 * p + 1] > 0) {
      rates.push_back(static_cast<double>(calibration[3 * p]) /
                      static_cast<double>(calibration[3 * p + 1]));
    }
    first_ns = std::min(first_ns, calibration[3 * p + 2]);
  }
  if (rates.empty()) throw Error(ErrorCategory::runtime, "the GPU's timer did not advance");
  run.cycles_per_ns =
      std::accumulate(rates.begin(), rates.end(), 0.0) / static_cast<double>(rates.size());
  run.times.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto ns = [&](int field) {
      return static_cast<float>(cycles[i * kNumTimes + field] / run.cycles_per_ns);
    };
    const auto began = static_cast<float>(calibration[3 * (i % producers) + 2] - first_ns);
    run.times[i] = {ns(0), ns(1), spec_.measure_visible ? ns(2) : 0.0f,
                    spec_.measure_visible ? ns(3) : 0.0f, began + ns(4)};
  }
  const Checked checked = check_destinations();
  run.num_checked_words = checked.num_words;
  run.num_wrong_words = checked.num_wrong + num_wrong_loads;
  return run;
}

}  // namespace xstage::probing
