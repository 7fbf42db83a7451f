#include <algorithm>
#include <array>

#include "device/ptx.cuh"
#include "device/wait.cuh"
#include "probe/costs.hpp"

namespace xstage::probing {
namespace {

enum Cost : int {
  kFenceIdle,
  kStoreFence,
  kStoreRelease,
  kLoadRoundTrip,
  kProxyFence,
  kBulkIssue,
  kBulkCommit,
  kBulkRead,
  kBulkComplete,
  kBulkFence,
  kNumCosts
};
constexpr std::uint32_t kCostBulkBytes = 8192;

// One thread; the cycles of each step go to `out` after the loop, so that the results are no
// traffic among the measured stores.
__global__ void fence_kernel(char* remote, std::uint32_t* out, int num_rounds) {
  extern __shared__ __align__(128) char shared[];
  auto* cycles = reinterpret_cast<std::uint32_t*>(shared + kCostBulkBytes);
  for (std::uint32_t i = 0; i < kCostBulkBytes / 4; ++i) {
    reinterpret_cast<std::uint32_t*>(shared)[i] = i;
  }
  for (int round = 0; round < num_rounds; ++round) {
    std::uint64_t since = 0;
    const auto pause = [&] {
      const std::uint64_t until = device::global_time_ns() + 5000;
      while (device::global_time_ns() < until) {
      }
      since = device::sm_cycles();
    };
    const auto record = [&](Cost what) {
      const std::uint64_t now = device::sm_cycles();
      cycles[round * kNumCosts + what] = static_cast<std::uint32_t>(now - since);
      since = device::sm_cycles();
    };
    const uint4 word = {1u, 2u, 3u, static_cast<std::uint32_t>(round)};
    pause();
    device::fence_system();
    record(kFenceIdle);
    pause();
    device::store_global(remote, word);
    device::fence_system();
    record(kStoreFence);
    pause();
    device::store_global(remote, word);
    device::store_release_system(reinterpret_cast<std::uint32_t*>(remote + 128), round + 1u);
    record(kStoreRelease);
    pause();
    const std::uint32_t value =
        device::load_relaxed_system(reinterpret_cast<const std::uint32_t*>(remote + 256));
    if (value == 0x12345678u) __nanosleep(1);  // the load must have returned
    record(kLoadRoundTrip);
    reinterpret_cast<volatile std::uint32_t*>(shared)[round] = value;
    pause();
    device::fence_async_shared();
    record(kProxyFence);
    device::bulk_store(remote + 1024, shared, kCostBulkBytes);
    record(kBulkIssue);
    device::bulk_commit();
    record(kBulkCommit);
    device::bulk_wait_read<0>();
    record(kBulkRead);
    device::bulk_wait_complete<0>();
    record(kBulkComplete);
    device::fence_system();
    record(kBulkFence);
  }
  for (int i = 0; i < num_rounds * kNumCosts; ++i) out[i] = cycles[i];
}

// Player 0 serves; each writes the other's flag and waits for its own.
__global__ void flag_kernel(std::uint32_t* mine, std::uint32_t* theirs, int player, int num_rounds,
                            std::uint32_t* cycles, device::WaitContext wait) {
  for (int round = 0; round < num_rounds; ++round) {
    const auto turn = static_cast<std::uint32_t>(round + 1);
    const std::uint64_t start = device::sm_cycles();
    if (player == 0) device::store_release_system(theirs, turn);
    const bool seen =
        device::wait_until(wait, [&] { return device::load_acquire_system(mine) == turn; });
    if (!seen) return;
    if (player == 1) device::store_release_system(theirs, turn);
    if (player == 0) cycles[round] = static_cast<std::uint32_t>(device::sm_cycles() - start);
  }
}

__global__ void read_kernel(const uint4* words, std::size_t count, std::uint32_t* sink) {
  uint4 sum = {0, 0, 0, 0};
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
  for (; i + 7 * stride < count; i += 8 * stride) {
    uint4 w[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) w[j] = words[i + j * stride];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      sum.x ^= w[j].x;
      sum.y ^= w[j].y;
      sum.z ^= w[j].z;
      sum.w ^= w[j].w;
    }
  }
  for (; i < count; i += stride) sum.x ^= words[i].x;
  if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x5eed5eedu) atomicAdd(sink, 1u);
}

__global__ void copy_kernel(const uint4* from, uint4* to, std::size_t count) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    uint4 w[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) w[j] = from[i + j * stride];
#pragma unroll
    for (int j = 0; j < 4; ++j) to[i + j * stride] = w[j];
  }
  for (; i < count; i += stride) to[i] = from[i];
}

__global__ void timer_kernel(std::uint64_t* step) {
  std::uint64_t smallest = ~0ull;
  std::uint64_t last = device::global_time_ns();
  for (int i = 0; i < 200; ++i) {
    std::uint64_t now = last;
    while (now == last) now = device::global_time_ns();
    smallest = now - last < smallest ? now - last : smallest;
    last = now;
  }
  *step = smallest;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

double cycles_per_ns(int device_idx) {
  int clock_khz = 0;
  check(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, device_idx), "clock rate");
  return clock_khz * 1e-6;
}

