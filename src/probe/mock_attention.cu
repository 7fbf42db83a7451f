#include <algorithm>
#include <cstring>

#include "probe/mock_attention.cuh"
#include "probe/mock_attention.hpp"
#include "probe/verify.cuh"

namespace xstage::probing {

// The roles meet only through barriers in shared memory; none of them waits at a tile boundary for
// the CTA.
__global__ void __launch_bounds__(kMockThreads, 1) mock_attention_kernel(const MockArgs args) {
  extern __shared__ __align__(1024) char dynamic[];
  __shared__ MockShared shared;
  __shared__ MockOutbox::Storage parcels;
  char* const stages = dynamic;
  char* const slots = dynamic + 2 * kStepBytes;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      device::mbarrier_init(&shared.full[i], 1);
      device::mbarrier_init(&shared.empty[i], kNumConsumers);
      device::mbarrier_init(&shared.filled[i], kNumConsumers);
      device::mbarrier_init(&shared.free[i], 1);
    }
    device::mbarrier_init_fence();
    shared.step = 0;
    shared.sent_cycles = 0;
    BurstArgs start{};
    start.idle_ns = 30'000;
    start.num_producers = gridDim.x;
    start.num_arrived = args.num_arrived;
    start.start_times_ns = args.start_times_ns;
    start.wait = args.wait;
    aligned_start(start, 0);
  }
  __syncthreads();
  const std::uint64_t start_cycles = device::sm_cycles();
  const std::uint64_t start_ns = device::global_time_ns();
  const std::uint32_t warp = threadIdx.x / 32;
  if (warp < kNumConsumers / 32) {
    run_mock_consumers(args, shared, stages, slots, parcels);
  } else if (warp == kNumConsumers / 32) {
    if (threadIdx.x % 32 == 0) run_mock_loader(args, shared, stages);
  } else if (args.owner == Owner::spare_warp && threadIdx.x % 32 == 0) {
    run_mock_sender(args, shared, slots, parcels);
  }
  __syncwarp();  // a role of one thread: its warp waits for it here
  __syncthreads();
  const std::uint64_t end_cycles =
      shared.sent_cycles != 0 ? shared.sent_cycles : shared.handed_over_cycles;
  for (std::uint32_t i = threadIdx.x; i < args.num_tiles; i += kMockThreads) {
    args.tile_cycles[blockIdx.x * args.num_tiles + i] = shared.tile_cycles[i];
  }
  if (threadIdx.x == 0) {
    std::uint64_t* times = args.times + blockIdx.x * 4;
    times[0] = shared.main_loop_cycles;
    times[1] = shared.handed_over_cycles - start_cycles;
    times[2] = end_cycles - start_cycles;
    times[3] = device::global_time_ns() - start_ns;
  }
}

