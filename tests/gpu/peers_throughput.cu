// What a store costs through each owner of memory: the outbox sends the same bytes into host memory
// that one process made for itself, and into host memory that another process shares.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "device/outbox.cuh"
#include "device/role.cuh"
#include "device/store.cuh"
#include "peers_rank.cuh"
#include "xstage/error.hpp"

namespace xstage::gpu_test {
namespace {

constexpr std::uint32_t kChunkBytes = 16 * 1024;

template <class Store>
__global__ void __launch_bounds__(128) send_kernel(char* base, std::uint32_t chunks_per_cta) {
  extern __shared__ __align__(128) char source[];
  __shared__ typename Outbox<Store, 2>::Storage parcels;
  for (std::uint32_t i = threadIdx.x * 4; i < 2 * kChunkBytes; i += blockDim.x * 4) {
    *reinterpret_cast<std::uint32_t*>(source + i) = i;
  }
  __syncthreads();
  const Role role{threadIdx.x, blockDim.x, 1};
  Send send;
  send.chunk_bytes = kChunkBytes;
  Outbox<Store, 2> outbox(role, send, parcels);
  char* mine = base + static_cast<std::uint64_t>(blockIdx.x) * chunks_per_cta * kChunkBytes;
  for (std::uint32_t i = 0; i < chunks_per_cta; ++i) {
    outbox.acquire();
    outbox.post(source + outbox.next_slot() * kChunkBytes, kChunkBytes,
                typename Store::Destination{mine + static_cast<std::uint64_t>(i) * kChunkBytes});
    (void)outbox.pump();
  }
  outbox.drain();
  outbox.wait_complete();
}

// GB/s of one kernel kind into `base`, the best of a few.
template <class Store>
double rate(char* base, std::size_t bytes, unsigned num_ctas) {
  const auto chunks = static_cast<std::uint32_t>(bytes / num_ctas / kChunkBytes);
  check_cuda(cudaFuncSetAttribute(send_kernel<Store>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  2 * kChunkBytes),
             "cudaFuncSetAttribute");
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  check_cuda(cudaEventCreate(&start), "cudaEventCreate");
  check_cuda(cudaEventCreate(&stop), "cudaEventCreate");
  std::vector<double> rates;
  for (int i = 0; i < 7; ++i) {
    check_cuda(cudaEventRecord(start), "cudaEventRecord");
    send_kernel<Store><<<num_ctas, 128, 2 * kChunkBytes>>>(base, chunks);
    check_cuda(cudaGetLastError(), "launching the sender");
    check_cuda(cudaEventRecord(stop), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(stop), "the sender");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, start, stop), "cudaEventElapsedTime");
    rates.push_back(static_cast<double>(chunks) * num_ctas * kChunkBytes / (milliseconds * 1e6));
  }
  (void)cudaEventDestroy(start);
  (void)cudaEventDestroy(stop);
  return quantile(rates, 0.5);
}

struct Rates {
  double register16 = 0;
  double register4 = 0;
  double bulk = 0;
};

Rates measure(void* base, std::size_t bytes) {
  constexpr unsigned kNumCtas = 66;
  auto* memory = static_cast<char*>(base);
  return {rate<RegisterStore<uint4>>(memory, bytes, kNumCtas),
          rate<RegisterStore<std::uint32_t>>(memory, bytes, kNumCtas),
          rate<BulkStore<>>(memory, bytes, kNumCtas)};
}

std::string text_of(const Rates& rates) {
  return std::to_string(rates.register16) + " " + std::to_string(rates.register4) + " " +
         std::to_string(rates.bulk);
}

Rates parse(const std::string& text) {
  Rates rates;
  (void)std::sscanf(text.c_str(), "%lf %lf %lf", &rates.register16, &rates.register4, &rates.bulk);
  return rates;
}

void compare(const std::string& placement, const char* kind, double local, double shared,
             Report& report) {
  print_figure("throughput", 2, placement + " " + kind + ", one process", local, "GB/s");
  print_figure("throughput", 2, placement + " " + kind + ", two processes", shared, "GB/s");
  const double off = std::abs(shared / local - 1);
  report.expect(off <= 0.02, placement + " " + std::string(kind) + ": owners differ by " +
                                 std::to_string(100 * off) + " %");
}

void throughput(const Options&, int, Report& report) {
  constexpr std::size_t kBytes = 66ull * 16 * kChunkBytes;
  for (const std::string placement : {"host", "device"}) {
    Options options;
    options.placement = placement;
    const auto local = run_ranks(1, [&](Group&) {
      const int devices[] = {0, 0};
      auto members = PeerMemory::create_local(devices, kBytes, peer_options(options));
      return text_of(measure(members[0].table().bases[1], kBytes));
    });
    // One sender at a time: the two processes would otherwise share the link.
    const auto shared = run_ranks(2, [&](Group& group) {
      const PeerMemory memory = PeerMemory::create(group, kBytes, peer_options(options));
      std::string text;
      if (group.rank() == 0) text = text_of(measure(memory.table().bases[1], kBytes));
      group.barrier();
      return text;
    });
    for (const auto& outcomes : {local, shared}) {
      report.expect(outcomes[0].exit_code == 0, outcomes[0].text);
    }
    if (!report.fine()) return;
    const Rates a = parse(local[0].text);
    const Rates b = parse(shared[0].text);
    compare(placement, "register16", a.register16, b.register16, report);
    compare(placement, "register4", a.register4, b.register4, report);
    compare(placement, "bulk", a.bulk, b.bulk, report);
  }
}

}  // namespace

std::vector<NamedCase> throughput_cases() {
  return {{"throughput", "outbox rate through each owner of memory", throughput}};
}

}  // namespace xstage::gpu_test
