// What a store costs through each owner of memory: the outbox sends the same bytes into host memory
// that one process made for itself, and into host memory that another process shares.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>

#include "device/outbox.cuh"
#include "device/role.cuh"
#include "device/store.cuh"
#include "peers_rank.cuh"
#include "probe/tensor_map.hpp"
#include "xstage/error.hpp"

namespace xstage::gpu_test {
namespace {

constexpr std::uint32_t kChunkBytes = 16 * 1024;

// Where chunk `idx` of a CTA's own part goes.
struct LinearTarget {
  char* base;
  __device__ LinearDestination operator()(std::uint64_t idx) const {
    return {base + idx * kChunkBytes};
  }
};
struct TensorTarget {
  CUtensorMap map;  // rows of 256 B; a box is one chunk
  __device__ TensorDestination operator()(std::uint64_t idx) const {
    return {&map, 0, static_cast<std::int32_t>(idx * (kChunkBytes / 256)), 8};
  }
};

template <class Store, class Target>
__global__ void __launch_bounds__(128)
    send_kernel(const __grid_constant__ Target target, std::uint32_t chunks_per_cta,
                std::uint32_t num_passes) {
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
  const std::uint64_t first = static_cast<std::uint64_t>(blockIdx.x) * chunks_per_cta;
  for (std::uint32_t n = 0; n < chunks_per_cta * num_passes; ++n) {
    outbox.acquire();
    outbox.post(source + outbox.next_slot() * kChunkBytes, kChunkBytes,
                target(first + n % chunks_per_cta));
    (void)outbox.pump();
  }
  outbox.drain();
  outbox.wait_complete();
}

// GB/s of one store kind into `base`, the median of a few.
template <class Store, class Target>
double rate(const Target& target, std::size_t bytes, std::uint32_t num_passes) {
  constexpr unsigned kNumCtas = 66;
  constexpr auto kernel = send_kernel<Store, Target>;
  const auto chunks = static_cast<std::uint32_t>(bytes / kNumCtas / kChunkBytes);
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 2 * kChunkBytes),
      "cudaFuncSetAttribute");
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  check_cuda(cudaEventCreate(&start), "cudaEventCreate");
  check_cuda(cudaEventCreate(&stop), "cudaEventCreate");
  std::vector<double> rates;
  for (int i = 0; i < 7; ++i) {
    check_cuda(cudaEventRecord(start), "cudaEventRecord");
    kernel<<<kNumCtas, 128, 2 * kChunkBytes>>>(target, chunks, num_passes);
    check_cuda(cudaGetLastError(), "launching the sender");
    check_cuda(cudaEventRecord(stop), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(stop), "the sender");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, start, stop), "cudaEventElapsedTime");
    rates.push_back(static_cast<double>(chunks) * num_passes * kNumCtas * kChunkBytes /
                    (milliseconds * 1e6));
  }
  (void)cudaEventDestroy(start);
  (void)cudaEventDestroy(stop);
  return quantile(rates, 0.5);
}

constexpr const char* kKinds[] = {"register16", "register8",   "register4", "red",
                                  "bulk",       "bulk_reduce", "tensor"};
constexpr std::size_t kNumKinds = std::size(kKinds);
using Rates = std::vector<double>;  // by kind

Rates measure(void* base, std::size_t bytes, std::uint32_t num_passes) {
  const LinearTarget linear{static_cast<char*>(base)};
  const TensorTarget tensor{
      probing::make_row_box_map(base, 256, bytes / 256, 256, 256, kChunkBytes / 256)};
  return {rate<RegisterStore<uint4>>(linear, bytes, num_passes),
          rate<RegisterStore<uint2>>(linear, bytes, num_passes),
          rate<RegisterStore<std::uint32_t>>(linear, bytes, num_passes),
          rate<RedStore>(linear, bytes, 1),
          rate<BulkStore<>>(linear, bytes, num_passes),
          rate<BulkReduce>(linear, bytes, 1),
          rate<TensorStore>(tensor, bytes, num_passes)};
}

std::string text_of(const Rates& rates) {
  std::string text;
  for (const double each : rates) text += std::to_string(each) + " ";
  return text;
}

Rates parse(const std::string& text) {
  std::istringstream stream(text);
  Rates rates;
  for (double each = 0; stream >> each;) rates.push_back(each);
  rates.resize(kNumKinds, 0);
  return rates;
}

// Into host memory the owners must agree within 2 %; into local memory the figure is for
// comparison.
void compare(const std::string& placement, const char* kind, double local, double shared,
             Report& report) {
  print_figure("throughput", 2, placement + " " + kind + ", one process", local, "GB/s");
  print_figure("throughput", 2, placement + " " + kind + ", two processes", shared, "GB/s");
  const double off = std::abs(shared / local - 1);
  report.expect(placement != "host" || off <= 0.02, placement + " " + std::string(kind) +
                                                        ": owners differ by " +
                                                        std::to_string(100 * off) + " %");
}

void throughput(const Options&, int, Report& report) {
  constexpr std::size_t kBytes = 66ull * 16 * kChunkBytes;
  for (const std::string placement : {"host", "device"}) {
    Options options;
    options.placement = placement;
    const std::uint32_t passes = options.placement == "host" ? 2 : 60;  // about 1 ms a kernel
    const auto local = run_ranks(1, [&](Group&) {
      const int devices[] = {0, 0};
      auto members = PeerMemory::create_local(devices, kBytes, peer_options(options));
      return text_of(measure(members[0].table().bases[1], kBytes, passes));
    });
    // One sender at a time: the two processes would otherwise share the link.
    const auto shared = run_ranks(2, [&](Group& group) {
      const PeerMemory memory = PeerMemory::create(group, kBytes, peer_options(options));
      std::string text;
      if (group.rank() == 0) text = text_of(measure(memory.table().bases[1], kBytes, passes));
      group.barrier();
      return text;
    });
    for (const auto& outcomes : {local, shared}) {
      report.expect(outcomes[0].exit_code == 0, outcomes[0].text);
    }
    if (!report.fine()) return;
    const Rates a = parse(local[0].text);
    const Rates b = parse(shared[0].text);
    for (std::size_t kind = 0; kind < kNumKinds; ++kind) {
      compare(placement, kKinds[kind], a[kind], b[kind], report);
    }
  }
}

}  // namespace

std::vector<NamedCase> throughput_cases() {
  return {{"throughput", "outbox rate through each owner of memory", throughput}};
}

}  // namespace xstage::gpu_test