namespace {

__global__ void check_tiles_kernel(const char* base, std::uint32_t num_tiles, std::uint32_t seed,
                                   unsigned long long* num_wrong) {
  const auto* words = reinterpret_cast<const volatile std::uint32_t*>(
      base + (static_cast<std::uint64_t>(blockIdx.x) * num_tiles + blockIdx.y) * kTileBytes);
  unsigned long long wrong = 0;
  for (std::uint32_t i = threadIdx.x; i < kTileBytes / 4; i += blockDim.x) {
    wrong += words[i] != payload(seed, blockIdx.x * kMaxTiles + blockIdx.y, i);
  }
  if (wrong != 0) atomicAdd(num_wrong, wrong);
}

std::uint64_t count_wrong_tiles(const Link& link, const MockSpec& spec) {
  const Buffer& destination = link.destination();
  const auto num_tiles = static_cast<std::uint32_t>(spec.num_tiles);
  if (destination.place() == Buffer::Place::pinned_host) {
    return sum_in_parallel(link.num_sms(), [&](int sm) {
      std::uint64_t wrong = 0;
      for (std::uint32_t tile = 0; tile < num_tiles; ++tile) {
        const auto* words = reinterpret_cast<const std::uint32_t*>(
            destination.data() + (static_cast<std::size_t>(sm) * num_tiles + tile) * kTileBytes);
        for (std::uint32_t i = 0; i < kTileBytes / 4; ++i) {
          wrong += words[i] != payload(spec.seed, sm * kMaxTiles + tile, i);
        }
      }
      return wrong;
    });
  }
  check(cudaSetDevice(destination.device_idx()), "cudaSetDevice");
  check(cudaMemset(link.check_counter(), 0, 8), "cudaMemset");
  check_tiles_kernel<<<dim3(link.num_sms(), num_tiles), 256>>>(
      destination.data(), num_tiles, spec.seed,
      reinterpret_cast<unsigned long long*>(link.check_counter()));
  check(cudaGetLastError(), "check kernel");
  unsigned long long wrong = 0;
  check(cudaMemcpy(&wrong, link.check_counter(), 8, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return wrong;
}

void poison(const Buffer& destination, std::size_t bytes) {
  if (destination.place() == Buffer::Place::pinned_host) {
    std::memset(destination.data(), static_cast<int>(kPoisonByte), bytes);
    return;
  }
  check(cudaSetDevice(destination.device_idx()), "cudaSetDevice");
  check(cudaMemset(destination.data(), static_cast<int>(kPoisonByte), bytes), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaMemset");
}

}  // namespace

MockRun run_mock_attention(const Link& link, const MockSpec& spec) {
  const auto num_sms = static_cast<std::size_t>(link.num_sms());
  const auto num_tiles = static_cast<std::size_t>(spec.num_tiles);
  if (spec.num_tiles < 1 || spec.num_tiles > static_cast<int>(kMaxTiles) ||
      num_sms * num_tiles * kTileBytes > link.destination().size()) {
    throw Error(ErrorCategory::usage, "mock attention with " + std::to_string(spec.num_tiles) +
                                          " tiles: legal are 1 to " + std::to_string(kMaxTiles) +
                                          " that fit the destination");
  }
  poison(link.destination(), num_sms * num_tiles * kTileBytes);
  char* const arena = link.arena();
  auto* const times = reinterpret_cast<std::uint64_t*>(arena + 4096);
  auto* const tile_cycles = reinterpret_cast<std::uint32_t*>(times + num_sms * 4);

  MockArgs args{};
  args.destination = link.destination().data();
  args.producer_stride_bytes = num_tiles * kTileBytes;
  args.source = link.local_source();
  args.num_tiles = static_cast<std::uint32_t>(spec.num_tiles);
  args.steps_per_tile = static_cast<std::uint32_t>(spec.steps_per_tile);
  args.rounds_per_step = static_cast<std::uint32_t>(spec.rounds_per_step);
  args.send = spec.send;
  args.owner = static_cast<Owner>(spec.owner);
  args.seed = spec.seed;
  args.num_arrived = reinterpret_cast<std::uint32_t*>(arena);
  args.start_times_ns = reinterpret_cast<std::uint64_t*>(arena + 64);
  args.tile_cycles = tile_cycles;
  args.times = times;
  args.wait = {link.abort_word(), static_cast<std::uint64_t>(link.timeout_s() * 1e9)};
  constexpr int kShared = 2 * kStepBytes + 2 * kTileBytes;
  const auto* kernel = reinterpret_cast<const void*>(mock_attention_kernel);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
        "cudaFuncSetAttribute");
  void* arguments[] = {&args};
  check(cudaLaunchCooperativeKernel(kernel, dim3(link.num_sms()), dim3(kMockThreads), arguments,
                                    kShared, link.stream().get()),
        "mock attention launch");
  link.stream().synchronize();
  link.check_abort("mock attention");

  std::vector<std::uint32_t> cycles(num_sms * num_tiles);
  std::vector<std::uint64_t> all(num_sms * 4);
  check(cudaMemcpy(cycles.data(), tile_cycles, cycles.size() * 4, cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  check(cudaMemcpy(all.data(), times, all.size() * 8, cudaMemcpyDeviceToHost), "cudaMemcpy");
  MockRun run;
  double cycles_per_ns = 0;
  for (std::size_t sm = 0; sm < num_sms; ++sm) {
    cycles_per_ns += static_cast<double>(all[sm * 4 + 2]) / static_cast<double>(all[sm * 4 + 3]) /
                     static_cast<double>(num_sms);
  }
  run.tile_ns.assign(num_tiles, 0);
  run.tile_slowest_ns.assign(num_tiles, 0);
  for (std::size_t sm = 0; sm < num_sms; ++sm) {
    const auto ns = [&](int field) {
      return static_cast<double>(all[sm * 4 + field]) / cycles_per_ns;
    };
    run.main_loop_ns += ns(0) / static_cast<double>(num_sms);
    run.computed_ns = std::max(run.computed_ns, ns(1));
    run.total_ns = std::max(run.total_ns, ns(2));
    for (std::size_t tile = 0; tile < num_tiles; ++tile) {
      const double tile_ns = cycles[sm * num_tiles + tile] / cycles_per_ns;
      run.sm_tile_ns.push_back(static_cast<float>(tile_ns));
      run.tile_ns[tile] += tile_ns / static_cast<double>(num_sms);
      run.tile_slowest_ns[tile] = std::max(run.tile_slowest_ns[tile], tile_ns);
    }
  }
  if (spec.owner != MockSpec::Owner::none) {
    run.num_checked_words = num_sms * num_tiles * kTileBytes / 4;
    run.num_wrong_words = count_wrong_tiles(link, spec);
  }
  return run;
}

}  // namespace xstage::probing
