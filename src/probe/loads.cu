#include "probe/loads.hpp"

#include <algorithm>

#include "probe/load_kernel.cuh"

namespace xstage::probing {
namespace {

using Kernel = void (*)(LoadArgs);

Kernel kernel_of(StoreKind kind) {
  if (kind == StoreKind::register16) return load_kernel<device::RegisterStore<uint4>>;
  if (kind == StoreKind::bulk) return load_kernel<device::BulkStore<>>;
  throw Error(ErrorCategory::usage, "load interference: legal store kinds are register16, bulk");
}

// Device memory of one run.
struct Outputs {
  Buffer placement, counters, num_loads, sums, maxima, loops;

  Outputs(int device, std::size_t num_sms, std::size_t num_bursts)
      : placement(Buffer::Place::device, device, num_sms * 4),
        counters(Buffer::Place::device, device, 4096),
        num_loads(Buffer::Place::device, device, num_sms * num_bursts * 4),
        sums(Buffer::Place::device, device, num_sms * num_bursts * 8),
        maxima(Buffer::Place::device, device, num_sms * num_bursts * 4),
        loops(Buffer::Place::device, device, num_sms * 8) {
    check(cudaMemset(counters.data(), 0, counters.size()), "cudaMemset");
  }
};

template <typename T>
std::vector<T> download(const Buffer& buffer) {
  std::vector<T> values(buffer.size() / sizeof(T));
  check(cudaMemcpy(values.data(), buffer.data(), buffer.size(), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  return values;
}

LoadRun summarise(const Outputs& out, const LoadSpec& spec, std::size_t num_sms,
                  double cycles_per_ns) {
  const auto bursts = static_cast<std::size_t>(spec.num_bursts);
  const auto num_loads = download<std::uint32_t>(out.num_loads);
  const auto sums = download<std::uint64_t>(out.sums);
  const auto maxima = download<std::uint32_t>(out.maxima);
  const auto loops = download<std::uint64_t>(out.loops);
  LoadRun run;
  run.mean_by_burst_ns.assign(bursts, 0);
  run.max_by_burst_ns.assign(bursts, 0);
  double all_loads = 0;
  double all_latency = 0;
  double loop_ns = 0;
  for (std::size_t i = 0; i < bursts; ++i) {
    double loads = 0;
    double latency = 0;
    for (std::size_t sm = 0; sm < num_sms; ++sm) {
      loads += num_loads[sm * bursts + i];
      latency += static_cast<double>(sums[sm * bursts + i]) / cycles_per_ns;
      run.max_by_burst_ns[i] =
          std::max(run.max_by_burst_ns[i], maxima[sm * bursts + i] / cycles_per_ns);
    }
    run.mean_by_burst_ns[i] = loads > 0 ? latency / loads : 0;
    run.latency_max_ns = std::max(run.latency_max_ns, run.max_by_burst_ns[i]);
    all_loads += loads;
    all_latency += latency;
  }
  for (const auto cycles : loops) {
    loop_ns += static_cast<double>(cycles) / cycles_per_ns / static_cast<double>(num_sms);
  }
  run.latency_mean_ns = all_loads > 0 ? all_latency / all_loads : 0;
  run.load_rate = all_loads * kLoadBytes / static_cast<double>(num_sms) / loop_ns;
  run.store_rate = spec.stores ? static_cast<double>(num_sms * bursts) * spec.bytes / loop_ns : 0;
  return run;
}

}  // namespace

LoadRun run_loads(const Link& link, const LoadSpec& spec) {
  if (spec.num_bursts < 1 || spec.num_bursts > static_cast<int>(kMaxLoadBursts) ||
      spec.num_in_flight < 1 || spec.num_in_flight > static_cast<int>(kMaxLoadsInFlight)) {
    throw Error(ErrorCategory::usage, "load interference: legal are 1 to 128 bursts and 1 to 4 "
                                      "loads in flight");
  }
  const auto num_sms = static_cast<std::size_t>(link.num_sms());
  check(cudaSetDevice(link.source_idx()), "cudaSetDevice");
  const Outputs out(link.source_idx(), num_sms, static_cast<std::size_t>(spec.num_bursts));
  const auto placement = place_producers(link.num_sms(), link.num_sms(), false);
  check(cudaMemcpy(out.placement.data(), placement.data(), placement.size() * 4,
                   cudaMemcpyHostToDevice),
        "cudaMemcpy");
  int clock_khz = 0;
  check(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, link.source_idx()), "clock rate");
  const double cycles_per_ns = clock_khz * 1e-6;

  LoadArgs args{};
  args.burst.destination = link.destination().data();
  args.burst.block_stride_bytes = 2ull * spec.bytes;
  args.burst.num_columns = 1;
  args.burst.row_shift = 8;
  args.burst.pitch_bytes = 256;
  args.burst.bytes = spec.stores ? spec.bytes : 0;
  args.burst.num_bursts = static_cast<std::uint32_t>(spec.num_bursts);
  args.burst.num_slices = 2;
  args.burst.aligned = spec.aligned;
  args.burst.send = spec.send;
  args.burst.idle_ns = 0;
  args.burst.gap_cycles = static_cast<std::uint64_t>(spec.gap_ns * cycles_per_ns);
  args.burst.gap_source = link.local_source();
  args.burst.seed = spec.seed;
  args.burst.producer_of_sm = out.placement.as<std::int32_t>();
  args.burst.num_producers = static_cast<std::uint32_t>(num_sms);
  args.burst.num_arrived = out.counters.as<std::uint32_t>();
  args.burst.start_times_ns = reinterpret_cast<std::uint64_t*>(out.counters.data() + 64);
  args.burst.wait = {link.abort_word(), static_cast<std::uint64_t>(link.timeout_s() * 1e9)};
  args.num_in_flight = static_cast<std::uint32_t>(spec.num_in_flight);
  args.num_loads = out.num_loads.as<std::uint32_t>();
  args.sum_cycles = out.sums.as<std::uint64_t>();
  args.max_cycles = out.maxima.as<std::uint32_t>();
  args.loop_cycles = out.loops.as<std::uint64_t>();

  const auto* kernel = reinterpret_cast<const void*>(kernel_of(spec.kind));
  const int shared = static_cast<int>(
      std::max<std::size_t>(116 * 1024, kMaxLoadsInFlight * kLoadBytes + spec.bytes));
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "cudaFuncSetAttribute");
  void* arguments[] = {&args};
  check(cudaLaunchCooperativeKernel(kernel, dim3(link.num_sms()), dim3(kNumThreads + 32), arguments,
                                    static_cast<std::size_t>(shared), link.stream().get()),
        "load kernel launch");
  link.stream().synchronize();
  link.check_abort("load interference");
  return summarise(out, spec, num_sms, cycles_per_ns);
}

}  // namespace xstage::probing
