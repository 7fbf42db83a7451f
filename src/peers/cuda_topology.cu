// CUDA behind the topology seam, with the canary's kernels.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "peers/cuda_check.hpp"
#include "peers/nvml.hpp"
#include "peers/topology_api.hpp"

namespace xstage::peers {
namespace {

using Clock = std::chrono::steady_clock;

// A word of the pattern: a bijective mix of seed and place, so that a shifted, stale or dropped
// line shows.
__host__ __device__ inline std::uint32_t pattern(std::uint32_t seed, std::uint32_t idx) {
  std::uint32_t x = seed + idx * 0x9e3779b9u;
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

__global__ void store_pattern(std::uint32_t* words, std::uint32_t num_words, std::uint32_t seed) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < num_words;
       i += gridDim.x * blockDim.x) {
    words[i] = pattern(seed, i);
  }
  __threadfence_system();
}

// result[0] counts wrong words, result[1] is the lowest wrong place.
__global__ void compare_pattern(const volatile std::uint32_t* words, std::uint32_t num_words,
                                std::uint32_t seed, std::uint32_t* result) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < num_words;
       i += gridDim.x * blockDim.x) {
    if (words[i] == pattern(seed, i)) continue;
    atomicAdd(&result[0], 1u);
    atomicMin(&result[1], i);
  }
}

// Memory and streams of one canary. Given up, not freed, when the GPU does not answer: freeing
// would wait for it.
struct CanaryResources {
  int device;
  cudaStream_t stream = nullptr;
  cudaEvent_t done = nullptr;
  std::uint32_t* words = nullptr;
  std::uint32_t* result = nullptr;
  bool words_on_host = false;
  bool abandoned = false;

  explicit CanaryResources(int on_device) : device(on_device) {
    DeviceScope scope(device);
    try {
      check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
      check_cuda(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "cudaEventCreate");
      check_cuda(cudaHostAlloc(reinterpret_cast<void**>(&result), 2 * sizeof(std::uint32_t),
                               cudaHostAllocMapped),
                 "cudaHostAlloc");
    } catch (...) {
      release();
      throw;
    }
  }
  ~CanaryResources() {
    if (abandoned) return;
    int before = 0;
    (void)cudaGetDevice(&before);
    (void)cudaSetDevice(device);
    release();
    (void)cudaSetDevice(before);
  }
  CanaryResources(const CanaryResources&) = delete;
  CanaryResources& operator=(const CanaryResources&) = delete;