// Median rate of `run`, which moves `bytes` on the stream of `link`.
template <typename Run>
double rate_of(const Link& link, std::size_t bytes, Run run) {
  constexpr int kRounds = 7;
  const EventPair events;
  run();  // warm up
  std::vector<double> rates;
  for (int i = 0; i < kRounds; ++i) {
    events.begin(link.stream());
    run();
    events.end(link.stream());
    rates.push_back(static_cast<double>(bytes) / events.elapsed_ns());
  }
  return median(rates);
}

constexpr std::size_t kLocalBytes = 1u << 30;

}  // namespace

FenceCosts measure_fences(const Link& link, int num_rounds) {
  check(cudaSetDevice(link.source_idx()), "cudaSetDevice");
  const auto count = static_cast<std::size_t>(num_rounds) * kNumCosts;
  const Buffer out(Buffer::Place::device, link.source_idx(), count * 4);
  fence_kernel<<<1, 1, kCostBulkBytes + count * 4, link.stream().get()>>>(
      link.destination().data(), out.as<std::uint32_t>(), num_rounds);
  check(cudaGetLastError(), "fence kernel");
  link.stream().synchronize();
  std::vector<std::uint32_t> cycles(count);
  check(cudaMemcpy(cycles.data(), out.data(), count * 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
  std::array<double, kNumCosts> ns{};
  for (int what = 0; what < kNumCosts; ++what) {
    std::vector<double> values;
    for (int round = 0; round < num_rounds; ++round) {
      values.push_back(cycles[static_cast<std::size_t>(round) * kNumCosts + what] /
                       cycles_per_ns(link.source_idx()));
    }
    ns[what] = median(values);
  }
  FenceCosts costs;
  costs.fence_idle_ns = ns[kFenceIdle];
  costs.store_fence_ns = ns[kStoreFence];
  costs.store_release_ns = ns[kStoreRelease];
  costs.load_round_trip_ns = ns[kLoadRoundTrip];
  costs.proxy_fence_ns = ns[kProxyFence];
  costs.bulk_issue_ns = ns[kBulkIssue];
  costs.bulk_commit_ns = ns[kBulkCommit];
  costs.bulk_read_ns = ns[kBulkRead];
  costs.bulk_complete_ns = ns[kBulkComplete];
  costs.bulk_fence_ns = ns[kBulkFence];
  return costs;
}

double measure_flag_one_way_ns(const Link& there, const Link& back, int num_rounds) {
  // Each link's destination belongs to the other GPU: it holds the flag that the other waits for.
  const Buffer cycles(Buffer::Place::device, there.source_idx(),
                      static_cast<std::size_t>(num_rounds) * 4);
  for (const Link* link : {&there, &back}) {
    check(cudaSetDevice(link->destination().device_idx()), "cudaSetDevice");
    check(cudaMemset(link->destination().data(), 0, 4), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaMemset");
  }
  const device::WaitContext wait{there.abort_word(),
                                 static_cast<std::uint64_t>(there.timeout_s() * 1e9)};
  check(cudaSetDevice(back.source_idx()), "cudaSetDevice");
  flag_kernel<<<1, 1, 0, back.stream().get()>>>(there.destination().as<std::uint32_t>(),
                                                back.destination().as<std::uint32_t>(), 1,
                                                num_rounds, nullptr, wait);
  check(cudaGetLastError(), "flag kernel");
  check(cudaSetDevice(there.source_idx()), "cudaSetDevice");
  flag_kernel<<<1, 1, 0, there.stream().get()>>>(back.destination().as<std::uint32_t>(),
                                                 there.destination().as<std::uint32_t>(), 0,
                                                 num_rounds, cycles.as<std::uint32_t>(), wait);
  check(cudaGetLastError(), "flag kernel");
  there.stream().synchronize();
  back.stream().synchronize();
  there.check_abort("flag round trip");
  std::vector<std::uint32_t> values(static_cast<std::size_t>(num_rounds));
  check(cudaMemcpy(values.data(), cycles.data(), values.size() * 4, cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  std::vector<double> ns;
  for (const auto value : values) ns.push_back(value / cycles_per_ns(there.source_idx()) / 2);
  return median(ns);
}

double measure_local_read_rate(const Link& link) {
  const Buffer data(Buffer::Place::device, link.source_idx(), kLocalBytes);
  const Buffer sink(Buffer::Place::device, link.source_idx(), 4);
  check(cudaMemset(data.data(), 0x3c, kLocalBytes), "cudaMemset");
  return rate_of(link, kLocalBytes, [&] {
    read_kernel<<<link.num_sms() * 8, 256, 0, link.stream().get()>>>(
        data.as<uint4>(), kLocalBytes / 16, sink.as<std::uint32_t>());
    check(cudaGetLastError(), "read kernel");
  });
}

double measure_local_copy_rate(const Link& link) {
  const Buffer from(Buffer::Place::device, link.source_idx(), kLocalBytes);
  const Buffer to(Buffer::Place::device, link.source_idx(), kLocalBytes);
  check(cudaMemset(from.data(), 0x3c, kLocalBytes), "cudaMemset");
  return rate_of(link, 2 * kLocalBytes, [&] {
    copy_kernel<<<link.num_sms() * 8, 256, 0, link.stream().get()>>>(
        from.as<uint4>(), to.as<uint4>(), kLocalBytes / 16);
    check(cudaGetLastError(), "copy kernel");
  });
}

double measure_copy_engine_rate(const Link& link) {
  check(cudaSetDevice(link.source_idx()), "cudaSetDevice");
  const std::size_t bytes = link.destination().size();
  const Buffer from(Buffer::Place::device, link.source_idx(), bytes);
  check(cudaMemset(from.data(), 0x3c, bytes), "cudaMemset");
  return rate_of(link, 4 * bytes, [&] {
    for (int i = 0; i < 4; ++i) {
      check(cudaMemcpyAsync(link.destination().data(), from.data(), bytes, cudaMemcpyDefault,
                            link.stream().get()),
            "cudaMemcpyAsync");
    }
  });
}

SharedEgress measure_shared_egress(Link& link, StoreKind kind) {
  // Long enough that both overlap for most of the time; the reader starts first and ends last.
  const bool host = link.target().type == Endpoint::Type::host_memory;
  const int reader = host ? link.source_idx() : link.target().device_idx;
  const std::size_t bytes = host ? 64u << 20 : 256u << 20;
  const Buffer local(Buffer::Place::device, link.source_idx(), bytes);
  check(cudaMemset(local.data(), 0x3c, bytes), "cudaMemset");
  const Buffer host_target =
      host ? Buffer(Buffer::Place::pinned_host, link.source_idx(), bytes) : Buffer();
  if (!host) {
    check(cudaSetDevice(reader), "cudaSetDevice");
    const cudaError_t status = cudaDeviceEnablePeerAccess(link.source_idx(), 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      check(status, "cudaDeviceEnablePeerAccess");
    }
  }
  const Stream stream(reader);
  const Buffer sink(Buffer::Place::device, reader, 4);
  const auto read_once = [&] {
    if (host) {
      check(cudaMemcpyAsync(host_target.data(), local.data(), bytes, cudaMemcpyDeviceToHost,
                            stream.get()),
            "cudaMemcpyAsync");
    } else {
      check(cudaSetDevice(reader), "cudaSetDevice");
      read_kernel<<<link.num_sms() * 2, 256, 0, stream.get()>>>(local.as<uint4>(), bytes / 16,
                                                                sink.as<std::uint32_t>());
      check(cudaGetLastError(), "read kernel");
    }
  };
  BurstSpec spec;
  spec.kind = kind;
  spec.send.chunk_bytes = 16 * 1024;
  spec.bytes = 32 * 1024;
  spec.num_producers = link.num_sms();
  spec.num_bursts = host ? 60 : 400;
  const double store_bytes = static_cast<double>(spec.bytes) * spec.num_producers * spec.num_bursts;
  SharedEgress rates;
  check(cudaSetDevice(reader), "cudaSetDevice");
  const EventPair events;
  read_once();
  events.begin(stream);
  for (int i = 0; i < 4; ++i) read_once();
  events.end(stream);
  rates.read_alone = 4.0 * static_cast<double>(bytes) / events.elapsed_ns();
  rates.store_alone = store_bytes / link.run(spec).kernel_ns;
  // Reads for about 1.5 times as long as the stores alone would take, first half before them.
  const double read_ns = static_cast<double>(bytes) / rates.read_alone;
  const int num_reads =
      std::max(4, static_cast<int>(4 * store_bytes / rates.store_alone / read_ns));
  link.prepare(spec);
  check(cudaSetDevice(reader), "cudaSetDevice");
  events.begin(stream);
  for (int i = 0; i < num_reads; ++i) read_once();
  events.end(stream);
  link.start();
  const BurstRun run = link.collect();
  rates.store_together = store_bytes / run.kernel_ns;
  const double elapsed = events.elapsed_ns();
  // The reader ran alone outside the stores' time: take that share out at its own rate.
  const double alone_ns = std::max(0.0, elapsed - run.kernel_ns);
  rates.read_together =
      std::max(0.0, (num_reads * static_cast<double>(bytes) - alone_ns * rates.read_alone)) /
      run.kernel_ns;
  return rates;
}

double measure_timer_step_ns(const Link& link) {
  check(cudaSetDevice(link.source_idx()), "cudaSetDevice");
  const Buffer out(Buffer::Place::device, link.source_idx(), 8);
  timer_kernel<<<1, 1, 0, link.stream().get()>>>(out.as<std::uint64_t>());
  check(cudaGetLastError(), "timer kernel");
  link.stream().synchronize();
  std::uint64_t step = 0;
  check(cudaMemcpy(&step, out.data(), 8, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return static_cast<double>(step);
}

}  // namespace xstage::probing
