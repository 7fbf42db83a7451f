// How fast this GPU reads its memory: the yardstick for kernels whose time is that of reading
// weights.
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 8;

__global__ void __launch_bounds__(kThreads)
    read_kernel(const uint4* data, std::int64_t count, std::uint32_t* sink) {
  constexpr std::int64_t kChunk = kThreads * kUnroll;
  std::uint32_t bits = 0;
  for (std::int64_t first = blockIdx.x * kChunk; first < count; first += gridDim.x * kChunk) {
    uint4 x[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const std::int64_t at = first + i * kThreads + threadIdx.x;
      x[i] = at < count ? __ldcs(data + at) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) bits |= x[i].x ^ x[i].y ^ x[i].z ^ x[i].w;
  }
  if (bits == 0x12345678u) *sink = bits;  // hardly ever; keeps the loads
}

}  // namespace

// Reads `bytes` (a multiple of 16) once; 0 or the CUDA error.
extern "C" int xstage_read_memory(const void* data, std::int64_t bytes, void* sink,
                                  int blocks_per_sm, void* stream) {
  int device = 0;
  int num_sms = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device);
  read_kernel<<<static_cast<unsigned>(num_sms * blocks_per_sm), kThreads, 0,
                static_cast<cudaStream_t>(stream)>>>(static_cast<const uint4*>(data), bytes / 16,
                                                     static_cast<std::uint32_t*>(sink));
  return cudaGetLastError();
}
