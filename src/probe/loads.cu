#include <algorithm>

#include "probe/load_kernel.cuh"
#include "probe/loads.hpp"

namespace xstage::probing {
namespace {

using Kernel = void (*)(LoadArgs);

Kernel kernel_of(StoreKind kind) {
  if (kind == StoreKind::register16) return load_kernel<device::RegisterStore<uint4>>;
  if (kind == StoreKind::bulk) return load_kernel<device::BulkStore<>>;
  throw Error(ErrorCategory::usage, "load interference: legal store kinds are register16, bulk");
}

// Device memory of one run, within the link's arena.
struct Outputs {
  char* counters;
  std::int32_t* placement;
  std::uint64_t* sums;
  std::uint64_t* loops;
  std::uint32_t* num_loads;
  std::uint32_t* maxima;
  std::size_t count;  // of bursts of all SMs

  Outputs(char* base, std::size_t num_sms, std::size_t num_bursts)
      : counters(base),
        placement(reinterpret_cast<std::int32_t*>(base + 4096)),
        sums(reinterpret_cast<std::uint64_t*>(base + 8192)),
        loops(sums + num_sms * num_bursts),
        num_loads(reinterpret_cast<std::uint32_t*>(loops + num_sms)),
        maxima(num_loads + num_sms * num_bursts),
        count(num_sms * num_bursts) {}
};

template <typename T>
std::vector<T> download(const T* from, std::size_t count) {
  std::vector<T> values(count);
  check(cudaMemcpy(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return values;
}

LoadRun summarise(const Outputs& out, const LoadSpec& spec, std::size_t num_sms,
                  double cycles_per_ns) {
  const auto bursts = static_cast<std::size_t>(spec.num_bursts);
  const auto num_loads = download(out.num_loads, out.count);
  const auto sums = download(out.sums, out.count);
  const auto maxima = download(out.maxima, out.count);
  const auto loops = download(out.loops, num_sms);
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
    throw Error(ErrorCategory::usage,
                "load interference: legal are 1 to 128 bursts and 1 to 4 "
                "loads in flight");
  }
  const auto num_sms = static_cast<std::size_t>(link.num_sms());
  const Outputs out(link.arena(), num_sms, static_cast<std::size_t>(spec.num_bursts));
  const auto placement = place_producers(link.num_sms(), link.num_sms(), false);
  check(cudaMemcpy(out.placement, placement.data(), placement.size() * 4, cudaMemcpyHostToDevice),
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
  args.burst.producer_of_sm = out.placement;
  args.burst.num_producers = static_cast<std::uint32_t>(num_sms);
  args.burst.num_arrived = reinterpret_cast<std::uint32_t*>(out.counters);
  args.burst.start_times_ns = reinterpret_cast<std::uint64_t*>(out.counters + 64);
  args.burst.wait = {link.abort_word(), static_cast<std::uint64_t>(link.timeout_s() * 1e9)};
  args.num_in_flight = static_cast<std::uint32_t>(spec.num_in_flight);
  args.num_loads = out.num_loads;
  args.sum_cycles = out.sums;
  args.max_cycles = out.maxima;
  args.loop_cycles = out.loops;

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