  void allocate_words(std::uint64_t bytes, bool on_host) {
    DeviceScope scope(device);
    words_on_host = on_host;
    void* memory = nullptr;
    check_cuda(on_host ? cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable)
                       : cudaMalloc(&memory, bytes),
               on_host ? "cudaHostAlloc" : "cudaMalloc");
    words = static_cast<std::uint32_t*>(memory);
  }

  // False if the stream did not finish in time.
  [[nodiscard]] bool wait(Clock::time_point until) {
    check_cuda(cudaEventRecord(done, stream), "cudaEventRecord");
    while (true) {
      const cudaError_t state = cudaEventQuery(done);
      if (state == cudaSuccess) return true;
      if (state != cudaErrorNotReady) check_cuda(state, "canary kernel");
      if (Clock::now() >= until) {
        abandoned = true;
        return false;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

 private:
  void release() {
    if (words != nullptr) (void)(words_on_host ? cudaFreeHost(words) : cudaFree(words));
    if (result != nullptr) (void)cudaFreeHost(result);
    if (done != nullptr) (void)cudaEventDestroy(done);
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
    (void)cudaGetLastError();
  }
};

void enable_access(int from, int to) {
  DeviceScope scope(from);
  const cudaError_t status = cudaDeviceEnablePeerAccess(to, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
    return;
  }
  check_cuda(status, "cudaDeviceEnablePeerAccess from GPU " + std::to_string(from) + " to GPU " +
                         std::to_string(to));
}

std::string uuid_text(const cudaUUID_t& uuid, bool mig) {
  std::string text = mig ? "MIG-" : "GPU-";
  for (int i = 0; i < 16; ++i) {
    char pair[3];
    std::snprintf(pair, sizeof pair, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += pair;
  }
  return text;
}

// Bytes per ns that one NVLink carries one way, by generation.
double nvlink_rate(int compute_major) {
  return compute_major >= 10 ? 50.0 : 25.0;
}

bool driver_flag(CUdevice_attribute attribute, int ordinal) {
  int value = 0;
  const auto get = driver_entry<PFN_cuDeviceGetAttribute_v2000>("cuDeviceGetAttribute", 2000);
  return get(&value, attribute, ordinal) == CUDA_SUCCESS && value != 0;
}

class CudaTopology final : public TopologyApi {
 public:
  MachineFacts machine() override {
    MachineFacts facts;
    (void)cudaDriverGetVersion(&facts.driver_version);
    (void)cudaRuntimeGetVersion(&facts.runtime_version);
    const cudaError_t status = cudaGetDeviceCount(&facts.num_gpus);
    if (status == cudaSuccess && facts.num_gpus > 0) return facts;
    (void)cudaGetLastError();
    facts.num_gpus = 0;
    if (facts.driver_version == 0) {
      facts.missing = "no NVIDIA driver";
    } else if (status == cudaErrorInsufficientDriver) {
      facts.missing = "the driver supports CUDA " + std::to_string(facts.driver_version / 1000) +
                      ", this build needs " + std::to_string(facts.runtime_version / 1000) +
                      ": install a newer driver";
    } else if (status == cudaErrorNoDevice || status == cudaSuccess) {
      facts.missing = "no GPU visible (is CUDA_VISIBLE_DEVICES empty?)";
    } else {
      facts.missing = std::string("cudaGetDeviceCount: ") + cudaGetErrorString(status);
    }
    return facts;
  }

  Gpu gpu(int ordinal) override {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
    Gpu gpu;
    gpu.ordinal = ordinal;
    gpu.name = properties.name;
    gpu.mig = gpu.name.find(" MIG ") != std::string::npos;
    gpu.uuid = uuid_text(properties.uuid, gpu.mig);
    char bus_id[32] = {};
    check_cuda(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, ordinal), "cudaDeviceGetPCIBusId");
    gpu.pci_bus_id = bus_id;
    gpu.compute_major = properties.major;
    gpu.compute_minor = properties.minor;
    gpu.num_sms = properties.multiProcessorCount;
    gpu.memory_bytes = properties.totalGlobalMem;
    gpu.cooperative_launch = properties.cooperativeLaunch != 0;
    gpu.virtual_memory =
        driver_flag(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, ordinal);
    gpu.posix_descriptors =
        driver_flag(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, ordinal);
    gpu.free_bytes = nvml_.free_bytes(gpu.uuid).value_or(0);
    gpu.mig = gpu.mig || nvml_.mig_enabled(gpu.uuid).value_or(false);
    gpu.num_nvlinks = nvml_.num_active_nvlinks(gpu.uuid).value_or(-1);
    gpu.nvlink_bytes_per_ns = std::max(gpu.num_nvlinks, 0) * nvlink_rate(gpu.compute_major);
    return gpu;
  }

  PeerEdge edge(const Gpu& from, const Gpu& to) override {
    PeerEdge edge;
    int access = 0;
    check_cuda(cudaDeviceCanAccessPeer(&access, from.ordinal, to.ordinal),
               "cudaDeviceCanAccessPeer");
    edge.access = access != 0;
    int atomics = 0;
    if (cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, from.ordinal,
                                  to.ordinal) != cudaSuccess) {
      (void)cudaGetLastError();
    }
    edge.native_atomics = edge.access && atomics != 0;
    const auto joined = nvml_.nvlink_between(from.uuid, to.uuid);
    const bool nvlink = joined.value_or(edge.native_atomics);
    edge.link = nvlink ? LinkKind::nvlink : LinkKind::pcie;
    if (!edge.access) {
      edge.reason = "cudaDeviceCanAccessPeer says no, the path is " +
                    std::string(nvlink ? "NVLink" : "PCIe") +
                    (from.mig || to.mig ? ", and a MIG slice never has peer access" : "");
    }
    return edge;
  }

  PeerEdge host_edge(const Gpu& from) override {
    PeerEdge edge;
    int mappable = 0;
    check_cuda(cudaDeviceGetAttribute(&mappable, cudaDevAttrCanMapHostMemory, from.ordinal),
               "cudaDeviceGetAttribute");
    edge.access = mappable != 0;
    int atomics = 0;
    (void)cudaDeviceGetAttribute(&atomics, cudaDevAttrHostNativeAtomicSupported, from.ordinal);
    edge.native_atomics = atomics != 0;
    edge.link = LinkKind::host;
    if (!edge.access) edge.reason = "the GPU cannot map pinned host memory";
    return edge;
  }

  CanaryOutcome canary(const Gpu& from, const Gpu* to, const CanaryOptions& options) override {
    const auto num_words = static_cast<std::uint32_t>(options.bytes / sizeof(std::uint32_t));
    const auto seed = static_cast<std::uint32_t>(options.seed * 2654435761u + 7u * from.ordinal);
    CanaryResources sender(from.ordinal);
    CanaryResources reader(to == nullptr ? from.ordinal : to->ordinal);
    reader.allocate_words(num_words * sizeof(std::uint32_t), to == nullptr);
    if (to != nullptr) enable_access(from.ordinal, to->ordinal);
    // Contexts and kernels are loaded by now: what is left is the link's own time.
    warm_up(sender);
    warm_up(reader);
    const auto until = Clock::now() + std::chrono::nanoseconds(options.timeout_ns);
    {
      DeviceScope scope(from.ordinal);
      store_pattern<<<32, 256, 0, sender.stream>>>(reader.words, num_words, seed);
      check_cuda(cudaGetLastError(), "canary store");
    }
    if (!sender.wait(until)) return give_up(sender, reader, "the store did not finish");
    const CanaryOutcome there = compare(reader, reader, num_words, seed, until, to == nullptr);
    if (there.state == CanaryState::timed_out) (void)give_up(sender, reader, "");
    if (there.state != CanaryState::passed) return there;
    // And back through the same mapping, so that reads are known to work as well.
    CanaryOutcome back = compare(sender, reader, num_words, seed, until, false);
    if (back.state == CanaryState::timed_out) (void)give_up(sender, reader, "");
    if (back.state == CanaryState::corrupt) back.detail += " (read back by the sender)";
    return back;
  }

 private:
  static void warm_up(CanaryResources& resources) {
    DeviceScope scope(resources.device);
    cudaFuncAttributes attributes{};
    check_cuda(cudaFuncGetAttributes(&attributes, store_pattern), "loading the canary");
    check_cuda(cudaFuncGetAttributes(&attributes, compare_pattern), "loading the canary");
    check_cuda(cudaStreamSynchronize(resources.stream), "canary set-up");
  }

  static CanaryOutcome give_up(CanaryResources& a, CanaryResources& b, const char* detail) {
    a.abandoned = true;
    b.abandoned = true;
    return {CanaryState::timed_out, detail};
  }

  static CanaryOutcome judge_counts(std::uint32_t num_wrong, std::uint32_t first,
                                    std::uint32_t num_words) {
    if (num_wrong == 0) return {CanaryState::passed, ""};
    return {CanaryState::corrupt, std::to_string(num_wrong) + " of " + std::to_string(num_words) +
                                      " words differ, the first at byte " +
                                      std::to_string(4ull * first)};
  }

  static CanaryOutcome compare(CanaryResources& by, const CanaryResources& holder,
                               std::uint32_t num_words, std::uint32_t seed, Clock::time_point until,
                               bool on_cpu) {
    std::uint32_t num_wrong = 0;
    std::uint32_t first = num_words;
    if (on_cpu) {
      for (std::uint32_t i = 0; i < num_words; ++i) {
        if (holder.words[i] == pattern(seed, i)) continue;
        if (num_wrong++ == 0) first = i;
      }
      return judge_counts(num_wrong, first, num_words);
    }
    // Counted in device memory: atomics on pinned memory are not native over PCIe.
    DeviceScope scope(by.device);
    std::uint32_t* counts = nullptr;
    check_cuda(cudaMalloc(reinterpret_cast<void**>(&counts), 2 * sizeof(std::uint32_t)),
               "cudaMalloc");
    by.result[0] = 0;
    by.result[1] = num_words;
    check_cuda(cudaMemcpyAsync(counts, by.result, 8, cudaMemcpyHostToDevice, by.stream), "copy");
    compare_pattern<<<32, 256, 0, by.stream>>>(holder.words, num_words, seed, counts);
    check_cuda(cudaGetLastError(), "canary compare");
    check_cuda(cudaMemcpyAsync(by.result, counts, 8, cudaMemcpyDeviceToHost, by.stream), "copy");
    if (!by.wait(until)) return {CanaryState::timed_out, "the read did not finish"};
    check_cuda(cudaFree(counts), "cudaFree");
    return judge_counts(by.result[0], by.result[1], num_words);
  }

  Nvml nvml_;
};

}  // namespace

std::unique_ptr<TopologyApi> cuda_topology() {
  return std::make_unique<CudaTopology>();
}

}  // namespace xstage::peers
